"""What the checks look at: the plan, what was said, what the pods came to – brought together once, per rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from allranks.ledger import Account, Ledger
from allranks.ledger.placing import Speaker
from allranks.ledger.series import Series
from allranks.ledger.status import LauncherStatus, RankFigures
from allranks.plan import Plan, format_ranks
from allranks.result import SAMPLES, Finding, Phase, Verdict

_GROUPS = 6
"""Places that one sentence names before it says how many more there are."""


@dataclass(frozen=True, slots=True)
class PodEvidence:
    """What the cluster says of one pod at the end."""

    pod_index: int
    pod: str
    node: str | None
    status: LauncherStatus | None
    """None when the termination message was not the launcher's."""
    phase: str
    """Kubernetes' word: Pending, Running, Succeeded, Failed, Unknown."""
    exit_code: int | None
    """Of the container; None while it has not ended."""
    reason: str | None
    """Of the container's end: Completed, Error, OOMKilled …"""
    message: str | None
    """The termination message as it is."""
    extra: bool = False
    """A further pod for an index that has one already."""
    clock: float = 0.0
    """Seconds to add to times of the pod's node to have the time of ours, as far as its messages show."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs, as far as anybody says."""

    pod: str | None
    node: str | None

    def __str__(self) -> str:
        if self.pod and self.node:
            return f"pod {self.pod} on node {self.node}"
        return f"pod {self.pod}" if self.pod else f"node {self.node}" if self.node else ""


class Evidence:
    """Everything known about a run, by rank."""

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        pods: Sequence[PodEvidence] = (),
        failures: Sequence[Finding] = (),
        *,
        earlier: int | None = None,
    ) -> None:
        """Of the attempt that counts, or of the `earlier` one with that number: then what is said for no rank in
        particular is left out, as it may be another attempt's."""
        self.plan = plan
        self.attempt = ledger.attempt if earlier is None else earlier
        self.ledger = ledger
        self.pods = tuple(pods)
        self.failures = tuple(failures)
        accounts, planned = ledger.accounts(self.attempt), plan.ranks
        self.accounts: dict[int, Account] = {rank: said for rank, said in accounts.items() if rank in planned}
        """Planned ranks that were heard in this attempt."""
        self.later: list[Account] = [
            said
            for attempt in (ledger.attempts if earlier is None else ())
            if attempt > self.attempt
            for rank, said in ledger.accounts(attempt).items()
            if rank in planned
        ]
        """What planned ranks said in attempts that began after the one that counts."""
        self.foreign: dict[int, Account] = {rank: said for rank, said in accounts.items() if rank not in planned}
        self.unplaced: list[tuple[Speaker, Series]] = (
            [] if ledger.proven or earlier is not None else ledger.others.unplaced
        )
        """Speech that no global rank is known for."""
        self._peers: dict[int, list[tuple[str | None, str | None]]] = {}
        self.planned_pods = {p.pod_index: p for p in self.pods if not p.extra and 0 <= p.pod_index < plan.nodes}

    @property
    def throughput_unit(self) -> str:
        """Of the ranks' throughput, where any gave one."""
        form = None if self.ledger.proven else self.ledger.others.form
        told = any(account.final and account.final.throughput for account in self.accounts.values())
        return form.unit if form is not None and told else SAMPLES

    def pod(self, rank: int) -> PodEvidence | None:
        if not self.planned_pods:
            return None
        return self.planned_pods.get(self.plan.position(rank).pod_index)

    def status(self, rank: int) -> LauncherStatus | None:
        pod = self.pod(rank)
        return self.status_of(pod) if pod else None

    def status_of(self, pod: PodEvidence) -> LauncherStatus | None:
        """The launcher's word, when it is about this run."""
        status = pod.status
        mine = status is not None and (self.plan.run_id is None or status.run in (None, self.plan.run_id))
        return status if mine else None

    def exit_code(self, rank: int) -> int | None:
        status = self.status(rank)
        return status.exit_code(self.plan.position(rank).local_rank) if status else None

    def status_figures(self, rank: int) -> RankFigures | None:
        """Its final figures as its launcher saw them pass."""
        status = self.status(rank)
        return status.figures.get(rank) if status and status.figures else None

    def place(self, rank: int) -> Place:
        """From the pod, else from what the rank said, else from the stream it was heard in."""
        account = self.accounts.get(rank) or self.foreign.get(rank)
        planned = rank in self.plan.ranks
        pod = self.pod(rank) if planned else None
        start = account.starts[0] if account and account.starts else None
        source = self.ledger.source_of(account) if account else None
        if source is None and planned:
            index = self.plan.position(rank).pod_index
            source = next((s for s in self.ledger.sources if s.pod_index == index), None)
        told = [(x.pod, x.node) for x in (pod, start, source) if x is not None]
        if not told and planned and self.plan.nodes > 1:
            told = self._places_of_peers(self.plan.position(rank).pod_index)
        return Place(next((p for p, _ in told if p), None), next((n for _, n in told if n), None))

    def _places_of_peers(self, pod_index: int) -> list[tuple[str | None, str | None]]:
        """Where the ranks of one pod say that they are, if they agree: there the silent ones must be as well."""
        if pod_index not in self._peers:
            heard = [self.accounts[rank] for rank in self.plan.ranks_of_pod(pod_index) if rank in self.accounts]
            told = {(start.pod, start.node) for account in heard for start in account.starts}
            self._peers[pod_index] = list(told) if len(told) == 1 else []
        return self._peers[pod_index]

    def ranks_text(self, ranks: Iterable[int]) -> str:
        """`rank 3 (pod bert-0 on node a)`, `ranks 3, 17-24 (3: pod … ; 17-24: pod …)`."""
        ranks = sorted(set(ranks))
        noun = "rank" if len(ranks) == 1 else "ranks"
        places: dict[Place, list[int]] = {}
        for rank in ranks:
            places.setdefault(self.place(rank), []).append(rank)
        text = f"{noun} {format_ranks(ranks)}"
        named = [(place, members) for place, members in places.items() if str(place)]
        if not named:
            return text
        if len(places) == 1:
            return f"{text} ({named[0][0]})"
        shown = [f"{format_ranks(members)}: {place}" for place, members in named[:_GROUPS]]
        more = [f"and {len(named) - _GROUPS} more pods"] if len(named) > _GROUPS else []
        return f"{text} ({'; '.join(shown + more)})"


def finding_about(
    evidence: Evidence,
    ranks: Iterable[int],
    code: str,
    message: str,
    *,
    verdict: Verdict = Verdict.INCOMPLETE,
    phase: Phase | None = None,
    at: float | None = None,
    lines: Iterable[str] = (),
) -> Finding:
    """A finding about ranks; pod and node are given where they all share them."""
    ranks = tuple(sorted(set(ranks)))
    places = {evidence.place(rank) for rank in ranks}
    place = places.pop() if len(places) == 1 else Place(None, None)
    return Finding(
        code=code,
        message=message,
        verdict=verdict,
        phase=phase,
        ranks=ranks,
        pod=place.pod,
        node=place.node,
        at=at,
        evidence=tuple(lines),
    )
