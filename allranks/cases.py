"""Training cases: what is trained, what it is held against, and what the program is told. Pure.

`nnodes` and `nproc_per_node` are the launcher's and never reach the program; every other argument is the program's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

Value = str | int | float | bool

CHECKPOINTS = "CKPT_ROOT_DIR"
"""The variable whose value is ours: a case's checkpoints lie where its pods can reach them."""

_ON_ONE_RANK = "_on_1_rank"
"""What a case's id has at its end where the case is another's reference."""

_LAUNCHER = ("nnodes", "nproc_per_node")
_ONE_RANK: dict[str, Value] = {
    "nnodes": 1,
    "nproc_per_node": 1,
    "nthread_per_process": 1,
    "tensor_parallel": 1,
    "sequence_parallel": False,
    "pipeline_parallel": 1,
    "virtual_pipeline_parallel": 1,
    "zero_stage": 0,
}
"""Who computes what, and what these are on one rank: none of them may change the losses."""
_MANNER = ("batch_size", "warmup_steps")
"""How, where that shows in the figures alone. (`batch_size` is the micro batch, in sequences.)"""
_KEEPING = ("save", "save_interval", "load", "max_checkpoint_keep", "save_optimizer_state")
_FLAGS = ("sequence_parallel",)
_STEP = re.compile(r"checkpoint_step_(\d+)")


class CasesError(ValueError):
    """A case file that cannot be used; the message names the file, the case, and what would be right."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training: what is trained, and on how many ranks."""

    tag: str
    id: str
    args: tuple[tuple[str, Value], ...]
    """In the file's order, each of the type that is its own, variables substituted; then what the file left out."""

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
    def steps(self) -> int:
        """Planned training steps, those before a checkpoint included."""
        return self._number("num_iteration")

    @property
    def dtype(self) -> str:
        return str(self.get("dtype", "float32"))

    @property
    def keeps(self) -> bool:
        """Whether it reads or writes checkpoints."""
        return self.get("save") is not None or self.get("load") is not None

    @property
    def saves_to(self) -> str | None:
        """Where its checkpoints lie, below the place of all of them and for any one model; None where it saves none."""
        save = self.get("save")
        return None if save is None else _namespaced(_directory(str(save)), self, "", "")

    @property
    def topology(self) -> tuple[tuple[str, Value], ...]:
        """What makes it differ from the training on one rank, sorted; empty for that itself."""
        return tuple(sorted((n, v) for n, v in self.args if n in _ONE_RANK and v != _ONE_RANK[n]))

    @property
    def training(self) -> tuple[tuple[str, Value], ...]:
        """What is trained, sorted: cases that agree in it have the same losses, on whatever topology."""
        return tuple(sorted((n, v) for n, v in self.args if n not in (*_ONE_RANK, *_MANNER, *_KEEPING)))

    def on_one_rank(self) -> Case:
        """The same, checkpoints included, on one rank."""
        return Case(self.tag, self.id + _ON_ONE_RANK, tuple((n, v) for n, v in self.args if n not in _ONE_RANK))

    def from_the_beginning(self, adapted: Value | None = None) -> Case:
        """The same without checkpoints, but for that of the model which is adapted, where there is one."""
        begun = (("load", adapted),) if adapted is not None else ()
        return replace(self, args=(*((n, v) for n, v in self.args if n not in _KEEPING), *begun))

    def is_reference(self) -> bool:
        return not self.topology and self.get("load") is None

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
    notes: tuple[str, ...] = ()
    """What it has that means nothing here – commands that build another program, variables that no case uses – or that
    is done in another way than it says."""

    def name_of(self, case: Case) -> str:
        """Its id, with the tag where groups have cases of the same id: results are compared by it."""
        own = case.id.removesuffix(_ON_ONE_RANK)
        alike = [other for other in self.cases if other.id == own]
        return f"{case.tag}-{case.id}" if len(alike) > 1 else case.id

    def source(self, case: Case) -> Case | None:
        """The case whose checkpoint this one loads; None when it loads none, or one from elsewhere."""
        if case.get("load") is None:
            return None
        wanted = _directory(str(case.get("load")))
        savers = (c for c in self.cases if c.get("save") is not None and _directory(str(c.get("save"))) == wanted)
        return next((c for c in savers if (c.tag, c.id) != (case.tag, case.id)), None)

    def base(self, case: Case) -> Case | None:
        """The case whose trained weights this one adapts: it is LoRA and loads what is not."""
        source = self.source(case)
        adapts = source is not None and bool(case.get("lora_rank")) and not source.get("lora_rank")
        return source if adapts else None

    def adapting(self, case: Case) -> Case | None:
        """The case that began to adapt other weights, of those that this one goes on from and itself. What LoRA loads
        from elsewhere counts as such: whether it has adapters, only the program sees."""
        source = self.source(case)
        if source is None:
            return case if case.get("load") is not None and case.get("lora_rank") else None
        return case if self.base(case) else self.adapting(source)

    def first_step(self, case: Case) -> int | None:
        """The first step that it trains: 1, or the one after the checkpoint; None for one from elsewhere whose path
        does not say its step, or that LoRA may begin on."""
        source = self.source(case)
        if case.get("load") is None or self.base(case):
            return 1
        if source is None and case.get("lora_rank"):
            return None
        match = _STEP.fullmatch(PurePosixPath(str(case.get("load"))).name)
        if match:
            return int(match[1]) + 1
        return None if source is None else source.steps + 1


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

    Checkpoints lie in `root`/…/MODEL/MODE, wherever the file would have them; MODE is `resume` for a case that loads,
    else `no_resume`. `source` is the case whose checkpoint is
    loaded, if it is one of ours.
    """
    told: list[str] = []
    for name, value in case.args:
        if name in _LAUNCHER or (name in _FLAGS and not value):
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
    if owner is None:
        placed = directory.replace(f"@{CHECKPOINTS}@", root)
    else:
        parts = PurePosixPath(directory.rpartition(f"@{CHECKPOINTS}@")[2]).parts
        mode = "resume" if owner.get("load") is not None else "no_resume"
        placed = "/".join([root, *(part for part in parts if part not in ("/", "..")), model, mode])
    return f"{placed}/{step}" if _STEP.fullmatch(step) else placed


def _directory(path: str) -> str:
    """A checkpoint path without the step that it may name."""
    whole = PurePosixPath(path)
    return str(whole.parent if _STEP.fullmatch(whole.name) else whole)
