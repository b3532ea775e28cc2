"""From what prefixes, file names and logs tell of a speaker to its global rank – or to nobody's.

A local rank is a global one only together with its node, and a node's number only together with the processes per node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allranks.ledger.record import Record
from allranks.plan import Plan


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who spoke: a global rank, or what is known instead."""

    place: str = ""
    """The log it was heard in; empty for a global rank that the record itself names."""
    pod: str | None = None
    rank: int | None = None
    """Global, from the record."""
    task: int | None = None
    """What mpirun or srun called it, or a file for one rank: global, unless a local rank stands beside it."""
    local: int | None = None
    node: int | None = None
    """Number of its pod or node."""

    @property
    def machine(self) -> tuple[str, str | None, int | None]:
        """What is said of a node in one log holds for those who speak from there."""
        return (self.place, self.pod, self.task if self.local is not None else None)

    def __str__(self) -> str:
        named = [
            f"{what} {value}"
            for what, value in (("pod", self.pod), ("task", self.task), ("local rank", self.local), ("node", self.node))
            if value is not None
        ]
        return f"{', '.join(named)} in {self.place}" if named else self.place


_Machine = tuple[str, str | None, int | None]


class Places:
    """What the logs say of nodes and of the job's shape, and the global ranks that follow from it."""

    def __init__(self, plan: Plan, *, shaped: bool) -> None:
        self._plan = plan
        self._shaped = shaped
        """Whether nodes and processes per node are known, and not only their product."""
        self._nodes: dict[_Machine, set[int]] = {}
        self._processes: set[int] = set()
        self._ranks: dict[tuple[_Machine, int], set[int]] = {}

    def learn(self, speaker: Speaker, fact: Record) -> None:
        """Take down a fact: fields node, nproc, local and rank, locals and ranks (lists)."""
        node, nproc = fact.integer("node"), fact.integer("nproc")
        if node is not None:
            self._nodes.setdefault(self._above(speaker), set()).add(node)
        if nproc:
            self._processes.add(nproc)
        rank, local = fact.integer("rank"), fact.integer("local")
        local = speaker.local if local is None else local
        if rank is not None and local is not None:
            self._ranks.setdefault((self._above(speaker), local), set()).add(rank)
        pairs = zip(fact.fields.get("locals", ()), fact.fields.get("ranks", ()), strict=False)
        for local, rank in pairs:
            self._ranks.setdefault((self._above(speaker), local), set()).add(rank)

    @staticmethod
    def _above(speaker: Speaker) -> _Machine:
        """The launcher of a node speaks without a local rank: with a task it is the node's label."""
        return (speaker.place, speaker.pod, speaker.task)

    def ranks(self, speakers: Iterable[Speaker]) -> dict[Speaker, int | None]:
        """Each speaker's global rank; None for one that cannot be placed."""
        speakers = list(speakers)
        shape = self._shape(speakers)
        return {speaker: self._rank(speaker, shape) for speaker in speakers}

    def _rank(self, who: Speaker, processes: int | None) -> int | None:
        if who.rank is not None:
            return who.rank
        if self._plan.world_size == 1 and not (who.task or who.local or who.node):
            return 0
        if who.local is None:
            if who.task is not None:
                return who.task
            # One log a pod, and no word of several processes in any of them: the pod's index is the rank.
            return who.node if processes in (None, 1) else None
        said = self._ranks.get((who.machine, who.local), set())
        if said:
            return min(said) if len(said) == 1 else None
        node = self._node(who)
        if processes is None or who.local >= processes:
            return None
        if node is None:
            return who.local if processes == self._plan.world_size else None
        return node * processes + who.local

    def _node(self, who: Speaker) -> int | None:
        if who.task is not None:
            return who.task
        said = self._nodes.get(who.machine, set())
        if said:
            return min(said) if len(said) == 1 else None
        return who.node

    def _shape(self, speakers: list[Speaker]) -> int | None:
        """Processes per node, where only one number is possible: N × P = W, with as many of each as were heard.

        None where no local rank is spoken of, -1 where they are and several numbers are possible.
        """
        if self._shaped:
            return self._plan.processes_per_node
        world = self._plan.world_size
        local = max((who.local for who in speakers if who.rank is None and who.local is not None), default=0)
        placed = [
            self._node(who) for who in speakers if who.rank is None and (who.task is None or who.local is not None)
        ]
        node = max((number for number in placed if number is not None), default=0)
        told = {number for number in self._processes if world % number == 0}
        possible = [
            number
            for number in range(local + 1, world + 1)
            if world % number == 0 and world // number > node and (number in told if told else True)
        ]
        if len(possible) == 1:
            return possible[0]
        # Several are left. Without a word of local ranks the question does not arise.
        heard_local = any(who.local is not None for who in speakers) or bool(self._processes)
        return -1 if heard_local else None
