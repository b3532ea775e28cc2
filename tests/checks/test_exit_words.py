"""How a process's end is put into words."""

from __future__ import annotations

import pytest

from allranks.checks.exits import exit_text


@pytest.mark.parametrize(
    ("code", "ranks", "text"),
    [
        (17, 2, "exited with code 17"),
        (-9, 1, "was killed by SIGKILL"),
        (-9, 2, "were killed by SIGKILL"),
        (143, 3, "were killed by SIGTERM (exit code 143)"),
        (None, 1, "failed"),
    ],
)
def test_end_agrees_with_how_many_there_are(code: int | None, ranks: int, text: str) -> None:
    assert exit_text(code, ranks) == text
