"""A rank without PyTorch that says what a training program says, and misbehaves as the command line asks.

`--diary FILE` gets a line `WORD RANK TIME` by one write for what the fault suite waits for and measures from: `begun`
at the first step, `waits` in a collective that cannot end, `fact` when the fault shows and when the process ends by
itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from workloads.records import Outlet, RankLog

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RUN = os.environ["TORCHELASTIC_RUN_ID"]
MEBIBYTE = (b"x" * 127 + b"\n") * 8192


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--diary", required=True)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1, help="the rank that shows it; -1: all of them")
    parser.add_argument("--size", type=int, default=0, help="MiB, of faults that print much")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--step-time", type=float, default=0.0)
    parser.add_argument("--bound", action="store_true", help="the other ranks wait in a collective")
    return parser.parse_args()


class Rank:
    """One process: `before` its first record, `speak`, at a `step`, `after` its final record."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        shows = options.rank in (RANK, -1)
        self.fault = options.fault if shows else "none"
        self.log = RankLog(Outlet(), run=RUN, rank=RANK, world=WORLD)

    def note(self, word: str) -> None:
        diary = os.open(self.options.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(diary, f"{word} {RANK} {time.time()}\n".encode())
        os.close(diary)

    def live(self) -> int:
        code = self.before()
        if code is not None:
            return code
        self.pretend()
        self.start()
        for step in range(1, self.options.steps + 1):
            if step == 1:
                self.note("begun")
            code = self.step(step)
            if code is not None:
                return code
            time.sleep(self.options.step_time)
        self.finish()
        return self.after()

    def before(self) -> int | None:
        if self.fault == "silent":
            return 0
        if self.fault == "late":
            self.note("fact")
            hang()
        if self.fault == "no-module":
            self.note("fact")
            raise ModuleNotFoundError("No module named 'transformer_engine'")
        if self.fault == "exit-at-start":
            self.note("fact")
            return 3
        if self.fault == "forged-run":
            stranger = RankLog(Outlet(), run="bert-nvidia-000000", rank=RANK, world=WORLD)
            Rank.start(self, stranger)
            Rank.finish(self, stranger)
            return 0
        if self.fault == "forged-line":
            return 0
        return None

    def pretend(self) -> None:
        """Faults of what a rank says it is."""
        said = {
            "duplicate": (RANK - 1, WORLD),
            "foreign": (WORLD + 3, WORLD),
            "own-group": (0, 1),
            "group-per-node": (int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])),
        }.get(self.options.fault if self.options.fault in ("own-group", "group-per-node") else self.fault)
        if said is not None:
            self.log = RankLog(Outlet(), run=RUN, rank=said[0], world=said[1])
        if self.options.fault == "second-attempt":
            self.start()
            self.log = RankLog(Outlet(), run=RUN, rank=RANK, world=WORLD, attempt=1)
        if self.options.fault == "forged-line" and RANK == 0:
            text = f"[Rank {self.options.rank}] - local_samples=78.1, total_time=1.56s, "
            os.write(1, f"{text}local_throughput=49.97 samples/s, local_avg_epoch_time=0.31s\n".encode())
        if self.fault == "forged-rank":
            other = RankLog(Outlet(), run=RUN, rank=(RANK + 1) % WORLD, world=WORLD)
            self.start(other)
            self.finish(other)
        if self.fault == "stranger":
            stranger = RankLog(Outlet(), run="bert-nvidia-000000", rank=RANK, world=1)
            self.start(stranger)

    def step(self, step: int) -> int | None:
        options = self.options
        if step == 3 and self.fault in AT_STEP:
            self.let_the_others_wait()
            self.note("fact")
            code = AT_STEP[self.fault]()
            if code is not None:
                return code
        if step == 3 and options.bound and self.fault == "none":
            hang(self)
        loss = 4.0 - step / 10
        if self.options.fault == "rising":
            loss = 4.0 + step
        if self.fault == "nan" and step == 3:
            loss = float("nan")
        if self.fault == "gap" and step == 3:
            self.log._written += 1
        figures = {"loss": loss, "lr": 1e-3, "step_time": 0.01, "local_time": 0.005}
        self.log.record("step", step=step, warmup=step == 1, samples=8, **figures)
        return None

    def let_the_others_wait(self) -> None:
        end = time.monotonic() + 20.0
        while self.options.bound and time.monotonic() < end:
            with Path(self.options.diary).open() as diary:
                if sum(line.startswith("waits ") for line in diary) >= WORLD - 1:
                    return
            time.sleep(0.01)

    def after(self) -> int:
        if self.fault == "flood":
            for _ in range(self.options.size):
                os.write(1, MEBIBYTE)
        if self.fault == "chatter":
            for _ in range(self.options.size * 128):
                os.write(1, MEBIBYTE[: 1 << 13])
                time.sleep(0.01)  # a reader that comes back can keep up
        self.note("fact")
        if self.fault == "exit-late":
            return 5
        if self.fault == "hang-at-exit":
            hang()
        return 0

    def start(self, log: RankLog | None = None) -> None:
        standin = {"cuda": "nvidia", "xla": "neuron"}.get(self.options.device)
        (log or self.log).record(
            "start",
            pod=os.environ["POD_NAME"],
            node=os.environ["NODE_NAME"],
            local_rank=int(os.environ["LOCAL_RANK"]),
            pid=os.getpid(),
            device="cpu",
            device_name="CPU",
            standin=standin if self.fault != "wrong-device" else None,
            backend="gloo",
            workload="unruly",
            size="tiny",
            seed=1,
            global_batch=8 * WORLD,
            parameters=1,
            steps=self.options.steps,
            warmup_steps=1,
        )
        network = {"sockets": "Socket", "efa": "AWS Libfabric"}.get(self.options.fault)
        if network is not None:
            host = f"{os.environ['NODE_NAME']}:{os.getpid()}:{os.getpid()} [0] NCCL INFO"
            os.write(1, f"{host} NET/Socket : Using [0]eth0:10.0.0.7<0>\n{host} Using network {network}\n".encode())

    def finish(self, log: RankLog | None = None) -> None:
        log, steps = log or self.log, self.options.steps
        if self.fault == "long-line":
            os.write(1, b"y" * (self.options.size << 20) + b"\n")
        log.record("epoch", epoch=0, time=0.05, samples=8 * steps)
        figures = {"samples": 8.0 * (steps - 1), "total_time": 0.5, "throughput": 100.0, "epoch_time": 0.05}
        log.people(**figures)
        rising = self.options.fault == "rising"
        first, last = (5.0, 4.0 + steps) if rising else (3.9, 4.0 - steps / 10)
        fingerprint = ("cd" if self.fault == "unequal" else "ab") * 32
        log.end(steps=steps, warmup_steps=1, loss_first=first, loss_last=last, fingerprint=fingerprint, **figures)


def crash() -> int:
    print("CUDA error: an illegal memory access was encountered", file=sys.stderr)
    return 17


def escape() -> int:
    os.write(1, b"\x1b]0;owned\x07\x1b[2J\x1b[31m::error::pwned by a log line\r\n##[error]pwned <script>x</script>\n")
    os.write(2, b"::error file=x::pwned \x1b[2J\xff\xfe\x00\n")
    return 17


def die(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def hang(rank: Rank | None = None) -> None:
    signal.signal(signal.SIGTERM, told_to_go)
    if rank is not None:
        rank.note("waits")
    while True:
        time.sleep(60)


def told_to_go(number: int, frame: object) -> None:
    os.write(2, b"stack: hang() waits for its peers\n")
    os._exit(128 + number)


AT_STEP: dict[str, Callable[[], int | None]] = {
    "exit": crash,
    "escapes": escape,
    "exit-early": lambda: 0,
    "hang": hang,
    "kill": die(signal.SIGKILL),
    "segfault": die(signal.SIGSEGV),
    "abort": die(signal.SIGABRT),
    "kill-launcher": lambda: os.kill(os.getppid(), signal.SIGKILL),
}

if __name__ == "__main__":
    sys.exit(Rank(parse()).live())
