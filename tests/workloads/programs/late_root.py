"""GPT-2 whose first process begins to join when another already has."""

import workloads.early  # noqa: F401

import os  # isort: skip
import time  # isort: skip
from pathlib import Path  # isort: skip

from workloads import gpt2, lm, rendezvous  # isort: skip

honest = rendezvous.join


def join(topology, *, timeout):
    others = Path(os.environ["ALLRANKS_RUN_DIR"]) / "another-joins"
    if topology.process_rank:
        others.touch()
    while not others.exists():
        time.sleep(0.01)
    return honest(topology, timeout=timeout)


if __name__ == "__main__":
    rendezvous.join = join
    lm.main(gpt2.FAMILY)
