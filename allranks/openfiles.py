"""Open files: many pods need more of them than most systems let a process have unasked (1024)."""

from __future__ import annotations

import resource
from contextlib import suppress

_OURS = 256
"""What a process has open besides."""


def allow(pods: int, each: int) -> int:
    """Raises the soft limit so that `pods` times `each` fit, as far as the hard one allows. Returns what is missing."""
    wanted = pods * each + _OURS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return 0
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(ValueError, OSError):  # the system has a limit of its own (macOS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(0, wanted - resource.getrlimit(resource.RLIMIT_NOFILE)[0])
