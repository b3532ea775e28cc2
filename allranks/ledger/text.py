"""Small things about text in logs: numbers as programs print them, control sequences, quotation."""

from __future__ import annotations

import re

from allranks.text import ESCAPE

NUMBER = rb"(?:[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?))"
"""One number: 49.97, 5.8e7, 1,234.5, nan, -inf. A pattern that uses it should go on to the unit, or to what else
must follow: a number that was cut short is a different number."""

_ESCAPES = re.compile(ESCAPE.encode())
_ECHO = re.compile(rb"(?:^|[\s;&|+$(])(?:echo|printf|print)\s+(?:-\w+\s+)*$")
_CONTEXT = 512
"""Bytes before a record that are looked at to see whether it is quoted."""


def number(text: bytes) -> float:
    """The value of something that NUMBER matched. Raises ValueError for anything else."""
    return float(text.replace(b",", b""))


def strip_escapes(text: bytes) -> bytes:
    """Without terminal control sequences (colours, cursor movement, titles)."""
    return _ESCAPES.sub(b"", text) if b"\x1b" in text else text


def is_quoted(text: bytes, start: int, end: int) -> bool:
    """Whether text[start:end] is quoted or an argument of echo: shown by somebody, not said by a rank."""
    before = text[max(0, start - _CONTEXT) : start]
    if _ECHO.search(before):
        return True
    after = re.sub(rb"^(?:\\+[nr]|\s)+", b"", text[end : end + 16])
    closing = after[:1]
    if closing not in (b'"', b"'", b"`"):
        return False
    return before.endswith(closing) or before.count(closing) % 2 == 1
