"""A rank that says what a training rank says, with as much noise around it as is asked for; no PyTorch.

python -m chatter --seconds 2 --mebibytes 50
"""

from __future__ import annotations

import argparse
import os
import time

from workloads.records import Outlet, RankLog

NOISE = b"".join(
    b"2026-11-30 10:00:00 INFO loader: shard %06d of 100000 read in %3d ms\n" % (n, n % 97) for n in range(1000)
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--mebibytes", type=float, default=0.0)
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = RankLog(Outlet(), run=os.environ["TORCHELASTIC_RUN_ID"], rank=rank, attempt=0)
    log.world = world
    places = {
        "pod": os.environ["POD_NAME"],
        "node": os.environ["NODE_NAME"],
        "local_rank": int(os.environ["LOCAL_RANK"]),
    }
    log.record("start", **places, pid=os.getpid(), device="cpu", backend="none", standin="nvidia", workload="chatter")
    log.record("step", step=1, loss=2.0)
    for _ in range(int(args.mebibytes * 2**20 / len(NOISE))):
        os.write(1, NOISE)
    time.sleep(args.seconds)  # stands for the training; nothing here waits for it to be right
    log.record("step", step=2, loss=1.0)
    figures = {"samples": 10, "total_time": 1.0, "throughput": 10.0, "epoch_time": 1.0}
    log.people(**figures)
    log.end(steps=2, warmup_steps=0, **figures, loss_first=2.0, loss_last=1.0, fingerprint="0" * 64)


if __name__ == "__main__":
    main()
