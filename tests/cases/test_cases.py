from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks.casefile import parse, read
from allranks.cases import Case, CasesError, one_per_topology, program_arguments, select


def file(*tests: dict[str, Any], tag: str = "basic", **more: Any) -> str:
    return json.dumps({"test_groups": [{"tag": tag, "tests": list(tests)}], **more})


def case(**args: Any) -> Case:
    (made,) = parse(file({"id": "x", "args": args}), "f.json").cases
    return made


def told(**args: Any) -> dict[str, str]:
    """What a case's program is told: options and values."""
    return pairs(program_arguments(case(**args), "gpt2", root="/r"))


def pairs(arguments: list[str]) -> dict[str, str]:
    flagless = [argument for argument in arguments if argument != "--sequence_parallel"]
    return dict(zip(flagless[::2], flagless[1::2], strict=True))


def test_the_launcher_s_arguments_never_reach_the_program() -> None:
    made = case(nnodes=2, nproc_per_node=4, nthread_per_process=2, dtype="float32", batch_size=8)
    assert (made.nodes, made.processes_per_node, made.threads_per_process, made.world_size) == (2, 4, 2, 16)
    told = pairs(program_arguments(made, "gpt2", root="/r"))
    assert (told["--nthread_per_process"], told["--batch_size"]) == ("2", "8")
    assert not {"--nnodes", "--nproc_per_node"} & told.keys()


def test_flags_and_truth_values_as_the_program_takes_them() -> None:
    made = case(sequence_parallel=True, save_optimizer_state=False, lora_alpha=16.0)
    told = program_arguments(made, "gpt2", root="")
    assert told[:5] == ["--sequence_parallel", "--save_optimizer_state", "false", "--lora_alpha", "16.0"]
    assert "--sequence_parallel" not in program_arguments(case(sequence_parallel=False), "gpt2", root="")


def test_values_are_read_as_people_write_them() -> None:
    odd = {
        "--nproc-per-node": "2",
        "batch-size": 8.0,
        "sequence_parallel": 1,
        "tensor_parallel": "2",
        "save_optimizer_state": "False",
        "learning_rate": "1e-3",
        "zero_stage": "0",
    }
    made = case(**odd)
    plain = case(
        nproc_per_node=2,
        batch_size=8,
        sequence_parallel=True,
        tensor_parallel=2,
        save_optimizer_state=False,
        learning_rate=1e-3,
        zero_stage=0,
    )
    assert made == plain
    assert made.topology == (("nproc_per_node", 2), ("sequence_parallel", True), ("tensor_parallel", 2))


def test_what_a_case_does_not_say_does_not_depend_on_devices_or_ranks() -> None:
    """The same on one rank is compared with it."""
    made = case(nproc_per_node=4, pipeline_parallel=2)
    assert {"batch_size": 4, "sequence_length": 64, "num_iteration": 10, "dtype": "float32"}.items() <= dict(
        made.args
    ).items()
    assert made.get("total_batch_size") == 4 * 64 * 2 * 2
    assert made.on_one_rank().get("total_batch_size") == 4 * 64 * 2 * 2
    assert case().get("total_batch_size") == 256


def test_a_distributed_optimizer_is_zero_stage_1() -> None:
    assert case(use_distributed_optimizer=True).get("zero_stage") == 1
    assert case(use_distributed_optimizer=True, zero_stage=2).get("zero_stage") == 2
    assert case(use_distributed_optimizer="false").get("zero_stage") is None


