"""Training cases from JSON files: groups of cases, each a name and the arguments of one training. Pure.

{"variables": {"CKPT_ROOT_DIR": "…"},
 "test_groups": [{"tag": "basic", "tests": [{"id": "2x2", "args": {"nnodes": 2, "nproc_per_node": 2, …}}]}]}

`@NAME@` in a value stands for a variable. `nnodes` and `nproc_per_node` are the launcher's and never reach the program;
every other argument is the program's. An argument that is neither is refused: a case that silently trains something
else than it says is worse than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

Value = str | int | float | bool

CHECKPOINTS = "CKPT_ROOT_DIR"
"""The variable whose value is ours: a case's checkpoints lie where its pods can reach them."""

_LAUNCHER = ("nnodes", "nproc_per_node")
_TOPOLOGY = (
    "nthread_per_process",
    "batch_size",
    "tensor_parallel",
    "sequence_parallel",
    "pipeline_parallel",
    "virtual_pipeline_parallel",
    "zero_stage",
)
"""Who computes what: none of these may change the losses. (`batch_size` is the micro batch, in sequences.)"""
_KEEPING = ("save", "save_interval", "load", "max_checkpoint_keep", "save_optimizer_state", "log_every", "warmup_steps")
_TRAINING = (
    "dtype",
    "sequence_length",
    "total_batch_size",
    "num_iteration",
    "learning_rate",
    "lr_decay_style",
    "lr_warmup_iters",
    "lr_decay_iters",
    "min_lr",
    "lora_rank",
    "lora_alpha",
    "lora_target_modules",
    "input_bin",
    "seed",
    "size",
    "model",
)
_KNOWN = (*_LAUNCHER, *_TOPOLOGY, *_KEEPING, *_TRAINING)
_FLAGS = ("sequence_parallel",)
_WHOLE = ("nnodes", "nproc_per_node", "nthread_per_process", *_TOPOLOGY[1:3], *_TOPOLOGY[4:], "num_iteration")
_STEP = re.compile(r"checkpoint_step_(\d+)")
_VARIABLE = re.compile(r"@(\w+)@")


class CasesError(ValueError):
    """A case file that cannot be used; the message names the file, the case, and what would be right."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training: what is trained, and on how many ranks."""

    tag: str
    id: str
    args: tuple[tuple[str, Value], ...]
    """As the file has them, variables substituted, in its order."""

    def get(self, name: str, default: Value | None = None) -> Value | None:
        return dict(self.args).get(name, default)

    def _number(self, name: str) -> int:
        return int(dict(self.args).get(name, 1))

    @property
    def nodes(self) -> int:
        return self._number("nnodes")

    @property
    def processes_per_node(self) -> int:
        return self._number("nproc_per_node")

    @property
    def threads_per_process(self) -> int:
        return self._number("nthread_per_process")

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node * self.threads_per_process

    @property
    def steps(self) -> int | None:
        """Planned training steps; None: the program's default."""
        given = self.get("num_iteration")
        return None if given is None else int(given)

    @property
    def dtype(self) -> str:
        return str(self.get("dtype", "float32"))

    @property
    def first_step(self) -> int:
        """The first step that it trains: 1, or the one after the checkpoint whose path says its step."""
        match = _STEP.fullmatch(PurePosixPath(str(self.get("load", ""))).name)
        return int(match[1]) + 1 if match else 1

    @property
    def topology(self) -> tuple[tuple[str, Value], ...]:
        """What makes it differ from the training on one rank, sorted; empty for that itself."""
        relevant = (*_LAUNCHER, *_TOPOLOGY)
        neutral = dict.fromkeys(relevant, 1) | {"sequence_parallel": False, "zero_stage": 0}
        told = ((n, v) for n, v in self.args if n in relevant and n != "batch_size" and v != neutral[n])
        return tuple(sorted(told))

    @property
    def training(self) -> tuple[tuple[str, Value], ...]:
        """What is trained, sorted: cases that agree in it have the same losses, on whatever topology."""
        return tuple(sorted((name, value) for name, value in self.args if name in _TRAINING))

    def reference(self) -> Case:
        """The same training on one rank, uninterrupted: what the losses of this case are held against."""
        kept = tuple((n, v) for n, v in self.args if n in _TRAINING or n in ("batch_size", "log_every", "warmup_steps"))
        return Case(self.tag, f"{self.id}_on_1_rank", kept)

    def is_reference(self) -> bool:
        return not self.topology and "load" not in dict(self.args)

    def as_processes(self) -> Case:
        """With a process of its own for each of its threads."""
        count = self.processes_per_node * self.threads_per_process
        others = tuple((n, v) for n, v in self.args if n not in ("nproc_per_node", "nthread_per_process"))
        return replace(self, args=(("nproc_per_node", count), *others)) if self.threads_per_process > 1 else self

    def describe(self) -> str:
        """The topology as people write it: `2 × 2`, `1 × 4, tensor 2, zero 1`."""
        shape = f"{self.nodes} × {self.processes_per_node}"
        shape += f" × {self.threads_per_process} threads" if self.threads_per_process > 1 else ""
        words = {
            "tensor_parallel": "tensor",
            "pipeline_parallel": "pipeline",
            "virtual_pipeline_parallel": "virtual",
            "zero_stage": "zero",
        }
        told = [f"{word} {self.get(name)}" for name, word in words.items() if dict(self.topology).get(name)]
        return ", ".join([shape, *told, *(["sequence"] if self.get("sequence_parallel") else [])])


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A file's cases."""

    name: str
    cases: tuple[Case, ...]
    not_applicable: tuple[str, ...] = ()
    """What it has that means nothing here: commands that build another program, variables that no case uses."""

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case.tag for case in self.cases))

    def source(self, case: Case) -> Case | None:
        """The case whose checkpoint this one loads; None when it loads none, or one from elsewhere."""
        if case.get("load") is None:
            return None
        wanted = _directory(str(case.get("load")))
        return next((c for c in self.cases if c is not case and _directory(str(c.get("save", ""))) == wanted), None)


