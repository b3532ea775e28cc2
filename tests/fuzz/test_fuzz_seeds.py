"""The fuzz target itself, over real-shaped logs and damage made from them: what `make fuzz` starts from."""

# ruff: noqa: E501

import random

import pytest

from tests.fuzz.fuzz_decoder import one_input
from tests.ledger import samples as s
from tests.ledger.speech import log, world_lines

SEEDS = {
    "records": log(*world_lines()),
    "neuron": s.neuron(0).encode(),
    "seed": s.mpirun({0: s.seed(4), 1: s.seed(4)}).encode(),
    "trainer": s.trainer().encode(),
    "megatron": s.megatron(4, 3).encode(),
    "nemo": (s.nemo(3) + s.nemo_bar(3)).encode(),
    "titan": s.titan(3).encode(),
    "lightning": s.lightning(4, 1).encode(),
    "deepspeed": s.deepspeed().encode(),
    "nccl": s.nccl(range(4)).encode(),
    "mlperf": s.mllog().encode(),
    "docker": b'{"log":"[Rank 3] - local_samples=78.1\\n","stream":"stdout","time":"x"}\n' * 3,
}


@pytest.mark.parametrize("name", SEEDS)
def test_damaged_logs_are_read_in_bounded_time(name: str):
    chance = random.Random(name)
    for _ in range(12):
        data = bytearray(SEEDS[name])
        for _ in range(chance.randrange(12)):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    del data[at : at + chance.randrange(40)]
                case 2:
                    data[at:at] = data[: chance.randrange(60)]
                case _:
                    data[at:at] = bytes([chance.choice(b"\n\r\0\x1b\"'{[(| ")]) * chance.randrange(1, 30)
        one_input(bytes([chance.randrange(256)]) + bytes(data))


@pytest.mark.parametrize(
    "piece",
    [b" ", b"[1,1]<stdout>:", b"[default1]:", b"a=", b"(", b"'", b'"', b"\x1b[", b"step 1/1 | train loss 1", b"{'loss': 1, ",
     b"Training epoch 0, iteration 1/2 | a: 1 |", b"iteration 1/ 2 | elapsed time per iteration (ms): 1 | a |", b", x=1",
     b"Epoch 0: 1%| |1/2 [1, 1it/s, ", b":::MLLOG {", b"[", b"1,111", b"-rank1", b"node-", b"# Rank 0 Pid 1 on "],
)  # fmt: skip
def test_repeated_pieces_do_not_backtrack(piece: bytes):
    one_input(b"\xff" + piece * (60_000 // len(piece)) + b"| train loss reduced_train_loss it/s Pid RANK=\n")
