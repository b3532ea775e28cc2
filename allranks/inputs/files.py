"""Which files, and their bytes in chunks."""

from __future__ import annotations

import glob
import gzip
import importlib
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from allranks.inputs.unwrap import unwrapped

CHUNK = 1 << 20
_NOT_A_LOG = re.compile(
    r"\.(bin|db|html|ipynb|jpg|json|npy|npz|pdf|png|pt|pth|py|pyc|safetensors|sqlite|svg|tar|tgz|toml|xml|ya?ml|zip)$"
)
"""Kinds of files that are passed over in a directory; given by name they are read."""


class InputError(Exception):
    """Something that cannot be read; the message says what, why and what to do."""


@dataclass(frozen=True, slots=True)
class Input:
    """One log."""

    name: str
    """As findings name it: the path as it was given or found; `stdin`."""
    chunks: Callable[[], Iterator[bytes]]
    """Its bytes, decompressed, without the wrapping of node log files. Raises InputError."""


def open_inputs(arguments: Sequence[str]) -> list[Input]:
    """The logs that the arguments name: files, directories (recursively), patterns with * ? [ ], and `-`.

    A file that is named twice is read once: its ranks must not look as if they had spoken twice.
    Raises InputError for what is missing, unreadable, or holds no logs at all.
    """
    inputs: dict[str, Input] = {}
    for argument in arguments:
        if argument == "-":
            inputs["-"] = Input("stdin", _stdin)
            continue
        try:
            paths = _paths(argument)
        except OSError as error:
            raise InputError(f"{argument}: {error.strerror or error}") from error
        for path in paths:
            inputs.setdefault(os.path.realpath(path), Input(_name(path), partial(_read, path)))
    return list(inputs.values())


def _name(path: Path) -> str:
    """As it can be printed: names of files are bytes, of any encoding."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _paths(argument: str) -> list[Path]:
    path = Path(argument)
    if path.is_dir():
        found = _in_directory(path)
        if not found:
            raise InputError(f"{argument}: no logs in this directory")
        return found
    if path.exists():
        return [path]
    if not glob.has_magic(argument):
        raise InputError(f"{argument}: no such file or directory")
    # Path.glob wants the pattern apart from its directory; people give both in one.
    matches = sorted(map(Path, glob.glob(argument, recursive=True)))  # noqa: PTH207
    if not matches:
        raise InputError(f"{argument}: nothing matches")
    return [inner for match in matches for inner in (_in_directory(match) if match.is_dir() else [match])]


def _in_directory(directory: Path) -> list[Path]:
    found = []

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: {error.strerror}")

    for place, folders, names in os.walk(directory, onerror=refuse):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith(".") and not _NOT_A_LOG.search(name.lower()) and path.is_file():
                found.append(path)
    return found


def _read(path: Path) -> Iterator[bytes]:
    with _naming(str(path)), path.open("rb") as file:
        yield from _decompressed(file, str(path))


def _stdin() -> Iterator[bytes]:
    if sys.stdin is None:
        raise InputError("stdin: it is closed")
    with _naming("stdin"):
        buffer = sys.stdin.buffer
        file = buffer if isinstance(buffer, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, buffer))
        yield from _decompressed(file, "stdin")


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        # gzip's own errors are OSErrors too, without an errno.
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: {reason}") from error


def _decompressed(file: io.BufferedReader, name: str) -> Iterator[bytes]:
    """The log in a file, whatever it is packed in: its first bytes tell, not its name."""
    magic = file.peek(4)[:4]
    if magic == b"\x28\xb5\x2f\xfd":
        yield from unwrapped(_zstd_chunks(file, name))
    elif magic[:2] == b"\x1f\x8b":
        yield from unwrapped(_chunks(gzip.GzipFile(fileobj=file)))
    else:
        yield from unwrapped(_chunks(file))


def _zstd_chunks(file: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Python reads .zst itself from 3.14 on; before that with the package zstandard."""
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        raise InputError(
            f"{name}: to read .zst, Python {version} needs the package zstandard (pip install 'allranks[zst]'); or: "
            f"zstd -dc {name} | allranks judge - …"
        ) from None
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        while chunk := file.read1(CHUNK):
            while chunk:
                if frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(chunk)
                chunk = frame.unused_data if frame.eof else b""
    except zstandard.ZstdError as error:
        raise InputError(f"{name}: {error}") from error
    if not frame.eof:
        # The package's own reader takes a cut file for a short one.
        raise EOFError("compressed file ended before the end-of-stream marker was reached")


def _chunks(file: io.BufferedReader | gzip.GzipFile) -> Iterator[bytes]:
    while chunk := file.read1(CHUNK):
        yield chunk
