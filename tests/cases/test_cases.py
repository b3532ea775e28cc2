from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks.cases import Case, CasesError, one_per_topology, parse, program_arguments, read, select

ROOT = Path(__file__).parents[2]


def file(*tests: dict[str, Any], tag: str = "basic", **more: Any) -> str:
    return json.dumps({"test_groups": [{"tag": tag, "tests": list(tests)}], **more})


def case(**args: Any) -> Case:
    (made,) = parse(file({"id": "x", "args": args}), "f.json").cases
    return made


def test_the_launcher_s_arguments_never_reach_the_program() -> None:
    made = case(nnodes=2, nproc_per_node=4, nthread_per_process=2, dtype="float32", batch_size=8)
    assert (made.nodes, made.processes_per_node, made.threads_per_process, made.world_size) == (2, 4, 2, 16)
    told = program_arguments(made, "gpt2", root="/r")
    assert told == ["--nthread_per_process", "2", "--dtype", "float32", "--batch_size", "8"]


def test_flags_and_truth_values_as_the_program_takes_them() -> None:
    told = program_arguments(case(sequence_parallel=True, save_optimizer_state=False, lora_alpha=16.0), "gpt2", root="")
    assert told == ["--sequence_parallel", "--save_optimizer_state", "false", "--lora_alpha", "16.0"]
    assert program_arguments(case(sequence_parallel=False), "gpt2", root="") == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "f.json is not JSON"),
        ("[]", "a list test_groups is expected"),
        ('{"test_groups": [{"tests": []}]}', "has a tag and a list of tests"),
        ('{"test_groups": []}', "has no cases"),
        (file({"args": {}}), "group basic has no usable id"),
        (file({"id": "a b", "args": {}}), "no usable id"),
        (file({"id": "1"}), "case 1: args is expected"),
        (
            file({"id": "1", "args": {"tensor_paralel": 2}}),
            "case 1: unknown argument 'tensor_paralel'; there are b",
        ),
        (file({"id": "1", "args": {"device": "cpu"}}), "case 1: unknown argument 'device'"),
        (file({"id": "1", "args": {"dtype": ["a"]}}), r'case 1: dtype is \["a"\]; text, a number or a truth value'),
        (file({"id": "1", "args": {"nproc_per_node": 0}}), "case 1: nproc_per_node is 0; a whole number from 1"),
        (file({"id": "1", "args": {"num_iteration": "many"}}), 'num_iteration is "many"; a whole number'),
        (file({"id": "1", "args": {"input_bin": "@DATA@"}}), "case 1: @DATA@ is no variable"),
        (file({"id": "1", "args": {}}, {"id": "1", "args": {}}), "two cases are called 1"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(content: str, said: str) -> None:
    with pytest.raises(CasesError, match=said):
        parse(content, "f.json")


def test_variables_are_substituted_and_what_means_nothing_here_is_listed() -> None:
    made = parse(
        file(
            {"id": "1", "args": {"input_bin": "@DATA@/train.bin", "save": "@CKPT_ROOT_DIR@/a"}},
            variables={"DATA": "/d", "BUILD_DIR": "../build", "CKPT_ROOT_DIR": "/data1"},
            basic_compile_commands=[{"id": "build_1", "cmd": "cmake .."}],
        ),
        "f.json",
    )
    assert made.cases[0].get("input_bin") == "/d/train.bin"
    assert made.not_applicable == (
        "basic_compile_commands build_1: nothing is compiled here",
        "variable BUILD_DIR: no case uses it",
    )


def test_checkpoints_are_apart_by_model_and_mode_and_found_again() -> None:
    made = parse(
        file(
            {"id": "first", "args": {"save": "@CKPT_ROOT_DIR@/a", "num_iteration": 50}},
            {"id": "again", "args": {"load": "@CKPT_ROOT_DIR@/a/checkpoint_step_000030", "save": "@CKPT_ROOT_DIR@/b"}},
            {"id": "elsewhere", "args": {"load": "/models/llama/checkpoint_step_000100"}},
        ),
        "f.json",
    )
    first, again, elsewhere = made.cases
    assert made.source(again) == first
    assert made.source(first) is None
    assert made.source(elsewhere) is None
    assert program_arguments(first, "gpt2", root="/s")[:2] == ["--save", "/s/a/gpt2/no_resume"]
    assert program_arguments(again, "gpt2", root="/s", source=first) == [
        *("--load", "/s/a/gpt2/no_resume/checkpoint_step_000030", "--save", "/s/b/gpt2/resume")
    ]
    assert program_arguments(elsewhere, "gpt2", root="/s")[1] == "/models/llama/checkpoint_step_000100"
    assert (first.first_step, again.first_step, elsewhere.first_step) == (1, 31, 101)


def test_a_case_s_reference_is_the_same_training_on_one_rank() -> None:
    made = case(nproc_per_node=4, tensor_parallel=2, batch_size=4, dtype="bfloat16", learning_rate=1e-3, load="/a")
    reference = made.reference()
    assert reference.is_reference()
    assert reference.world_size == 1
    assert reference.training == made.training
    assert dict(reference.args) == {"batch_size": 4, "dtype": "bfloat16", "learning_rate": 1e-3}
    assert not made.is_reference()
    assert case(tensor_parallel=1, zero_stage=0).is_reference()


def test_one_case_of_each_topology() -> None:
    made = parse(
        file(
            {"id": "bf16", "args": {"dtype": "bfloat16"}},
            {"id": "one", "args": {}},
            {"id": "also-one", "args": {"batch_size": 8}},
            {"id": "two", "args": {"nproc_per_node": 2}},
            {"id": "lora", "args": {"nproc_per_node": 3, "lora_rank": 4}},
            {"id": "eight", "args": {"nproc_per_node": 8}},
            {"id": "tensor", "args": {"nproc_per_node": 2, "tensor_parallel": 2}},
        ),
        "f.json",
    )
    assert [each.id for each in one_per_topology(made.cases)] == ["one", "two", "tensor"]


def test_tags_choose_and_unknown_ones_are_refused() -> None:
    groups = [{"tag": tag, "tests": [{"id": f"{tag}1", "args": {}}]} for tag in ("basic", "zero")]
    cases = parse(json.dumps({"test_groups": groups}), "f.json").cases
    assert [each.id for each in select(cases, ["zero"])] == ["zero1"]
    assert len(select(cases, ["all"])) == 2
    with pytest.raises(CasesError, match="--tags 9_proc: no group has this tag; there are basic, zero, and all"):
        select(cases, ["9_proc"])


def test_threads_can_be_made_processes() -> None:
    made = case(nthread_per_process=8, tensor_parallel=4).as_processes()
    assert (made.processes_per_node, made.threads_per_process) == (8, 1)
    assert program_arguments(made, "gpt2", root="") == ["--tensor_parallel", "4"]
    assert case(nproc_per_node=2).as_processes() == case(nproc_per_node=2)


def test_topologies_in_words() -> None:
    made = case(nnodes=2, nproc_per_node=4, tensor_parallel=2, pipeline_parallel=2, sequence_parallel=True)
    assert made.describe() == "2 × 4, tensor 2, pipeline 2, sequence"
    assert case(nthread_per_process=8).describe() == "1 × 1 × 8 threads"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CasesError, match=r"gone\.json: No such file"):
        read(tmp_path / "gone.json")
