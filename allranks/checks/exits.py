"""Who failed first, and what merely followed: exit codes, signals, memory, the launchers themselves."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator
from dataclasses import replace

from allranks.checks.evidence import Evidence, Place, PodEvidence, finding_about
from allranks.ledger.status import FirstFailure, LauncherStatus
from allranks.plan import format_ranks
from allranks.result import Finding, Phase, Verdict
from allranks.text import printable

_LINES = 8
_RENDEZVOUS = re.compile(
    r"rendezvous|was not reached|TCPStore|DistStoreError|DistNetworkError|init_process_group|resolve|connect", re.I
)
_STOPPED = 128 + signal.SIGTERM
"""Exit code of a container that was asked to go: hardly ever the cause."""

_NEVER_RAN = ("StartError", "ContainerCannotRun")
"""The container runtime's reasons, as the kubelet passes them on, for a container that was made but never ran."""
_UNKNOWN = "ContainerStatusUnknown"
"""What the kubelet says, with code 137, of a container that it can no longer find."""


def exit_text(code: int | None, ranks: int = 1) -> str:
    """`exited with code 17`, `was killed by SIGKILL`, of several `were killed …`; codes above 128 are signals too."""
    if code is None:
        return "failed"
    number = -code if code < 0 else code - 128 if 128 < code < 160 else None
    if number is None:
        return f"exited with code {code}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{'was' if ranks == 1 else 'were'} killed by {name}" + ("" if code < 0 else f" (exit code {code})")


def failures(evidence: Evidence) -> Iterator[Finding]:
    """Per pod its first failure; all but the earliest over all pods are consequences.

    A pod whose launcher was asked to go (SIGTERM: the Job controller deletes the peers of a failed pod) is taken for
    the cause only when there is nothing else.
    """
    found = [failed for pod in evidence.pods if not pod.extra and (failed := _first_of(evidence, pod)) is not None]
    found.sort(key=lambda item: (item[0], item[1].at if item[1].at is not None else math.inf))
    known = {rank for _, finding in found for rank in finding.ranks}
    errors = list(_rank_errors(evidence, known))
    diagnosed = any(f.verdict is Verdict.FAILED and not f.consequence for f in evidence.failures)
    explained = diagnosed or bool(errors) or any(not stopped for stopped, _ in found)
    for stopped, finding in found:
        yield replace(finding, consequence=stopped and explained)
    yield from errors
    yield from _followers(evidence, known)


def _first_of(evidence: Evidence, pod: PodEvidence) -> tuple[bool, Finding] | None:
    """(was merely stopped, finding) of a pod that failed."""
    status = evidence.status_of(pod)
    place = str(Place(pod.pod, pod.node))
    first = status.first if status else None
    if pod.reason == "OOMKilled":
        return False, _out_of_memory(evidence, pod, first, place)
    if first is not None and first.rank is not None:
        message = f"rank {first.rank} ({place}) {exit_text(first.code)}" + _because(first, evidence)
        phase = _phase(evidence, first)
        lines = [*first.lines, *_said(evidence, first.rank)][-_LINES:]
        return False, _failed(pod, "exit-code", message, phase, _when(pod, first), (first.rank,), lines)
    if first is not None:
        why = first.why or exit_text(first.code)
        phase = Phase.RENDEZVOUS if _RENDEZVOUS.search(why) else Phase.START
        if _spoke(evidence, pod):
            phase = Phase.TRAIN
        stopped = pod.exit_code == _STOPPED or first.code in (-signal.SIGTERM, _STOPPED)
        message = f"the launcher of {place} failed: {why}"
        return stopped, _failed(pod, "launcher", message, phase, _when(pod, first), (), first.lines)
    failing = _failing(status)
    if failing:
        ranks = tuple(rank for local, _ in failing for rank in evidence.plan.ranks_of_process(pod.pod_index, local))
        code = failing[0][1]
        message = f"{evidence.ranks_text(ranks)} {exit_text(code, len(ranks))}"
        return pod.exit_code == _STOPPED, _failed(pod, "exit-code", message, Phase.TRAIN, None, ranks, ())
    if pod.exit_code not in (None, 0) or pod.phase == "Failed" or (status and status.state == "failed"):
        return pod.exit_code == _STOPPED, _of_container(evidence, pod, place)
    return None


def _spoke(evidence: Evidence, pod: PodEvidence) -> bool:
    return any(rank in evidence.accounts for rank in evidence.plan.ranks_of_pod(pod.pod_index))


def _of_container(evidence: Evidence, pod: PodEvidence, place: str) -> Finding:
    """Of a container of which the launcher told nothing: then the kubelet's word is all there is."""
    lines = [printable(line) for line in (pod.message or "").splitlines() if line.strip()] if not pod.status else []
    phase = Phase.TRAIN if _spoke(evidence, pod) else Phase.START
    if pod.reason in _NEVER_RAN:
        why = f": {lines[-1]}" if lines else ""
        message = f"{place} could not start its container ({pod.reason}){why}"
        return _failed(pod, "container-start", message, Phase.START, None, (), lines[-_LINES:])
    if pod.reason == _UNKNOWN:  # the exit code is the kubelet's, not the container's
        message = f"{place} ended, and nobody knows how ({pod.reason})"
        return _failed(pod, "pod-failed", message, phase, None, (), lines[-_LINES:])
    reason = f" ({pod.reason})" if pod.reason and pod.reason != "Error" else ""
    word = "" if pod.status else "; its launcher left no status"
    message = f"{place} {exit_text(pod.exit_code)}{reason}{word}"
    return _failed(pod, "pod-failed", message, phase, None, (), lines[-_LINES:])


