"""A stand-in cluster as a process of its own, for as long as a block lasts."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from allranks.cluster import ClusterError

_START = 60.0
_STOP = 20.0


@contextmanager
def start_standin(directory: Path, nodes: Sequence[str] = (), options: Sequence[str] = ()) -> Iterator[Path]:
    """Starts `allranks standin` in `directory` and yields its kubeconfig; stops it, and its pods, at the end.

    `nodes` are as its `--nodes` takes them (`nvidia:2x8`; none: its default nodes), `options` further arguments.
    Raises ClusterError, with the end of its output, when it does not come up.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "standin.log"
    arguments = ["--exit-with-parent", "--root", str(directory)]
    arguments += [part for node in nodes for part in ("--nodes", node)]
    # The package is found even where it is not installed and this is not the checkout's directory.
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")]))
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "allranks", "standin", *arguments, *options],
            stdin=subprocess.PIPE,  # its end tells the stand-in that we are gone, however we went
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": path},
            # Ctrl-C is for us: the run is cleaned up on the stand-in before the stand-in goes.
            start_new_session=True,
        )
    try:
        yield _kubeconfig(process, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def _kubeconfig(process: subprocess.Popen[bytes], log: Path) -> Path:
    """Waits for the line `export KUBECONFIG=…`, which it prints when it serves."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    until, said = time.monotonic() + _START, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if not selector.select(left):
                break
            part = process.stdout.read(4096)
            if not part:
                break
            said += part
            if match := re.search(rb"(?m)^export KUBECONFIG=(.+)\n", said):
                return Path(match[1].decode())
    raise ClusterError(f"the stand-in did not start:\n{log.read_text(errors='replace')[-2000:]}")
