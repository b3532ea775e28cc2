"""Case files: JSON with groups of cases, each a name and the arguments of one training. Pure, `read` apart.

{"variables": {"DATA": "/shared/tokens"},
 "test_groups": [{"tag": "basic", "tests": [{"id": "2x2", "args": {"nnodes": 2, "input_bin": "@DATA@/*.bin", …}}]}]}

`@NAME@` in a value stands for a variable. What is not understood is refused: a case that silently trains something
else than it says is worse than none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks.cases import CHECKPOINTS, Case, CaseFile, CasesError, Value

_VARIABLE = re.compile(r"@(\w+)@")
_REMARK = re.compile(r"(?i)[_#/].*|comments?|description|notes?")
"""Names of what people write for people, JSON having no comments."""
_SHOWN = 80


def read(path: Path) -> CaseFile:
    """Raises CasesError."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise CasesError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def parse(text: str, name: str) -> CaseFile:
    """Raises CasesError for anything that is not a case file, and for any argument that is not known."""
    data = _decoded(text, name)
    if not isinstance(data, dict) or not isinstance(data.get("test_groups"), list):
        raise CasesError(f"{name}: a list test_groups is expected, of groups with a tag and tests")
    _only(data, ("variables", "basic_compile_commands", "test_groups"), name)
    variables = _Variables(_mapping(data, "variables", name, required=False))
    cases: list[Case] = []
    notes: list[str] = []
    regrouped: list[str] = []
    for tag, test in _tests(data["test_groups"], name, notes):
        case = _case(tag, test, variables, name)
        if any((case.tag, case.id) == (other.tag, other.id) for other in cases):
            raise CasesError(f"{name}: two cases of group {tag} are called {case.id}")
        cases.append(_possible(case))
        if cases[-1] is not case:
            regrouped.append(case.id)
    if not cases:
        raise CasesError(f"{name} has no cases")
    file = CaseFile(name, tuple(cases))
    _check_saves(file)
    for case in cases:
        _check_loads(file, case)
    if regrouped:
        notes.append(f"threads that divide a model or keep checkpoints run as processes: cases {', '.join(regrouped)}")
    commands = data.get("basic_compile_commands") or []
    if not isinstance(commands, list):
        raise CasesError(f"{name}: basic_compile_commands is {_shown(commands)}; a list is expected")
    notes += [
        f"not applicable: basic_compile_commands {_named(command)}: nothing is compiled here" for command in commands
    ]
    notes += [f"not applicable: variable {variable}: no case uses it" for variable in variables.unused]
    return replace(file, notes=tuple(notes))


def _decoded(text: str, name: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at]))
            raise CasesError(f"{name}: {json.dumps(twice)} is there twice in {_shown(found)}")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        line = text.split("\n")[error.lineno - 1].strip()
        raise CasesError(
            f"{name} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}: {line[:_SHOWN]!r} "
            "(JSON has neither comments nor a comma after the last entry)"
        ) from error
    except RecursionError as error:
        raise CasesError(f"{name} is nested too deeply for a case file") from error
    except CasesError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise CasesError(f"{name}: {error}") from error


def _tests(groups: Sequence[Any], name: str, notes: list[str]) -> Iterator[tuple[str, Any]]:
    for group in groups:
        tag = group.get("tag") if isinstance(group, dict) else None
        tests = group.get("tests") if isinstance(group, dict) else None
        if not isinstance(tag, str) or not _plain(tag) or not isinstance(tests, list):
            raise CasesError(f"{name}: each of test_groups has a tag and a list of tests, not {_shown(group)}")
        _only(group, ("tag", "tests"), f"{name}, group {tag}")
        if not tests:
            notes.append(f"not applicable: group {tag}: it has no cases")
        for test in tests:
            yield _plain(tag), test


