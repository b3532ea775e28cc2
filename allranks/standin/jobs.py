"""The Job controller: Indexed and plain Jobs, backoff limit, failure policy, deadline, suspension, TTL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from allranks.standin import garbage
from allranks.standin.errors import StatusError
from allranks.standin.jobpods import format_indexes, index_of, make_pod, rule
from allranks.standin.objects import (
    Object,
    condition_of,
    controller_of,
    is_finished,
    name_of,
    namespace_of,
    set_condition,
    timestamp,
    unix,
)
from allranks.standin.recorder import Recorder
from allranks.standin.resources import JOBS, PODS, Resource
from allranks.standin.store import Change, Store

BACK_OFF, MAX_BACK_OFF = 10.0, 600.0
"""Seconds before a failed pod is replaced, doubled with every failure."""

_MANY, _BATCH, _AT_ONCE = 100, 0.5, 250
"""Jobs of more pods than that are looked at every so many seconds at most, and at one look so many pods are made; the
news of them brings the next. (A real controller waits a second, and makes 500.)"""

Key = tuple[str, str]


@dataclass(slots=True)
class _Record:
    """What the controller remembers of one Job: pods are counted once, also those that are gone."""

    counted: set[str] = field(default_factory=set)
    succeeded: int = 0
    failed: int = 0
    completed: set[int] = field(default_factory=set)
    suspended: set[str] = field(default_factory=set)
    """Pods deleted because the Job was suspended: no failures."""
    verdict: tuple[str, str] | None = None
    """Reason and message of a FailJob rule that matched."""
    last_failure: float = 0.0
    """Monotonic time."""


def _true(job: Object, kind: str) -> bool:
    held = condition_of(job, kind)
    return held is not None and held["status"] == "True"


class JobController:
    """Brings Jobs to their end. `admit` stores a pod or raises StatusError as an admission plugin would."""

    def __init__(self, store: Store, admit: Callable[[Object], Object]) -> None:
        self._store = store
        self._admit = admit
        self._recorder = Recorder(store, "job-controller")
        self._records: dict[str, _Record] = {}
        self._queue: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        store.listen(self._hear)

    def _enqueue(self, key: Key) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    def _later(self, key: Key, seconds: float) -> None:
        """Looks at a Job again at the earliest of the times asked for."""
        loop = asyncio.get_running_loop()
        held = self._timers.get(key)
        if held is not None and not held.cancelled() and loop.time() < held.when() <= loop.time() + seconds:
            return
        if held is not None:
            held.cancel()
        self._timers[key] = loop.call_later(max(seconds, 0.0), self._enqueue, key)

    def _hear(self, resource: Resource, change: Change) -> None:
        if resource is JOBS:
            if change.kind == "DELETED":
                self._records.pop(change.new["metadata"]["uid"], None)
            self._enqueue((namespace_of(change.new), name_of(change.new)))
        elif resource is PODS:
            owner = controller_of(change.new)
            if owner is not None and owner["kind"] == "Job":
                self._count(owner, change)
                self._enqueue((namespace_of(change.new), owner["name"]))

    def _count(self, owner: Object, change: Change) -> None:
        """Enters a pod's end in its Job's record, once."""
        pod = change.new
        uid = pod["metadata"]["uid"]
        job = self._store.find(JOBS, namespace_of(pod), owner["name"])
        if job is None or job["metadata"]["uid"] != owner["uid"]:
            return
        record = self._records.setdefault(owner["uid"], _Record())
        if uid in record.counted or not (is_finished(pod) or change.kind == "DELETED"):
            return
        record.counted.add(uid)
        if pod["status"]["phase"] == "Succeeded":
            record.succeeded += 1
            index = index_of(pod)
            if index is not None:
                record.completed.add(index)
            return
        if uid in record.suspended:
            return
        ruling = rule(job, pod)
        record.failed += ruling.counts
        record.last_failure = time.monotonic()
        if ruling.fail_job and record.verdict is None:
            record.verdict = ("PodFailurePolicy", ruling.fail_job)

    async def run(self) -> None:
        while True:
            key = await self._queue.get()
            job = self._store.find(JOBS, *key)
            if job is not None and (job["spec"].get("parallelism") or 0) > _MANY:
                await asyncio.sleep(_BATCH)  # each look costs as much as there are pods; more of their news meanwhile
                job = self._store.find(JOBS, *key)
            self._queued.discard(key)
            if job is not None and "deletionTimestamp" not in job["metadata"]:
                self._sync(key, job)

    # One look at one Job.

    def _sync(self, key: Key, job: Object) -> None:
        if _true(job, "Complete") or _true(job, "Failed"):
            self._expire(key, job)
            return
        record = self._records.setdefault(job["metadata"]["uid"], _Record())
        pods = [pod for pod in self._pods(job) if not is_finished(pod)]
        terminating = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
        active = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        failing = self._failure(key, job, record, active)
        if failing or _true(job, "SuccessCriteriaMet") or self._succeeded(job, record, active):
            self._conclude(job, record, failing, active, terminating)
            return
        if job["spec"].get("suspend"):
            for pod in active:
                record.suspended.add(pod["metadata"]["uid"])
            self._delete(job, active)
        elif self._backed_off(key, record):
            active += self._create(key, job, record, active, terminating)
        self._write(job, record, None)

    def _pods(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        return [
            pod for pod in self._store.list(PODS, namespace_of(job)) if (controller_of(pod) or {}).get("uid") == uid
        ]

    def _failure(self, key: Key, job: Object, record: _Record, active: list[Object]) -> tuple[str, str] | None:
        """Reason and message, once the Job cannot succeed any more."""
        target = condition_of(job, "FailureTarget")
        if target is not None:
            return target["reason"], target["message"]
        if _true(job, "SuccessCriteriaMet"):
            return None
        if record.verdict is not None:
            return record.verdict
        limit = job["spec"]["backoffLimit"]
        if record.failed > limit or self._restarts(job, active) > limit:
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        deadline, started = job["spec"].get("activeDeadlineSeconds"), job["status"].get("startTime")
        if deadline is not None and started and not job["spec"].get("suspend"):
            left = unix(started) + deadline - time.time()
            if left <= 0:
                return "DeadlineExceeded", "Job was active longer than specified deadline"
            self._later(key, left)
        return None

    @staticmethod
    def _restarts(job: Object, active: list[Object]) -> int:
        if job["spec"]["template"]["spec"]["restartPolicy"] != "OnFailure":
            return 0
        return sum(c["restartCount"] for pod in active for c in pod["status"].get("containerStatuses") or ())

    @staticmethod
    def _succeeded(job: Object, record: _Record, active: list[Object]) -> bool:
        completions = job["spec"].get("completions")
        if job["spec"]["completionMode"] == "Indexed":
            return len(record.completed) >= (completions or 0)
        if completions is None:
            return record.succeeded > 0 and not active
        return bool(record.succeeded >= completions)

    def _conclude(
        self,
        job: Object,
        record: _Record,
        failing: tuple[str, str] | None,
        active: list[Object],
        terminating: list[Object],
    ) -> None:
        """First the target condition and the deletion of what runs; the final one when every pod has ended."""
        reason, message = failing or ("CompletionsReached", "Reached expected number of succeeded pods")
        self._write(job, record, ("FailureTarget" if failing else "SuccessCriteriaMet", reason, message))
        self._delete(job, active)
        if any(not is_finished(pod) for pod in self._pods(job)):
            self._write(job, record, None)
            return
        ended = self._write(job, record, ("Failed" if failing else "Complete", reason, message))
        if ended is None:
            return
        if failing:
            self._recorder.warning(ended, reason, message)
        else:
            self._recorder.normal(ended, "Completed", "Job completed")

    def _delete(self, job: Object, pods: list[Object]) -> None:
        for pod in pods:
            garbage.delete(self._store, PODS, pod, {})
            self._recorder.normal(job, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}")

    def _backed_off(self, key: Key, record: _Record) -> bool:
        """Whether replacements may be made again after the last failure."""
        if not record.failed or not record.last_failure:
            return True
        pause = min(BACK_OFF * 2 ** (record.failed - 1), MAX_BACK_OFF)
        left: float = record.last_failure + pause - time.monotonic()
        if left > 0:
            self._later(key, left)
        return left <= 0

    def _create(
        self, key: Key, job: Object, record: _Record, active: list[Object], terminating: list[Object]
    ) -> list[Object]:
        spec = job["spec"]
        busy = active + (terminating if spec["podReplacementPolicy"] == "Failed" else [])
        completions = spec.get("completions")
        if spec["completionMode"] == "Indexed":
            taken = record.completed | {index for pod in busy if (index := index_of(pod)) is not None}
            free: list[int | None] = [index for index in range(completions or 0) if index not in taken]
        elif completions is None:
            free = [] if record.succeeded else [None] * spec["parallelism"]
        else:
            free = [None] * (completions - record.succeeded - len(busy))
        made = []
        for index in free[: min(max(spec["parallelism"] - len(busy), 0), _AT_ONCE)]:
            try:
                pod = self._admit(make_pod(job, index))
            except StatusError as error:
                self._recorder.warning(job, "FailedCreate", f"Error creating: {error.message}")
                self._later(key, 1.0)
                break
            made.append(pod)
            self._recorder.normal(job, "SuccessfulCreate", f"Created pod: {name_of(pod)}")
        return made

    def _write(self, job: Object, record: _Record, condition: tuple[str, str, str] | None) -> Object | None:
        """Writes the status as the record and the pods have it, with one condition (type, reason, message) set."""
        resumed = self._resumption(job)

        def change(made: Object) -> None:
            status = made["status"]
            pods = [pod for pod in self._pods(job) if not is_finished(pod)]
            active = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
            counts = {
                "active": len(active),
                "ready": sum((condition_of(pod, "Ready") or {}).get("status") == "True" for pod in active),
                "terminating": len(pods) - len(active),
                "succeeded": record.succeeded,
                "failed": record.failed,
            }
            for name, value in counts.items():
                if value or name in ("ready", "terminating"):
                    status[name] = value
                else:
                    status.pop(name, None)
            status["uncountedTerminatedPods"] = {}
            if record.completed:
                status["completedIndexes"] = format_indexes(record.completed)
            if condition is not None:
                set_condition(made, condition[0], "True", condition[1], condition[2])
                if condition[0] == "Complete":
                    status["completionTime"] = timestamp()
            elif made["spec"].get("suspend"):
                set_condition(made, "Suspended", "True", "JobSuspended", "Job suspended")
                status.pop("startTime", None)
            else:
                if condition_of(made, "Suspended") is not None:
                    set_condition(made, "Suspended", "False", "JobResumed", "Job resumed")
                status.setdefault("startTime", timestamp())

        written = self._store.mutate(JOBS, namespace_of(job), name_of(job), change)
        if resumed is not None:
            self._recorder.normal(job, *resumed)
        return written

    @staticmethod
    def _resumption(job: Object) -> tuple[str, str] | None:
        """The event for a change of suspension that is about to be written."""
        suspend = bool(job["spec"].get("suspend"))
        if suspend == _true(job, "Suspended"):
            return None
        return ("Suspended", "Job suspended") if suspend else ("Resumed", "Job resumed")

    def _expire(self, key: Key, job: Object) -> None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        ended = condition_of(job, "Complete") or condition_of(job, "Failed")
        left = unix(ended["lastTransitionTime"]) + ttl - time.time() if ended else 0.0
        if left <= 0:
            garbage.delete(self._store, JOBS, job, {"propagationPolicy": "Foreground"})
        else:
            self._later(key, left)