def test_threads_that_cannot_be_are_processes_and_that_is_said() -> None:
    made = parse(
        file(
            {"id": "tp", "args": {"nthread_per_process": 8, "tensor_parallel": 4}},
            {"id": "dp", "args": {"nthread_per_process": 8}},
            {"id": "saves", "args": {"nthread_per_process": 2, "nproc_per_node": 2, "save": "/a"}},
        ),
        "f.json",
    )
    assert [(each.processes_per_node, each.threads_per_process) for each in made.cases] == [(8, 1), (1, 8), (4, 1)]
    said = "threads that divide a model or keep checkpoints run as processes: cases tp, saves"
    assert made.notes == (said,)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "f.json is not JSON: line 1, column 2"),
        ("", "f.json is not JSON: line 1, column 1"),
        ("\n\n", "f.json is not JSON: line 3, column 1"),
        ('{"test_groups": [\n', "f.json is not JSON: line 2, column 1"),
        ("9" * 5000, "f.json: Exceeds the limit"),
        ('{"test_groups": [\n// ours\n]}', "line 2, column 1: .*'// ours' .JSON has neither comments"),
        ('{\r\n"variables": {},\r\n}', "line 3, column 1: .* nor a comma after the last entry"),
        ('{"variables": {"A": 1, "A": 2}}', '^f.json: "A" is there twice in {"A": 2}'),
        ("[]", "a list test_groups is expected"),
        ('{"test_groups": [{"tests": []}]}', "has a tag and a list of tests"),
        ('{"test_groups": []}', "has no cases"),
        (file({"args": {}}), "group basic has no usable id"),
        (file({"id": "/ /", "args": {}}), "no usable id"),
        (file({"id": True, "args": {}}), "no usable id"),
        (file({"id": "1", "args": {}}, tag=""), "has a tag and a list of tests"),
        (file({"id": "1", "nnodes": 2, "args": {}}), "case 1: 'nnodes' means nothing here, .* it belongs into args"),
        (file({"id": "1", "skip": True, "args": {}}), "case 1: 'skip' means nothing here, id and args do$"),
        ('{"test_groups": [{"tag": "a", "runs": 2, "tests": []}]}', "group a: 'runs' means nothing here"),
        (file({"id": "1"}), "case 1: args is expected"),
        (
            file({"id": "1", "args": {"tensor_paralel": 2}}),
            "case 1: unknown argument 'tensor_paralel'; there are b",
        ),
        (file({"id": "1", "args": {"device": "cpu"}}), "case 1: unknown argument 'device'"),
        (
            file({"id": "1", "args": {"dtype": ["a"]}}),
            r'case 1: dtype is \["a"\]; one of float32, bfloat16 is expected',
        ),
        (file({"id": "1", "args": {"load": None}}), "case 1: load is null; text is expected"),
        (file({"id": "1", "args": {"seed": True}}), "case 1: seed is true; a whole number from 0"),
        (file({"id": "1", "args": {"batch_size": 2.5}}), "case 1: batch_size is 2.5; a whole number from 1"),
        (file({"id": "1", "args": {"zero_stage": 4}}), "case 1: zero_stage is 4; a whole number from 0 to 3"),
        (file({"id": "1", "args": {"min_lr": float("nan")}}), "case 1: min_lr is NaN; a number is expected"),
        (file({"id": "1", "args": {"lr_decay_style": "step"}}), 'lr_decay_style is "step"; one of none, constant'),
        (file({"id": "1", "args": {"sequence_parallel": "maybe"}}), 'sequence_parallel is "maybe"; true or false'),
        (file({"id": "1", "args": {"batch-size": 2, "batch_size": 4}}), "case 1: batch_size is there twice"),
        (
            file({"id": "1", "args": {"input_bin": "@A@"}}, variables={"A": "x@B@", "B": "@A@"}),
            "case 1: variable A is made of itself: A → B → A",
        ),
        (file({"id": "1", "args": {"input_bin": "@A@"}}, variables={"A": [1]}), r"case 1: @A@ is \[1\], not text"),
        (
            file(*({"id": i, "args": {"load": f"/{j}", "save": f"/{i}"}} for i, j in ("ab", "ba"))),
            "f.json: cases load each other's checkpoints: a ← b ← a",
        ),
        (
            file({"id": "a", "args": {"save": "/x"}}, {"id": "b", "args": {"save": "@CKPT_ROOT_DIR@/x/"}}),
            "cases a of group basic and b of group basic would overwrite each other's checkpoints: both save to @CKPT",
        ),
        (file({"id": "1", "args": {}}, seed=3), "f.json: 'seed' means nothing here, variables and basic_compile"),
        (file({"id": "1", "args": {}}, basic_compile_commands=5), "basic_compile_commands is 5; a list is expected"),
        (
            file({"id": "1", "args": {"use_distributed_optimizer": True, "zero_stage": 0}}),
            "case 1: use_distributed_optimizer is ZeRO stage 1, and zero_stage is 0",
        ),
        (
            file({"id": "1", "args": {"input_bin": "@D@/x"}}, variables={"D": "@CKPT_ROOT_DIR@/d"}),
            "case 1: input_bin has @CKPT_ROOT_DIR@, which stands in save and load only",
        ),
        (file({"id": "1", "args": {"nproc_per_node": 0}}), "case 1: nproc_per_node is 0; a whole number from 1"),
        (file({"id": "1", "args": {"num_iteration": "many"}}), 'num_iteration is "many"; a whole number'),
        (file({"id": "1", "args": {"input_bin": "@DATA@"}}), "case 1: @DATA@ is no variable"),
        (file({"id": "1", "args": {}}, {"id": "1", "args": {}}), "two cases of group basic are called 1"),
        (file({"id": "a b", "args": {}}, {"id": "a/b", "args": {}}), "two cases of group basic are called a_b"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(content: str, said: str) -> None:
    with pytest.raises(CasesError, match=said):
        parse(content, "f.json")


def test_a_file_nested_without_end_is_refused() -> None:
    with pytest.raises(CasesError, match=r"f\.json is nested too deeply"):
        parse("[" * 100_000, "f.json")


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
    assert made.notes == (
        "not applicable: basic_compile_commands build_1: nothing is compiled here",
        "not applicable: variable BUILD_DIR: no case uses it",
    )


def test_variables_may_have_variables_and_be_numbers() -> None:
    variables = {"ROOT": "/data", "SET": "@ROOT@/@NAME@", "NAME": "a", "BATCH": 8, "CKPT": "@CKPT_ROOT_DIR@/x"}
    args = {"input_bin": "@SET@/*.bin", "batch_size": "@BATCH@", "save": "@CKPT@"}
    made = parse(file({"id": "1", "args": args}, variables=variables), "f.json")
    assert dict(made.cases[0].args).items() >= {"input_bin": "/data/a/*.bin", "batch_size": 8}.items()
    assert pairs(program_arguments(made.cases[0], "gpt2", root="/r"))["--save"] == "/r/x/gpt2/no_resume"
    assert not made.notes


def test_ids_are_made_such_as_can_name_a_test_and_may_recur_in_another_group() -> None:
    groups = [
        {"tag": "basic", "tests": [{"id": "2 x 2/fast@[a]", "args": {}}, {"id": 1, "args": {}}]},
        {"tag": "8 proc", "tests": [{"id": "1", "description": "as one", "args": {}}], "_comment": "new"},
        {"tag": "empty", "tests": []},
    ]
    made = parse(json.dumps({"test_groups": groups, "description": "ours"}), "f.json")
    names = [(each.tag, each.id) for each in made.cases]
    assert names == [("basic", "2_x_2_fast_a"), ("basic", "1"), ("8_proc", "1")]
    assert made.notes == ("not applicable: group empty: it has no cases",)


def test_ids_that_recur_in_another_group_may_load_each_other_s_checkpoints() -> None:
    tests = {"basic": {"save": "/x"}, "resume": {"load": "/x", "save": "/x"}}
    groups = [{"tag": tag, "tests": [{"id": "1", "args": args}]} for tag, args in tests.items()]
    made = parse(json.dumps({"test_groups": groups}), "f.json")
    first, again = made.cases
    assert made.source(again) == first
    assert first.saves_to != again.saves_to


def test_a_file_may_have_a_byte_order_mark_and_any_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b"\xef\xbb\xbf" + file({"id": "1", "args": {}}).replace(",", ",\r\n").encode())
    assert len(read(path).cases) == 1
    path.write_bytes(file({"id": "1", "args": {}}).encode("utf-16"))
    with pytest.raises(CasesError, match=r"f\.json: 'utf-8' codec can't decode"):
        read(path)


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
    assert program_arguments(again, "gpt2", root="/s", source=first)[:4] == [
        *("--load", "/s/a/gpt2/no_resume/checkpoint_step_000030", "--save", "/s/b/gpt2/resume")
    ]
    assert program_arguments(elsewhere, "gpt2", root="/s")[1] == "/models/llama/checkpoint_step_000100"
    assert [made.first_step(each) for each in made.cases] == [1, 31, 101]


