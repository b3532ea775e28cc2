"""Text from elsewhere, made fit for display."""

from __future__ import annotations

import re

ESCAPE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"
"""One terminal control sequence: colour, cursor movement, title."""
_INDENT = 24
_ESCAPES = re.compile(ESCAPE)


def printable(text: str | bytes, limit: int = 300) -> str:
    """As it may be shown to people: one line without control characters, at most `limit` characters, still indented.

    Logs and messages come from anywhere; what is printed of them must not move the reader's cursor or break JSON.
    """
    if isinstance(text, str) and len(text) <= limit and text.isprintable() and "  " not in text:
        return text.rstrip()
    if isinstance(text, bytes):
        text = text[: 8 * limit].decode("utf-8", "replace")
    text = _ESCAPES.sub("", text[: 8 * limit]).encode("utf-8", "replace").decode()
    text = "".join(c if c.isprintable() else " " for c in text)
    indent = min(len(text) - len(text.lstrip(" ")), _INDENT)
    text = (" " * indent + " ".join(text.split())).rstrip()
    return text if len(text) <= limit else text[: limit - 1] + "…"