def _case(tag: str, test: Any, variables: _Variables, name: str) -> Case:
    ident = test.get("id") if isinstance(test, dict) else None
    plain = _plain(str(ident)) if isinstance(ident, str | int) and not isinstance(ident, bool) else ""
    if not plain:
        raise CasesError(f"{name}: a test of group {tag} has no usable id: {_shown(test)}")
    where = f"{name}, case {ident}"
    _only(test, ("id", "args"), where)
    args: dict[str, Value] = {}
    for argument, value in _mapping(test, "args", where).items():
        known = argument.removeprefix("--").replace("-", "_")
        known = _OTHER_NAMES.get(known, known)
        if known not in _ARGUMENTS:
            raise CasesError(f"{where}: unknown argument {argument!r}; there are {', '.join(sorted(_ARGUMENTS))}")
        if known in args:
            raise CasesError(f"{where}: {argument} is there twice, by another name")
        try:
            args[known] = _ARGUMENTS[known](variables.substituted(value, where) if isinstance(value, str) else value)
        except ValueError as expected:
            if isinstance(expected, CasesError):
                raise
            raise CasesError(f"{where}: {argument} is {_shown(value)}; {expected} is expected") from expected
        if f"@{CHECKPOINTS}@" in str(args[known]) and known not in ("save", "load"):
            raise CasesError(f"{where}: {argument} has @{CHECKPOINTS}@, which stands in save and load only")
    if args.pop("use_distributed_optimizer", False) and not args.setdefault("zero_stage", 1):
        raise CasesError(f"{where}: use_distributed_optimizer is ZeRO stage 1, and zero_stage is 0: leave one out")
    return Case(tag, plain, tuple((args | _left_out(args)).items()))