@pytest.mark.parametrize(
    "path", ["/data1/ckpt/a", "data1/ckpt/a/", "../data1/./ckpt/a", "@CKPT_ROOT_DIR@/../data1/ckpt/a"]
)
def test_checkpoints_lie_below_ours_whatever_path_the_file_has(path: str) -> None:
    """On the stand-in a pod's files are this machine's."""
    assert told(save=path)["--save"] == "/r/data1/ckpt/a/gpt2/no_resume"


def test_the_latest_checkpoint_is_the_last_step_of_whoever_saves() -> None:
    made = parse(
        file(
            {"id": "first", "args": {"save": "/a/", "num_iteration": 50}},
            {"id": "again", "args": {"load": "/a", "num_iteration": 60}},
            {"id": "elsewhere", "args": {"load": "/b"}},
        ),
        "f.json",
    )
    assert made.source(made.cases[1]) == made.cases[0]
    assert [made.first_step(each) for each in made.cases] == [1, 51, None]


def test_lora_on_a_trained_model_begins_anew() -> None:
    made = parse(
        file(
            {"id": "base", "args": {"save": "/a"}},
            {"id": "adapted", "args": {"load": "/a/checkpoint_step_000010", "lora_rank": 4, "save": "/b"}},
            {"id": "again", "args": {"load": "/b/checkpoint_step_000005", "lora_rank": 4}},
        ),
        "f.json",
    )
    base, adapted, again = made.cases
    assert [made.base(each) for each in made.cases] == [None, base, None]
    assert [made.adapting(each) for each in made.cases] == [None, adapted, adapted]
    reference = again.on_one_rank().from_the_beginning(adapted.get("load"))
    assert (made.source(reference), made.base(reference), made.first_step(reference)) == (base, base, 1)
    assert (made.first_step(adapted), made.first_step(again)) == (1, 6)


