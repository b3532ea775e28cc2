"""What must hold before torch is imported: import this module first, for its effects.

Importing torch takes seconds; a rank that is terminated or hangs meanwhile should show its stack as well.
"""

from __future__ import annotations

import faulthandler
import signal
import time
import warnings

STARTED = time.perf_counter()
"""About when this process began, on the clock of its own."""


def show_stacks_before_death() -> None:
    """On SIGTERM print every thread's stack to standard error, then die of it; the same for crashes.

    faulthandler writes from the C signal handler, so this works while the rank is blocked inside a collective, where
    a Python handler would never run.
    """
    faulthandler.enable()
    # A parent that ignored SIGTERM would have us ignore it too: chain=True calls whatever was there before.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)


show_stacks_before_death()
# NumPy is optional for torch and unused here; without it, every rank would print a warning on import.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
