"""What the programs' command lines have in common."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence


def spelled(argv: Sequence[str]) -> list[str]:
    """The arguments with dashes in the names of options: they may have underscores as well."""
    return [re.sub(r"^--[^=]+", lambda name: name[0].replace("_", "-"), arg) for arg in argv]


def whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def truth(text: str) -> bool:
    try:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None
