"""The cases that `make gpu-multi` makes for a host with N GPUs."""

import json
from pathlib import Path

import pytest

from allranks.casefile import read
from benchmarks.gpu_sessions import case_file
from workloads import gpt2, llama3
from workloads.parallel import Layout


@pytest.mark.parametrize("family", [gpt2.FAMILY, llama3.FAMILY], ids=lambda family: family.name)
@pytest.mark.parametrize("gpus", [2, 3, 4, 6, 8, 16])
def test_whatever_the_number_of_gpus_all_of_them_are_used_and_the_work_divides(
    gpus: int, family: llama3.lm.Family, tmp_path: Path
) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(case_file(gpus)))
    alone, *others = read(path).cases
    assert alone.world_size == 1
    assert {case.world_size for case in others} == {gpus}
    assert len({case.training for case in (alone, *others)}) == 1, "one training, divided in several ways"
    for case in others:
        layout = Layout.of(
            0, gpus, tensor=case.get("tensor_parallel") or 1, pipeline=case.get("pipeline_parallel") or 1
        )
        layout.check(family.sizes["tiny"], case.get("sequence_length"))
        micro_batches = layout.micro_batches(
            case.get("total_batch_size"), case.get("batch_size"), case.get("sequence_length")
        )
        assert micro_batches >= layout.pipeline
