"""What a container leaves as its last word: the termination message."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.standin.kubelet.logs import ContainerLog

MESSAGE_LIMIT = 4096
FALLBACK_LINES, FALLBACK_BYTES = 80, 2048


def termination_message(container: Mapping[str, Any], file: Path, log: ContainerLog, code: int) -> str:
    """What the container wrote to `file`, else, if its policy says so and it failed, the end of its log."""
    with contextlib.suppress(OSError), file.open("rb") as held:
        size = held.seek(0, 2)
        held.seek(max(size - MESSAGE_LIMIT, 0))
        message = held.read()
        if message:
            return message.decode(errors="replace")
    if code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        with contextlib.suppress(OSError):
            return log.tail(FALLBACK_LINES, FALLBACK_BYTES).decode(errors="replace")
    return ""