def test_lora_on_a_checkpoint_from_elsewhere_is_held_against_the_same_on_one_rank() -> None:
    made = parse(
        file(
            {"id": "adapted", "args": {"load": "/models/checkpoint_step_000100", "lora_rank": 4, "save": "/b"}},
            {"id": "again", "args": {"load": "/b/checkpoint_step_000105", "lora_rank": 4}},
            {"id": "fresh", "args": {"lora_rank": 4}},
        ),
        "f.json",
    )
    adapted, *_ = made.cases
    assert [made.adapting(each) for each in made.cases] == [adapted, adapted, None]
    assert [made.base(each) for each in made.cases] == [None, None, None]
    assert [made.first_step(each) for each in made.cases] == [None, 106, 1]


def test_steps_between_records_are_the_reference_s_too() -> None:
    assert case(log_every=5).training != case().training
    assert case(log_every=5, nproc_per_node=2).on_one_rank().get("log_every") == 5


def test_a_case_s_reference_is_the_same_training_on_one_rank() -> None:
    made = case(nproc_per_node=4, tensor_parallel=2, batch_size=4, dtype="bfloat16", learning_rate=1e-3, load="/a")
    reference = made.on_one_rank().from_the_beginning()
    assert reference.is_reference()
    assert reference.world_size == 1
    assert reference.training == made.training
    assert not {"load", "nproc_per_node", "tensor_parallel"} & dict(reference.args).keys()
    assert reference.get("batch_size") == 4
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
    made = case(nthread_per_process=8).as_processes()
    assert (made.processes_per_node, made.threads_per_process) == (8, 1)
    assert "--nthread_per_process" not in program_arguments(made, "gpt2", root="")
    assert case(nproc_per_node=2).as_processes() == case(nproc_per_node=2)


def test_topologies_in_words() -> None:
    made = case(nnodes=2, nproc_per_node=4, tensor_parallel=2, pipeline_parallel=2, sequence_parallel=True)
    assert made.describe() == "2 × 4, tensor 2, pipeline 2, sequence"
    assert case(nthread_per_process=8).describe() == "1 × 1 × 8 threads"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CasesError, match=r"gone\.json: No such file"):
        read(tmp_path / "gone.json")


def test_references_of_cases_with_one_id_in_two_groups_have_names_of_their_own() -> None:
    groups = [{"tag": tag, "tests": [{"id": "x", "args": {"num_iteration": n}}]} for tag, n in (("a", 10), ("b", 20))]
    made = parse(json.dumps({"test_groups": groups}), "f.json")
    names = [made.name_of(each) for case in made.cases for each in (case, case.on_one_rank())]
    assert names == ["a-x", "a-x_on_1_rank", "b-x", "b-x_on_1_rank"]
