"""The evidence of a run on disk: enough to reach the same verdict again without a cluster.

plan.json         who had to answer
references.json   what its figures were held against
manifests.yaml    what was applied
nodes.json        the nodes that were found, and those left out
logs/POD.log      each container's output as it was written
pods.json         what is known of each pod's end, its termination message included
failures.json     what the diagnosis found besides
objects.json      the Job, its pods and their nodes as last seen
events.jsonl      Kubernetes events, in the order they came
result.json       the verdict
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from allranks import transport
from allranks.attempts import repeated
from allranks.checks import PodEvidence, judge
from allranks.checks.references import hold_or_fail
from allranks.keeplog import KeptLog
from allranks.ledger import Ledger
from allranks.ledger.status import parse_status
from allranks.plan import Plan
from allranks.references import References
from allranks.result import Finding, TrainingRun


class UnusableArtefacts(ValueError):
    """A directory that is no run's, or in which none can be kept; the message says why."""


class Artefacts:
    """One run's directory, written as the run goes on, so that a killed run leaves what it knew."""

    def __init__(self, directory: Path, log_limit: int) -> None:
        """Raises UnusableArtefacts when the directory cannot be made."""
        self.directory = directory
        self._log_limit = log_limit
        self._logs: dict[str, KeptLog] = {}
        try:
            (directory / "logs").mkdir(parents=True)
            self._events: TextIO = (directory / "events.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            raise UnusableArtefacts(
                f"artefacts cannot be kept in {directory} (--artefacts): {error.strerror}"
            ) from error

    def write_text(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="utf-8")

    def write_json(self, name: str, data: Any) -> None:
        _write_json(self.directory / name, data)

    def write_objects(self, parts: Mapping[str, Any]) -> None:
        """objects.json, with one object a line: fast, for there may be thousands, and the verdict waits for it."""
        with (self.directory / "objects.json").open("w", encoding="utf-8") as file:
            for number, (name, part) in enumerate(parts.items()):
                if isinstance(part, list):
                    text = "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in part) + "\n]"
                else:
                    text = json.dumps(part, ensure_ascii=False)
                file.write(f"{',' if number else '{'}\n{json.dumps(name)}: {text}")
            file.write("\n}\n")

    def open_log(self, pod: str) -> KeptLog:
        log = self._logs[pod] = KeptLog(self.directory / "logs" / f"{pod}.log", self._log_limit)
        return log

    @property
    def dropped(self) -> dict[str, int]:
        """Log → bytes of it that are not kept on disk."""
        return {f"{pod}.log": log.dropped for pod, log in self._logs.items() if log.dropped}

    def event(self, event: dict[str, Any]) -> None:
        self._events.write(json.dumps(event, ensure_ascii=False) + "\n")

    def evidence(self, pods: Sequence[PodEvidence], failures: Sequence[Finding]) -> None:
        # The launcher's status is parsed from the message again when it is needed.
        self.write_json("pods.json", [{**_plain(pod), "status": None} for pod in pods])
        self.write_json("failures.json", [finding.to_dict() for finding in failures])

    def result(self, run: TrainingRun) -> None:
        _write_json(self.directory / "result.json", run.to_dict())

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._events.close()


def rewrite(run: TrainingRun) -> None:
    """Keeps what was found out about a run after its directory was closed."""
    assert run.artefacts is not None
    _write_json(Path(run.artefacts) / "result.json", run.to_dict())


def _write_json(path: Path, data: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, ensure_ascii=False)
        file.write("\n")


def _plain(pod: PodEvidence) -> dict[str, Any]:
    return {name: getattr(pod, name) for name in pod.__dataclass_fields__}


def replay(directory: Path) -> TrainingRun:
    """The run judged again from its evidence. Raises UnusableArtefacts when it is incomplete or another version's."""
    try:
        return _judged_again(directory)
    except UnusableArtefacts:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableArtefacts(
            f"{directory} is not the evidence of a run as this version keeps it: {error}"
        ) from error


def _judged_again(directory: Path) -> TrainingRun:
    plan = Plan.from_dict(_read(directory, "plan.json"))
    before = TrainingRun.from_dict(_read(directory, "result.json"))
    pods = [PodEvidence(**pod) for pod in _read(directory, "pods.json")]
    pods = [PodEvidence(**{**_plain(pod), "status": parse_status(pod.message or "")}) for pod in pods]
    failures = [Finding.from_dict(finding) for finding in _read(directory, "failures.json")]
    ledger, told = Ledger(plan), dict[str, transport.NodeLog]()
    for pod in pods:
        path = directory / "logs" / f"{pod.pod}.log"
        if not path.exists():
            continue  # a pod that never started has no log
        reader = ledger.source(path.name, pod_index=pod.pod_index, pod=pod.pod, node=pod.node)
        told[path.name] = transport.NodeLog()
        with path.open("rb") as log:
            while chunk := log.read(1 << 20):
                reader.feed(chunk)
                told[path.name].feed(chunk)
        reader.close()
    judgement = judge(plan, ledger, pods=pods, failures=failures)
    judgement = transport.with_networks(judgement, transport.networks_of_ranks(ledger, told))
    run = TrainingRun(
        plan=plan,
        judgement=judgement,
        cluster=before.cluster,
        namespace=before.namespace,
        started=before.started,
        finished=before.finished,
        timeline=before.timeline,
        artefacts=str(directory),
        attempts=before.attempts,
    )
    kept = directory / "references.json"  # older versions did not write it
    if kept.exists():
        run = hold_or_fail(run, References.from_dict(_read(directory, kept.name)))
    return replace(run, judgement=repeated(run.judgement, before))


def _read(directory: Path, name: str) -> Any:
    try:
        return json.loads((directory / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableArtefacts(f"{directory / name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UnusableArtefacts(f"{directory / name} is not valid: {error}") from error
