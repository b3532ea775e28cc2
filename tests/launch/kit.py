"""What several of the launcher's tests use."""

from __future__ import annotations

import os


def held() -> int:
    reader, writer = os.pipe()
    os.set_inheritable(writer, False)
    return reader
