"""`allranks standin`: starts the stand-in, says where its kubeconfig is, ends when told."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from allranks import openfiles
from allranks.standin import nodes
from allranks.standin.kubelet.process import Guardian
from allranks.standin.objects import quantity

if TYPE_CHECKING:
    from allranks.standin.cluster import Cluster, Options

_ALLOCATIONS = 20_000
"""Between two looks for garbage: there is little, and the objects of a thousand nodes are slow to look through."""
_FILES = 5
"""A pod's log and termination message, and two readers of the log with their connections."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="allranks standin",
        description="A one-machine Kubernetes stand-in: pods are processes of this machine.",
    )
    parser.add_argument(
        "--nodes",
        action="append",
        metavar="KIND:COUNTxDEVICES",
        help="nodes to pretend, repeatable: nvidia:2x8, neuron:2x16, cpu:2 (default: nvidia:2x2 and neuron:2x2, "
        "or the real GPUs of this machine as one node)",
    )
    parser.add_argument("--port", type=int, default=0, help="of the API server on 127.0.0.1 (default: a free one)")
    parser.add_argument("--kubeconfig", type=Path, help="where to write it (default: in the root directory)")
    parser.add_argument(
        "--root", type=Path, help="directory for pods and logs (default: a temporary one, removed at the end)"
    )
    parser.add_argument("--log-max-size", default="10Mi", metavar="QUANTITY", help="rotate container logs at this size")
    parser.add_argument(
        "--log-max-files", type=int, default=5, help="log files kept per container, the current one included"
    )
    parser.add_argument("--history", type=int, default=4096, help="changes per kind that watches can look back")
    parser.add_argument(
        "--token-life",
        type=float,
        metavar="SECONDS",
        help="write kubeconfig-exec beside the kubeconfig: its credential plugin gets tokens that live so long",
    )
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="end when standard input is closed: when the starter is gone"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT. Returns the exit code: 0, or 2 for unusable arguments."""
    parser = _parser()
    given = parser.parse_args(argv)
    gpus = nodes.real_gpus()
    try:
        pools = [nodes.Pool.parse(text) for text in given.nodes or ()] or nodes.default_pools(gpus)
        log_max_size = int(quantity(given.log_max_size))
        if log_max_size < 1 or given.log_max_files < 2:
            raise ValueError("--log-max-size must be at least 1, --log-max-files at least 2")
    except ValueError as error:
        parser.error(str(error))
    scratch = None if given.root else Path(tempfile.mkdtemp(prefix="standin-"))
    root = (scratch or given.root).resolve()
    root.mkdir(parents=True, exist_ok=True)
    gc.set_threshold(_ALLOCATIONS)
    openfiles.allow(sum(pool.count for pool in pools), _FILES)
    instance = secrets.token_hex(8)
    guardian = Guardian(instance, scratch)
    # Only now: the guardian stays small, and `--help` fast.
    from allranks.standin.cluster import Cluster, Options

    options = Options(
        pools=pools,
        gpus=gpus,
        root=root,
        kubeconfig=(given.kubeconfig or root / "kubeconfig").resolve(),
        port=given.port,
        log_max_size=log_max_size,
        log_max_files=given.log_max_files,
        history=given.history,
        token_life=given.token_life,
    )
    try:
        asyncio.run(_serve(Cluster, options, guardian, instance, exit_with_parent=given.exit_with_parent))
    except OSError as error:
        print(f"allranks standin: cannot serve on 127.0.0.1:{given.port}: {error.strerror or error}", file=sys.stderr)
        return 1
    finally:
        guardian.dismiss()
    return 0


async def _serve(
    make: type[Cluster], options: Options, guardian: Guardian, instance: str, *, exit_with_parent: bool
) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if exit_with_parent:
        _stop_at_end_of_input(loop, stop)
    running = asyncio.create_task(make(options, guardian, instance).run(stop, ready))
    announced = asyncio.create_task(ready.wait())
    await asyncio.wait((running, announced), return_when=asyncio.FIRST_COMPLETED)
    if ready.is_set():
        _announce(options)
    announced.cancel()
    await running


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    os.set_blocking(0, False)
    loop.add_reader(0, read)


def _announce(options: Options) -> None:
    shown = ", ".join(f"{p.count} {p.kind}" + (f" × {p.devices}" if p.devices else "") for p in options.pools)
    behind = (
        f"real GPUs: {len(options.gpus)}" if options.gpus else "no real devices: programs use the CPU in their place"
    )
    with contextlib.suppress(BrokenPipeError):
        print(f"stand-in ready: nodes {shown} ({behind})")
        print(f"export KUBECONFIG={options.kubeconfig}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
