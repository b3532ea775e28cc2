"""Small things about text in logs: numbers as programs print them, control sequences, quotation."""

from __future__ import annotations

import re

from allranks.text import ESCAPE

NUMBER = rb"(?:[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?))"
"""One number: 49.97, 5.8e7, 1,234.5, nan, -inf. A pattern that uses it should go on to the unit, or to what else
must follow: a number that was cut short is a different number."""
RATE = NUMBER + rb"(?:\s?[kKMG](?![A-Za-z0-9]))?"
"""A number that may be scaled: 49.97, 1.2k, 3 M."""
UNIT = rb"(?:ms|us|\xc2\xb5s|milliseconds?|s(?:ec(?:ond)?s?)?|min(?:ute)?s?|h(?:ours?)?)(?![A-Za-z])"
"""A unit of time."""

_SCALES = {b"k": 1e3, b"K": 1e3, b"M": 1e6, b"G": 1e9}
_UNITS = {b"ms": 1e-3, b"mi": 60.0, b"us": 1e-6, b"\xc2\xb5": 1e-6, b"h": 3600.0}
_ESCAPES = re.compile(ESCAPE.encode())
_ECHO = re.compile(rb"(?:^|[\s;&|+$(])(?:echo|printf|print)\s+(?:-\w+\s+)*$")
_CONTEXT = 512
"""Bytes before a record that are looked at to see whether it is quoted."""
_STRING = 4096
"""Bytes around a record that a string around it may be long."""
_APOSTROPHE = re.compile(rb"(?<=\w)'(?=\w)|\\.", re.DOTALL)


def number(text: bytes) -> float:
    """The value of something that NUMBER or RATE matched. Raises ValueError for anything else."""
    try:
        return float(text)
    except ValueError:
        text = text.strip()
    scale = _SCALES.get(text[-1:])
    if scale is not None:
        return float(text[:-1].replace(b",", b"")) * scale
    return float(text.replace(b",", b""))


def seconds(text: bytes, unit: bytes | None) -> float:
    """A number with a unit of time that UNIT matched, in seconds; without one it is seconds already."""
    value = number(text)
    if not unit:
        return value
    if unit.startswith(b"milli"):
        return value * 1e-3
    return value * next((factor for short, factor in _UNITS.items() if unit.startswith(short)), 1.0)


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


def in_string(text: bytes, start: int, end: int, begun: int = 0) -> bool:
    """Whether text[start:end] stands within a longer quoted string, as in `{"msg":"at 10:00: … , all good"}`.

    A quotation mark that the piece itself holds tells nothing: it may be half of a record that was cut. The line proper
    begins at `begun`.
    """
    before = text[max(begun, start - _STRING) : start]
    if b'"' not in before and b"'" not in before:
        return False
    before = _APOSTROPHE.sub(b"", before)
    after = _APOSTROPHE.sub(b"", text[end : end + _STRING])
    piece = text[start:end]
    return any(mark not in piece and before.count(mark) % 2 and mark in after for mark in (b'"', b"'"))