def _left_out(args: Mapping[str, Value]) -> dict[str, Value]:
    """What is meant where a case does not say it, whatever devices it comes to: that of the seed's programs. The global
    batch is one micro batch per replica and pipeline rank, said here because the same on one rank is compared."""
    given = {**_DEFAULTS, **args}
    divided = int(given.get("tensor_parallel", 1)) * int(given.get("pipeline_parallel", 1))
    ranks = math.prod(int(given.get(name, 1)) for name in ("nnodes", "nproc_per_node", "nthread_per_process"))
    replicas = max(1, ranks // divided) * int(given.get("pipeline_parallel", 1))
    total = int(given["batch_size"]) * int(given["sequence_length"]) * replicas
    return {name: value for name, value in (*_DEFAULTS.items(), ("total_batch_size", total)) if name not in args}


def _possible(case: Case) -> Case:
    """Ranks as threads are data-parallel only (PyTorch's device meshes know one rank per process)."""
    divided = dict(case.topology).keys() & {"tensor_parallel", "pipeline_parallel", "zero_stage"}
    return case.as_processes() if divided or case.keeps else case


def _check_loads(file: CaseFile, case: Case) -> None:
    passed = [case]
    source = file.source(case)
    while source is not None:
        told = " ← ".join(each.id for each in (*passed, source))
        if source in passed:
            raise CasesError(f"{file.name}: cases load each other's checkpoints: {told}")
        passed.append(source)
        source = file.source(source)


def _check_saves(file: CaseFile) -> None:
    savers: dict[str, Case] = {}
    for case in file.cases:
        place = case.saves_to
        other = case if place is None else savers.setdefault(place, case)
        if other is not case:
            raise CasesError(
                f"{file.name}: cases {other.id} of group {other.tag} and {case.id} of group {case.tag} would overwrite "
                f"each other's checkpoints: both save to {case.get('save')}"
            )


class _Variables:
    """The file's variables, and which of them were used."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._used: set[str] = set()

    @property
    def unused(self) -> list[str]:
        return [name for name in self._values if name not in self._used]

    def substituted(self, text: str, where: str, within: Sequence[str] = ()) -> str:
        """With the values of variables, which may have variables in turn. Raises CasesError."""

        def value(match: re.Match[str]) -> str:
            name = match[1]
            self._used.add(name)
            if name == CHECKPOINTS:
                return match[0]  # known only where the run is planned
            if name in within:
                raise CasesError(f"{where}: variable {name} is made of itself: {' → '.join([*within, name])}")
            found = self._values.get(name)
            if not isinstance(found, str | int | float):
                said = "is no variable of this file" if found is None else f"is {_shown(found)}, not text or a number"
                raise CasesError(f"{where}: {match[0]} {said}; there are {', '.join(self._values) or 'none'}")
            plain = found if isinstance(found, str) else json.dumps(found)
            return self.substituted(plain, where, (*within, name))

        return _VARIABLE.sub(value, text)


def _mapping(data: Any, key: str, where: str, *, required: bool = True) -> Mapping[str, Any]:
    found = data.get(key, None if required else {}) if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise CasesError(f"{where}: {key} is expected, names with values")
    return found


def _only(found: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in found:
        if key not in known and not _REMARK.fullmatch(key):
            hint = f"; it belongs into args, {key} is an argument" if key in _ARGUMENTS else ""
            raise CasesError(f"{where}: {key!r} means nothing here, {' and '.join(known)} do{hint}")


def _plain(text: str) -> str:
    """As it can stand in a test's id."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("_")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:_SHOWN]


def _named(command: Any) -> str:
    return str(command.get("id", "")) if isinstance(command, dict) else str(command)


# Arguments -----------------------------------------------------------------------------------------------------------
# Each reads a value as JSON or people have it, and raises ValueError with what is expected.


def _whole(least: int = 0, most: int | None = None) -> Callable[[Any], Value]:
    def read(value: Any) -> Value:
        number = _finite(value)
        if number is None or number != int(number) or number < least or (most is not None and number > most):
            raise ValueError(f"a whole number from {least}" + (f" to {most}" if most is not None else ""))
        return int(number)

    return read


def _number(value: Any) -> Value:
    number = _finite(value)
    if number is None:
        raise ValueError("a number")
    return number


def _finite(value: Any) -> float | None:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _truth(value: Any) -> Value:
    found = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(str(value).lower())
    if found is None:
        raise ValueError("true or false")
    return found


def _text(value: Any) -> Value:
    if not isinstance(value, str) or not value:
        raise ValueError("text")
    return value


def _one_of(*choices: str) -> Callable[[Any], Value]:
    def read(value: Any) -> Value:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return str(value)

    return read


_ARGUMENTS: dict[str, Callable[[Any], Value]] = {
    **dict.fromkeys(("nnodes", "nproc_per_node", "nthread_per_process"), _whole(1)),
    **dict.fromkeys(("batch_size", "sequence_length", "total_batch_size", "num_iteration", "log_every"), _whole(1)),
    **dict.fromkeys(("tensor_parallel", "pipeline_parallel", "virtual_pipeline_parallel"), _whole(1)),
    **dict.fromkeys(("warmup_steps", "seed", "lora_rank", "lr_warmup_iters", "lr_decay_iters"), _whole()),
    **dict.fromkeys(("save_interval", "max_checkpoint_keep"), _whole()),
    "zero_stage": _whole(0, 3),
    **dict.fromkeys(("sequence_parallel", "save_optimizer_state", "use_distributed_optimizer"), _truth),
    **dict.fromkeys(("learning_rate", "min_lr", "lr_warmup_init", "lora_alpha"), _number),
    "dtype": _one_of("float32", "bfloat16"),
    "lr_decay_style": _one_of("none", "constant", "linear", "cosine", "inverse-square-root"),
    **dict.fromkeys(("size", "input_bin", "lora_target_modules", "save", "load"), _text),
}
_OTHER_NAMES = {"model": "size", "lr": "learning_rate"}
_DEFAULTS: dict[str, Value] = {
    "dtype": "float32",
    "batch_size": 4,
    "sequence_length": 64,
    "num_iteration": 10,
    "log_every": 1,
}