def _out_of_memory(evidence: Evidence, pod: PodEvidence, first: FirstFailure | None, place: str) -> Finding:
    """The kubelet's word counts whatever the exit code: a child's death can leave the container at code 0."""
    who = f"rank {first.rank} ({place})" if first and first.rank is not None else place
    code = "no exit code" if pod.exit_code is None else f"container exit code {pod.exit_code}"
    message = f"{who} ran out of memory: OOMKilled, {code}; raise the pod's memory limit or make the batch smaller"
    ranks = (first.rank,) if first and first.rank is not None else ()
    lines = first.lines if first else ()
    return _failed(pod, "out-of-memory", message, Phase.TRAIN, _when(pod, first), ranks, lines)


def _when(pod: PodEvidence, first: FirstFailure | None) -> float | None:
    """By one clock for all nodes: theirs may be minutes apart, and the earliest failure is the cause."""
    return first.at + pod.clock if first is not None and first.at is not None else None


def _failed(
    pod: PodEvidence,
    code: str,
    message: str,
    phase: Phase,
    at: float | None,
    ranks: tuple[int, ...],
    lines: list[str] | tuple[str, ...],
) -> Finding:
    return Finding(code, message, Verdict.FAILED, phase, ranks, pod.pod, pod.node, at, evidence=tuple(lines))


def _failing(status: LauncherStatus | None) -> list[tuple[int, int]]:
    """(local rank, code) of the processes that ended badly."""
    codes = status.codes if status else ()
    return [(local, code) for local, code in enumerate(codes) if code is not None and code != 0]


def _because(first: FirstFailure, evidence: Evidence) -> str:
    """The rank's own error, else what the launcher knows beyond the exit code."""
    errors = _said(evidence, first.rank) if first.rank is not None else []
    why = errors[0] if errors else first.why
    if why.startswith(f"rank {first.rank} "):
        why = why.partition("; ")[2]
    return f": {why}" if why else ""


def _said(evidence: Evidence, rank: int) -> list[str]:
    account = evidence.accounts.get(rank)
    return [text for text, *_ in account.errors[:2]] if account else []


def _phase(evidence: Evidence, first: FirstFailure) -> Phase:
    """A rank that was heard had its process group; before that it was starting or waiting for its peers."""
    account = evidence.accounts.get(first.rank) if first.rank is not None else None
    if account and account.starts:
        return Phase.TRAIN
    said = " ".join((first.why, *first.lines, *_said(evidence, first.rank if first.rank is not None else -1)))
    return Phase.RENDEZVOUS if _RENDEZVOUS.search(said) else Phase.START


def _rank_errors(evidence: Evidence, known: set[int]) -> Iterator[Finding]:
    """Errors that ranks reported themselves, where no exit code tells of them (logs without a cluster)."""
    for account in (*evidence.accounts.values(), *evidence.later):
        rank = account.rank
        if rank in known or not account.errors or evidence.exit_code(rank) not in (None, 0):
            continue
        text, where, at = account.errors[0]
        yield finding_about(
            evidence,
            [rank],
            "rank-error",
            f"{evidence.ranks_text([rank])} failed: {text}",
            verdict=Verdict.FAILED,
            phase=Phase.TRAIN if account.starts else Phase.RENDEZVOUS if _RENDEZVOUS.search(text) else Phase.START,
            at=at,
            lines=[f"{where}: {text}"],
        )


def _followers(evidence: Evidence, known: set[int]) -> Iterator[Finding]:
    """The other processes that ended badly, per pod and code."""
    for index, pod in sorted(evidence.planned_pods.items()):
        status = evidence.status_of(pod)
        by_code: dict[int, list[int]] = {}
        for local, code in _failing(status):
            if local < evidence.plan.processes_per_node:
                ranks = [r for r in evidence.plan.ranks_of_process(index, local) if r not in known]
                by_code.setdefault(code, []).extend(ranks)
        for code, ranks in sorted(by_code.items()):
            if ranks:
                message = f"{evidence.ranks_text(ranks)} {exit_text(code, len(ranks))}"
                yield _failed(pod, "exit-code", message, Phase.TRAIN, None, tuple(ranks), ())


def process_counts(evidence: Evidence) -> Iterator[Finding]:
    """As many processes run on each node as planned, whatever the figures say."""
    for _, pod in sorted(evidence.planned_pods.items()):
        status = evidence.status_of(pod)
        planned = evidence.plan.processes_per_node
        if status and (status.nproc != planned or status.nnodes not in (None, evidence.plan.nodes)):
            message = (
                f"{Place(pod.pod, pod.node)}: its launcher started {status.nproc} processes as one of "
                f"{status.nnodes} nodes, planned were {planned} on each of {evidence.plan.nodes}"
            )
            yield Finding("process-count", message, Verdict.FAILED, Phase.START, pod=pod.pod, node=pod.node)


def other_status(evidence: Evidence) -> Iterator[Finding]:
    """A status of another run is not evidence about this one."""
    stale = [pod for pod in evidence.pods if pod.status is not None and evidence.status_of(pod) is None]
    if stale:
        indices = format_ranks(pod.pod_index for pod in stale)
        message = f"the termination message of pod index {indices} is of another run and was not counted"
        yield Finding("note-other-status", message, Verdict.PASSED)
