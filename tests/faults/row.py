"""One row of the fault suite: a fault, how it is brought about, and what has to be said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from allranks.result import Phase, TrainingRun, Verdict
from tests.faults.world import World

Act = Callable[[World], None]
Check = Callable[[World, TrainingRun], str]
"""What is wrong with the run besides; empty: nothing."""
REFUSED = "refused"
"""In place of a verdict: no run was judged, the cluster could not be used as asked."""
WITHIN = 5.0


@dataclass(frozen=True)
class Row:
    """A fault and what is expected. Seconds count from the fact to the verdict."""

    name: str
    verdict: Verdict | str = Verdict.PASSED
    phase: Phase | None = None
    code: str | None = None
    """Of the finding that is the cause; None: any."""
    ranks: tuple[int, ...] | None = None
    """That the cause names, None: any."""
    node: str | None = None
    says: str = ""
    """A regular expression that the verdict's sentence with its evidence, or the refusal, has to match."""
    args: tuple[str, ...] = ()
    """Of the program."""
    before: tuple[Mapping[str, Any], ...] = ()
    """Faults switched on before the run."""
    prepare: Act | None = None
    """Done before the run."""
    during: Act | None = None
    """Done, in a thread of its own, while the run goes on. Its end is the fact, unless faults say when they struck."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    since: str = "diary"
    """Where the fact's time is from: `diary` (the program), `fault` (the stand-in), `act` (`during`), `start`."""
    grace: float = 0.0
    """Seconds that are meant to pass between the fact and its verdict: a time that the settings give."""
    tokens: bool = False
    """With a kubeconfig whose credentials expire after 5 s."""
    check: Check | None = None
    fast: bool = False
    """Run by `make test` too."""

    @property
    def expected(self) -> str:
        where = f" in {self.phase}" if self.phase else ""
        return f"{self.verdict}{where}"


@dataclass(frozen=True)
class Outcome:
    """What a row came to."""

    name: str
    expected: str
    got: str
    seconds: float | None
    limit: float
    wrong: tuple[str, ...]
    """What is not as expected; empty: the row is right."""
    took: float = 0.0