def read(path: Path) -> CaseFile:
    """Raises CasesError."""
    try:
        return parse(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise CasesError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def parse(text: str, name: str) -> CaseFile:
    """Raises CasesError for anything that is not a case file, and for any argument that is not known."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise CasesError(f"{name} is not JSON: {error}") from error
    tests = list(_tests(data, name))
    variables = _mapping(data, "variables", name, required=False)
    used: set[str] = set()
    cases: list[Case] = []
    for tag, test in tests:
        case = _case(tag, test, variables, used, name)
        if any(case.id == other.id for other in cases):
            raise CasesError(f"{name}: two cases are called {case.id}")
        cases.append(case)
    if not cases:
        raise CasesError(f"{name} has no cases")
    idle = [f"variable {variable}: no case uses it" for variable in variables if variable not in used]
    commands = data.get("basic_compile_commands") or ()
    built = [f"basic_compile_commands {_named(command)}: nothing is compiled here" for command in commands]
    return CaseFile(name, tuple(cases), (*built, *idle))


def _tests(data: Any, name: str) -> Iterator[tuple[str, Any]]:
    groups = data.get("test_groups") if isinstance(data, dict) else None
    if not isinstance(groups, list):
        raise CasesError(f"{name}: a list test_groups is expected, of groups with a tag and tests")
    for group in groups:
        tag = group.get("tag") if isinstance(group, dict) else None
        tests = group.get("tests") if isinstance(group, dict) else None
        if not isinstance(tag, str) or not tag or not isinstance(tests, list):
            raise CasesError(f"{name}: each of test_groups has a tag and a list of tests, not {json.dumps(group)[:80]}")
        for test in tests:
            yield tag, test


def _case(tag: str, test: Any, variables: Mapping[str, Any], used: set[str], name: str) -> Case:
    ident = test.get("id") if isinstance(test, dict) else None
    if not isinstance(ident, str | int) or not re.fullmatch(r"[\w.+-]+", str(ident)):
        raise CasesError(f"{name}: a test of group {tag} has no usable id: {json.dumps(test)[:80]}")
    where = f"{name}, case {ident}"
    args = {}
    for argument, value in _mapping(test, "args", where).items():
        plain = argument.removeprefix("--").replace("-", "_")
        if plain not in _KNOWN:
            raise CasesError(f"{where}: unknown argument {argument!r}; there are {', '.join(sorted(_KNOWN))}")
        if not isinstance(value, str | int | float):
            raise CasesError(f"{where}: {argument} is {json.dumps(value)}; text, a number or a truth value is expected")
        args[plain] = _substituted(value, variables, used, where) if isinstance(value, str) else value
    for argument in _WHOLE:
        least = 0 if argument == "zero_stage" else 1
        number = args.get(argument, least)
        if isinstance(number, bool) or not re.fullmatch(r"\d+", str(number)) or int(number) < least:
            raise CasesError(f"{where}: {argument} is {json.dumps(number)}; a whole number from {least} is expected")
        if argument in args:
            args[argument] = int(number)
    return Case(tag, str(ident), tuple(args.items()))


def _substituted(text: str, variables: Mapping[str, Any], used: set[str], where: str) -> str:
    def value(match: re.Match[str]) -> str:
        used.add(match[1])
        if match[1] == CHECKPOINTS:
            return match[0]  # known only where the run is planned
        if match[1] not in variables:
            raise CasesError(f"{where}: {match[0]} is no variable of this file; there are {', '.join(variables)}")
        return str(variables[match[1]])

    return _VARIABLE.sub(value, text)


def _mapping(data: Any, key: str, where: str, *, required: bool = True) -> Mapping[str, Any]:
    found = data.get(key, None if required else {}) if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise CasesError(f"{where}: {key} is expected, names with values")
    return found


def _named(command: Any) -> str:
    return str(command.get("id", "")) if isinstance(command, dict) else str(command)


# Choosing ------------------------------------------------------------------------------------------------------------


def select(cases: Iterable[Case], tags: Sequence[str]) -> list[Case]:
    """The cases of the given tags (`all`: every case), in order. Raises CasesError for a tag that no case has."""
    cases = list(cases)
    known = dict.fromkeys(case.tag for case in cases)
    for tag in tags:
        if tag != "all" and tag not in known:
            raise CasesError(f"--tags {tag}: no group has this tag; there are {', '.join(known)}, and all")
    return [case for case in cases if "all" in tags or case.tag in tags]


def one_per_topology(cases: Iterable[Case], *, ranks: int = 4, limit: int = 8) -> list[Case]:
    """The first case of each distinct topology of at most so many ranks: float32, neither LoRA nor checkpoints.
    Of more than `limit` the first."""
    chosen: dict[tuple[tuple[str, Value], ...], Case] = {}
    for case in cases:
        special = any(name in ("load", "save", "lora_rank") for name, _ in case.args)
        if case.dtype == "float32" and not special and case.world_size <= ranks:
            chosen.setdefault(case.topology, case)
    return list(chosen.values())[:limit]


# For the program -----------------------------------------------------------------------------------------------------


def program_arguments(case: Case, model: str, *, root: str, source: Case | None = None) -> list[str]:
    """The program's arguments, the launcher's left out.

    Checkpoints lie in `root`/…/MODEL/MODE, MODE being `resume` for a case that loads and `no_resume` for one that does
    not, so that no case overwrites another's. `source` is the case whose checkpoint is loaded, if it is one of ours.
    """
    told: list[str] = []
    for name, value in case.args:
        if name in _LAUNCHER or (name in _FLAGS and not _true(value)):
            continue
        told.append(f"--{name}")
        if name in ("save", "load"):
            owner = case if name == "save" else source
            told.append(_namespaced(str(value), owner, model, root))
        elif name not in _FLAGS:
            told.append(str(value).lower() if isinstance(value, bool) else str(value))
    return told


def _namespaced(path: str, owner: Case | None, model: str, root: str) -> str:
    step = PurePosixPath(path).name
    directory = _directory(path)
    if owner is not None:
        directory = f"{directory}/{model}/{'resume' if owner.get('load') is not None else 'no_resume'}"
    placed = directory.replace(f"@{CHECKPOINTS}@", root)
    return f"{placed}/{step}" if _STEP.fullmatch(step) else placed


def _directory(path: str) -> str:
    """A checkpoint path without the step that it may name."""
    path = path.rstrip("/")
    return str(PurePosixPath(path).parent) if _STEP.fullmatch(PurePosixPath(path).name) else path


def _true(value: Value) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in ("true", "1", "yes")
