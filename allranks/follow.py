"""Following a deployed run to its end: watches and log streams in, ledger and findings out. Nothing is polled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from allranks import diagnosis
from allranks.artefacts import Artefacts
from allranks.cluster import objects, paths
from allranks.cluster.client import Api, Object
from allranks.cluster.watch import Type, watch
from allranks.diagnosis import Blocked, Grace
from allranks.ledger import Ledger
from allranks.plan import Plan
from allranks.pods import FollowedPod
from allranks.render import GRACE_PERIOD
from allranks.result import Finding, Phase
from allranks.settings import Settings

# Seconds that a state which nothing is expected to mend must last before it counts.
_FINAL_GRACE = 5.0
# The Job's word on pods that have all ended comes a moment later.
_JOB_GRACE = 3.0
_STOP_BOUND = GRACE_PERIOD + 20.0
_MOST_EVENTS = 2000


@dataclass(frozen=True, slots=True)
class RunProgress:
    """For the live line: what a run is doing, and how many ranks have started and finished."""

    run_id: str
    phase: str
    """plan, deploy, schedule, start, train, end, done."""
    world_size: int
    started: int
    finished: int
    message: str = ""


Observer = Callable[[RunProgress], None]
Timer = tuple[float, Finding]


class Following:
    """One deployed run. Await `to_the_end()`; then `failures` and `pods` hold what the checks need."""

    def __init__(
        self,
        api: Api,
        plan: Plan,
        settings: Settings,
        namespace: str,
        ledger: Ledger,
        artefacts: Artefacts,
        observe: Observer,
    ) -> None:
        assert plan.run_id is not None
        self._api, self._plan, self._settings = api, plan, settings
        self._namespace, self._name = namespace, plan.run_id
        self._ledger, self._artefacts = ledger, artefacts
        self._observe = observe
        self._shown: RunProgress | None = None
        self._changed = asyncio.Event()
        self.pods: dict[str, FollowedPod] = {}
        """By uid."""
        self.job: Object | None = None
        self.events: dict[str, Object] = {}
        self.failures: list[Finding] = []
        self.moments: dict[str, float] = {}
        """Name → Unix time of the first occurrence."""
        self._since: dict[str, float] = {}
        """When a state was first seen, by our own clock: the API server's may differ."""
        self._records = (0, 0, None)
        self._moved_at = time.monotonic()
        self._stopping = False

    async def to_the_end(self) -> None:
        """Returns when all that can be known is known. Raises ClusterError when the API server stays away."""
        labelled = {"labelSelector": f"{objects.RUN_LABEL}={self._name}"}
        watchers = [
            asyncio.create_task(self._watch("pods", labelled, self._on_pod), name="watch pods"),
            asyncio.create_task(self._watch("jobs", labelled, self._on_job), name="watch job"),
            asyncio.create_task(self._watch("events", {}, self._on_event), name="watch events"),
        ]
        main = asyncio.create_task(self._until_over(), name="follow run")
        try:
            await asyncio.wait([main, *watchers], return_when=asyncio.FIRST_COMPLETED)
            # A watch never ends by itself: one that is done has failed.
            for task in (*watchers, main):
                if task.done():
                    task.result()
        finally:
            for task in (main, *watchers):
                task.cancel()
            await asyncio.gather(main, *watchers, return_exceptions=True)
            for pod in self.pods.values():
                await pod.stop_following()
        self._conclude()

    # What comes in ---------------------------------------------------------------------------------------------------

    async def _watch(self, plural: str, query: dict[str, str], on: Callable[[Object, bool], None]) -> None:
        async with aclosing(watch(self._api, paths.namespaced(plural, self._namespace), query)) as changes:
            async for change in changes:
                if change.type is not Type.SYNCED:
                    on(change.object, change.type is Type.DELETED)
                    self._changed.set()

    def _on_pod(self, state: Object, deleted: bool) -> None:
        uid = state["metadata"]["uid"]
        pod = self.pods.get(uid)
        if pod is None:
            index = diagnosis.pod_index(state)
            pod = self.pods[uid] = FollowedPod(state, extra=any(other.index == index for other in self.pods.values()))
        pod.update(state, deleted=deleted)
        pod.follow(self._api, self._ledger, self._artefacts, self._on_log)
        planned = [pod for pod in self.pods.values() if not pod.extra]
        if len(planned) == self._plan.nodes:
            if all(pod.node for pod in planned):
                self._moment("scheduled")
            if all(pod.started for pod in planned):
                self._moment("started")

    def _on_job(self, state: Object, deleted: bool) -> None:
        self.job = state

    def _on_event(self, event: Object, deleted: bool) -> None:
        if deleted or not str((event.get("involvedObject") or {}).get("name", "")).startswith(self._name):
            return
        self._artefacts.event(event)
        self.events.pop(event["metadata"]["uid"], None)  # the newest last
        if len(self.events) < _MOST_EVENTS:
            self.events[event["metadata"]["uid"]] = event

    def _on_log(self) -> None:
        progress = self._ledger.progress
        records = (progress.heard, progress.finished, progress.last_record)
        if records != self._records:
            self._records = records  # type: ignore[assignment]
            self._moved_at = time.monotonic()
            self.moments["last record"] = time.time()
            if progress.heard == self._plan.world_size:
                self._moment("heard")
        self._changed.set()

    def _moment(self, name: str) -> None:
        self.moments.setdefault(name, time.time())

    # What is concluded -----------------------------------------------------------------------------------------------

    async def _until_over(self) -> None:
        while True:
            self._changed.clear()
            for pod in self.pods.values():
                if trouble := pod.trouble():
                    raise trouble
            self._show()
            now = time.monotonic()
            over_at = self._over_at(now)
            if over_at <= now:
                break
            timers = [] if self._stopping else list(self._timers(now))
            if due := [finding for at, finding in timers if at <= now]:
                self.failures.append(due[0])
                await self._stop()
                continue
            wake = min([over_at, *(at for at, _ in timers)])
            try:
                async with asyncio.timeout(wake - now if wake != float("inf") else None):
                    await self._changed.wait()
            except TimeoutError:
                pass
        self._moment("ended")

    def _over_at(self, now: float) -> float:
        """When the run is over as things stand; infinity while something is still to come."""
        pods = list(self.pods.values())
        ended = diagnosis.job_ended(self.job)
        indexes = {pod.index for pod in pods}
        if self._stopping and (not pods or all(pod.drained for pod in pods)):
            return now
        if pods and all(pod.drained for pod in pods) and len(indexes) == self._plan.nodes:
            return now if ended else self._first("pods ended", now) + _JOB_GRACE
        if ended and all(pod.drained for pod in pods):
            return self._first("job ended", now) + _JOB_GRACE
        return self._first("stopping", now) + _STOP_BOUND if self._stopping else float("inf")

    def _timers(self, now: float) -> Iterator[Timer]:
        """What will be a failure, and when, unless something happens before. Times are of the monotonic clock."""
        settings, plan = self._settings, self._plan
        deadline = self._first("began", now) + settings.deadline
        yield deadline, diagnosis.deadline(plan, settings.deadline, self._phase(), time.time())
        planned = [pod for pod in self.pods.values() if not pod.extra]
        yield from self._blocked_timers(planned, now)
        states = [pod.object for pod in planned]
        progress = self._ledger.progress
        waited = settings.start_timeout
        if len(planned) == plan.nodes and all(pod.started for pod in planned) and progress.heard < plan.world_size:
            started = self._first("started", now) + waited
            yield started, diagnosis.no_rendezvous(plan, self._ledger.ranks_heard, states, waited, time.time())
        if progress.heard:
            silence = settings.stall_timeout
            finished = self._finished_ranks()
            last = self.moments.get("last record")
            yield self._moved_at + silence, diagnosis.stall(plan, finished, states, silence, last)
        if any(pod.failed for pod in planned) or diagnosis.job_ended(self.job) == "Failed":
            # The Job controller ends the peers of a failed pod; one that does not go is stopped by us.
            bound = self._first("failed", now) + _STOP_BOUND
            left = [pod.name for pod in planned if not pod.terminal]
            yield (
                bound,
                Finding(
                    "peers-left",
                    f"pods {', '.join(left)} did not end within {_STOP_BOUND:g} s of the first failure",
                    phase=Phase.TRAIN,
                    at=time.time(),
                    consequence=True,
                ),
            )

    def _blocked_timers(self, planned: Iterable[FollowedPod], now: float) -> Iterator[Timer]:
        events = list(self.events.values())
        standing: dict[str, Blocked] = {}
        count = 0
        for pod in planned:
            count += 1
            if (state := diagnosis.blocked(pod.object, events)) is not None and not pod.terminal:
                standing[f"{state.finding.code} {pod.name}"] = state
        if count < self._plan.nodes:
            state = diagnosis.no_pods(self.job, events, self._name)
            standing[state.finding.code] = state
        for key in [key for key in self._since if key.startswith("blocked ") and key[8:] not in standing]:
            del self._since[key]
        grace = {
            Grace.SCHEDULE: self._settings.schedule_timeout,
            Grace.PULL: self._settings.pull_timeout,
            Grace.FINAL: _FINAL_GRACE,
        }
        for key, state in standing.items():
            yield self._first(f"blocked {key}", now) + grace[state.grace], state.finding

    def _first(self, state: str, now: float) -> float:
        return self._since.setdefault(state, now)

    def _finished_ranks(self) -> list[int]:
        return [rank for rank, account in self._ledger.accounts().items() if account.finished]

    def _phase(self) -> Phase:
        if "scheduled" not in self.moments:
            return Phase.SCHEDULE
        if "started" not in self.moments:
            return Phase.START
        return Phase.TRAIN if self._ledger.progress.heard else Phase.RENDEZVOUS

    async def _stop(self) -> None:
        """Ends the run early. Its logs are read on: the ranks print their stacks when they are told to go."""
        self._stopping = True
        self._show()
        names = [pod.name for pod in self.pods.values() if not pod.terminal]
        await objects.stop_pods(self._api, self._namespace, self._name, names, grace=GRACE_PERIOD)

    def _conclude(self) -> None:
        """Adds what the objects say in the end."""
        states = [pod.object for pod in self.pods.values()]
        self.failures += [found for state in states if (found := diagnosis.disruption(state)) is not None]
        self.failures += diagnosis.shared_nodes(pod.object for pod in self.pods.values() if not pod.extra)
        explained = bool(self.failures) or any(pod.failed for pod in self.pods.values())
        failure = diagnosis.job_failure(self.job)
        if failure is not None and (failure.code != "job-failed" or not explained):
            self.failures.append(failure)

    def _show(self) -> None:
        phase = "end" if self._stopping or ("last record" in self.moments and self._done()) else str(self._phase())
        progress = self._ledger.progress
        message = self.failures[0].message if self.failures else self._waiting_for()
        shown = RunProgress(self._name, phase, self._plan.world_size, progress.heard, progress.finished, message)
        if shown != self._shown:
            self._shown = shown
            self._observe(shown)

    def _done(self) -> bool:
        return self._ledger.progress.finished == self._plan.world_size

    def _waiting_for(self) -> str:
        for pod in self.pods.values():
            if (state := diagnosis.blocked(pod.object)) is not None and state.finding.code != "not-started":
                return state.finding.message
        return ""
