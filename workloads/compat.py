"""Older PyTorch: options that it does not have yet, where it behaves as if they were given or can do without."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def known(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Those of the options that `function` has by name."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in names}
