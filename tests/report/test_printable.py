"""What comes from logs and goes to a terminal."""

import pytest

from allranks.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("    indented  code\n", "    indented code"),
        ("\x1b[31mred\x1b[0m\x07", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("one\r\ntwo\ttabs\x00nul", "one two tabs nul"),
        ("right\u202eto left", "right to left"),
        (b"\xff\xfecut \xe2\x82", "��cut �"),
        ("\ud800", "?"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_one_printable_line(text: str | bytes, shown: str):
    assert printable(text) == shown
