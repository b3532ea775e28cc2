"""Small things about text in logs: numbers as programs print them, control sequences, quotation."""

from __future__ import annotations

import re

NUMBER = rb"(?:[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?))"
"""One number: 49.97, 5.8e7, 1,234.5, nan, -inf. A pattern that uses it should go on to the unit, or to what else
must follow: a number that was cut short is a different number."""

_ESCAPE = rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"
_ESCAPES = re.compile(_ESCAPE)
_ESCAPES_TEXT = re.compile(_ESCAPE.decode("latin-1"))
_ECHO = re.compile(rb"(?:^|[\s;&|+$(])(?:echo|printf|print)\s+(?:-\w+\s+)*$")
_CONTEXT = 512
"""Bytes before a record that are looked at to see whether it is quoted."""


def number(text: bytes) -> float:
    """The value of something that NUMBER matched. Raises ValueError for anything else."""
    return float(text.replace(b",", b""))


def strip_escapes(text: bytes) -> bytes:
    """Without terminal control sequences (colours, cursor movement, titles)."""
    return _ESCAPES.sub(b"", text) if b"\x1b" in text else text


def printable(text: str | bytes, limit: int = 300) -> str:
    """As it may be shown to people: one line without control characters, at most `limit` characters.

    Logs come from anywhere; what is printed from them must not move the reader's cursor or break JSON.
    """
    if isinstance(text, bytes):
        text = text[: 8 * limit].decode("utf-8", "replace")
    text = _ESCAPES_TEXT.sub("", text[: 8 * limit]).encode("utf-8", "replace").decode()
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


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
