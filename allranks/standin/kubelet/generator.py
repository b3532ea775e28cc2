"""Containers without a process: what a thousand pods would say, written by the kubelet itself.

A container whose command runs the module `standin.generate` is not started. The kubelet writes lines for it through the
pod's log as if they came from its pipes: noise, and the records of each of its ranks (contract 2). With

    … --nnodes N --nproc-per-node P --rdzv-id RUN … -m standin.generate --lines-per-second L --seconds S --step-every T

each of the N pods says L lines a second in all, for S seconds from the moment that the last of them has started.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from allranks.standin.kubelet.process import Container, Reaper
from allranks.standin.objects import Object

MODULE = "standin.generate"
_TICK = 0.5
"""Seconds between writes of one pod."""
_LINE = 112
_NOISE_LINES = 4096
NO_PROCESS = 1 << 30
"""A process id that no system gives: nothing can be hit by what is sent there."""
Output = Callable[[bytes, bytes], None]


def is_generated(pod: Object) -> bool:
    return all(
        MODULE in [*(container.get("command") or ()), *(container.get("args") or ())]
        for container in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    )


def bare_volumes(pod: Object, root: Path) -> dict[str, Path]:
    """Where a pod's volumes would be: nobody reads in them."""
    return {volume["name"]: root / volume["name"] for volume in pod["spec"].get("volumes") or ()}


def start(reaper: Reaper, argv: Sequence[str], env: Mapping[str, str], cwd: Path, output: Output) -> Container:
    """The container, as a process or generated. Raises what `Container` does."""
    if MODULE in argv:
        return Generated(argv, env, output)
    return Container(reaper, argv, env, cwd, output)


class _Meeting:
    """The pods of one run wait for each other, as at a rendezvous."""

    _open: dict[str, _Meeting] = {}  # noqa: RUF012 - the class's own register, by run

    def __init__(self) -> None:
        self.complete = asyncio.Event()
        self._nodes: set[int] = set()

    @classmethod
    def join(cls, run: str, node: int, nodes: int) -> asyncio.Event:
        meeting = cls._open.setdefault(run, cls())
        meeting._nodes.add(node)
        if len(meeting._nodes) >= nodes:
            meeting.complete.set()
            del cls._open[run]
        return meeting.complete


class Generated(Container):
    """What `Container` offers, without a process."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], output: Output) -> None:
        self.pid = NO_PROCESS
        self._options = _options(argv)
        self._node = int(env.get("JOB_COMPLETION_INDEX", "0"))
        self._env = env
        self._output = output
        self._task = asyncio.create_task(self._speak())
        self._code = 0

    async def wait(self) -> int:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._task)
        return self._code

    def signal(self, number: int) -> None:
        self._code = self._code or -number
        self._task.cancel()

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def kill_one(self) -> None:
        self.kill()

    def stand_still(self, *, still: bool) -> None:
        """Not offered: there is nothing that could be stopped."""

    async def _speak(self) -> None:
        options, per_node = self._options, self._options.nproc_per_node
        ranks = [_Rank(self._node * per_node + local, local, options, self._env) for local in range(per_node)]
        self._status("running", None)
        complete = _Meeting.join(options.rdzv_id, self._node, options.nnodes)
        await complete.wait()
        self._output(b"stdout", b"".join(rank.start() for rank in ranks))
        began = said = time.monotonic()
        noise, at, owed = _noise(), random.randrange(_NOISE_LINES), 0.0
        while (now := time.monotonic()) < began + options.seconds:
            due = [rank.step() for rank in ranks if now >= began + rank.next_step]
            owed += (now - said) * options.lines_per_second - len(due)
            said = now
            count = max(0, min(int(owed), _NOISE_LINES))
            owed -= count
            at = at if at + count <= _NOISE_LINES else 0
            self._output(b"stdout", noise[at * _LINE : (at + count) * _LINE] + b"".join(due))
            at += count
            await asyncio.sleep(_TICK)
        self._output(b"stdout", b"".join(rank.end() for rank in ranks))
        self._status("succeeded", 0)

    def _status(self, state: str, code: int | None) -> None:
        """The launcher's word (contract 3)."""
        path = self._env.get("ALLRANKS_TERMINATION_LOG")
        if path:
            options = self._options
            told = {"v": 1, "run": options.rdzv_id, "attempt": 0, "node": self._node, "nnodes": options.nnodes}
            told |= {"nproc": options.nproc_per_node, "state": state, "codes": [[code, options.nproc_per_node]]}
            # Never empty: to close a file that was emptied before waits for the disk, and everything here with it.
            with Path(path).open("r+b") as file:
                file.write(json.dumps(told).encode())
                file.truncate()


class _Rank:
    """One rank's records."""

    def __init__(self, rank: int, local_rank: int, options: argparse.Namespace, env: Mapping[str, str]) -> None:
        self._options = options
        self._common = (
            f'ALLRANKS {{"v":1,"run":{json.dumps(options.rdzv_id)},"rank":{rank},'
            f'"world":{options.nnodes * options.nproc_per_node},"attempt":0'
        )
        self._place = {
            "pod": env.get("POD_NAME", ""),
            "node": env.get("NODE_NAME", ""),
            "local_rank": local_rank,
            "pid": 1000 + local_rank,
            "device": f"cuda:{local_rank}",
            "backend": "nccl",
        }
        self._seq = self._steps = 0
        self._phase = random.random() * options.step_every
        self.next_step = self._phase

    def _say(self, event: str, fields: str) -> bytes:
        text = f'{self._common},"seq":{self._seq},"event":"{event}","t":{time.time():.6f},{fields}}}\n'
        self._seq += 1
        return text.encode()

    def start(self) -> bytes:
        return self._say("start", json.dumps(self._place, separators=(",", ":"))[1:-1])

    def step(self) -> bytes:
        self._steps += 1
        self.next_step = self._phase + self._steps * self._options.step_every
        loss = 3 + 8 / (1 + self._steps)
        return self._say("step", f'"step":{self._steps},"loss":{loss:.4f},"step_time":0.25,"samples":32')

    def end(self) -> bytes:
        figures = f'"steps":{self._steps},"records":{self._seq + 1},"samples":{32 * self._steps}'
        return self._say("end", f'{figures},"total_time":{self._options.seconds},"throughput":128.0,"epoch_time":1.0')


@functools.cache
def _noise() -> bytes:
    """Lines of one length, so that any number of them is a slice."""
    generator = random.Random(5)
    lines = [
        f"[{generator.randrange(24):02d}:{number % 60:02d}] INFO worker {generator.randrange(999)}: pool drained, "
        f"queue {generator.randrange(64)}, cache hit 0.{generator.randrange(100)}"
        for number in range(_NOISE_LINES)
    ]
    return "".join(f"{line:.{_LINE - 1}}".ljust(_LINE - 1) + "\n" for line in lines).encode()


def _options(argv: Sequence[str]) -> argparse.Namespace:
    """Those of the launcher and of the module; others (devices, addresses) do not matter here."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("--rdzv-id", default="generated")
    parser.add_argument("--lines-per-second", type=float, default=40.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--step-every", type=float, default=2.0)
    return parser.parse_known_args(list(argv))[0]
