"""The launcher's sentences: who ended how, and why the run failed."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SHOWN_LINES, _SHOWN_LENGTH = 20, 2000


def ranges(numbers: Iterable[int]) -> str:
    """0-3,7"""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def ranks(numbers: Iterable[int]) -> str:
    chosen = list(numbers)
    return f"rank{'' if len(chosen) == 1 else 's'} {ranges(chosen)}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ended(code: int) -> str:
    """As in Python's subprocess: negative for a signal."""
    if code >= 0:
        return f"exited with code {code}"
    hint = " (the OOM killer, or somebody's kill -9)" if code == -signal.SIGKILL else ""
    return f"died of {signal_name(-code)}{hint}"


def place(node_rank: int, environ: Mapping[str, str]) -> str:
    """Which machine this is: `node 1, pod bert-1, on ip-10-0-3-7`."""
    pod, node = environ.get("POD_NAME"), environ.get("NODE_NAME")
    return f"node {node_rank}" + (f", pod {pod}" if pod else "") + (f", on {node}" if node else "")


def last_lines(tail: bytes) -> list[str]:
    """What a rank said last, for people: records, and figures that a reader could count twice, are left out."""
    lines = tail.split(b"\n")
    chosen = [line for line in lines if line.strip() and b"ALLRANKS {" not in line and not line.startswith(b"[Rank ")]
    return [line.decode("utf-8", "replace").rstrip()[:_SHOWN_LENGTH] for line in chosen[-_SHOWN_LINES:]]


def exit_code(code: int) -> int:
    """What a shell would say: 128+n for signal n."""
    return code if code >= 0 else 128 - code


def error_text(error: OSError) -> str:
    return error.strerror or os.strerror(error.errno or 0)
