"""A directory of this run on this node (L7): private, never shared with another run, removed on every way out."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def create(run_id: str, node_rank: int, base: str) -> str:
    """Mode 0700. The random part keeps two runs apart that were given the same id. Raises OSError."""
    readable = "".join(c if c.isalnum() or c in "-_." else "_" for c in run_id)[:40]
    path = os.path.join(base, f"allranks-{readable}-{node_rank}-{os.urandom(6).hex()}")
    os.mkdir(path, 0o700)
    return path


def remove(path: str) -> None:
    """Everything below as well; what cannot be removed is left. Follows no links."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            _quietly(os.unlink, os.path.join(folder, name))
        for name in folders:
            child = os.path.join(folder, name)
            _quietly(os.unlink if os.path.islink(child) else os.rmdir, child)
    _quietly(os.rmdir, path)


def _quietly(action: Callable[[str], None], path: str) -> None:
    try:
        action(path)
    except OSError:
        return
