"""A rank without PyTorch: it says what a training program says, and shows one fault that the command line names."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

from workloads.records import Outlet, RankLog

CHATTER = "x" * 1000 + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1, help="the rank that shows it")
    parser.add_argument("--chatter", type=int, default=0, help="KiB printed by each rank after its final record")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--step-time", type=float, default=0.0)
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mine = options.fault if rank == options.rank else "none"
    if mine == "silent":
        return 0
    if mine == "late":
        hang()
    said, of = (0, 1) if options.fault == "own-group" else (rank, world)
    log = RankLog(Outlet(), run=os.environ["TORCHELASTIC_RUN_ID"], rank=said, world=of)
    start(log, options)
    for step in range(1, options.steps + 1):
        time.sleep(options.step_time)
        if mine == "exit" and step == 3:
            print("CUDA error: an illegal memory access was encountered", file=sys.stderr)
            return 17
        if mine == "hang" and step == 2:
            hang()
        if options.fault == "exit" and mine == "none" and step == 2:
            hang()  # as peers of a dead rank do, in a collective
        loss = float("nan") if mine == "nan" and step == 3 else 4.0 - step / 10
        log.record("step", step=step, loss=loss, lr=1e-3, step_time=0.01, local_time=0.005, warmup=step == 1, samples=8)
    finish(log, options.steps)
    for _ in range(options.chatter):
        os.write(1, CHATTER.encode())
        time.sleep(0.001)  # a reader that follows can keep up
    return 0


def start(log: RankLog, options: argparse.Namespace) -> None:
    standin = {"cuda": "nvidia", "xla": "neuron"}.get(options.device)
    log.record(
        "start",
        pod=os.environ["POD_NAME"],
        node=os.environ["NODE_NAME"],
        local_rank=int(os.environ["LOCAL_RANK"]),
        pid=os.getpid(),
        device="cpu",
        device_name="CPU",
        standin=standin if "ALLRANKS_STANDIN_DEVICE" in os.environ else None,
        backend="gloo",
        workload="faulty",
        size="tiny",
        seed=1,
        global_batch=8 * int(os.environ["WORLD_SIZE"]),
        parameters=1,
        steps=options.steps,
        warmup_steps=1,
    )


def finish(log: RankLog, steps: int) -> None:
    log.record("epoch", epoch=0, time=0.05, samples=8 * steps)
    figures = {"samples": 8.0 * (steps - 1), "total_time": 0.5, "throughput": 100.0, "epoch_time": 0.05}
    log.people(**figures)
    log.end(steps=steps, warmup_steps=1, loss_first=3.9, loss_last=4.0 - steps / 10, fingerprint="ab" * 32, **figures)


def hang() -> None:
    signal.signal(signal.SIGTERM, told_to_go)
    while True:
        time.sleep(60)


def told_to_go(number: int, frame: object) -> None:
    os.write(2, b"stack: hang() waits for its peers\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
