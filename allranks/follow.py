"""Following a deployed run to its end: watches and log streams in, ledger and findings out. Nothing is polled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from allranks import diagnosis
from allranks.artefacts import Artefacts
from allranks.cluster import ClusterError, objects, paths
from allranks.cluster.client import Api, ApiError, Object
from allranks.cluster.pace import Pace
from allranks.cluster.watch import Type, watch
from allranks.expectations import BEFORE_START, PEERS_LEFT, over_at, timers
from allranks.ledger import Ledger
from allranks.names import RUN_LABEL
from allranks.plan import INSTANCE_TYPE, Plan
from allranks.pods import FollowedPod, controlled_by
from allranks.render import GRACE_PERIOD
from allranks.result import Finding
from allranks.settings import Settings
from allranks.state import RunState
from allranks.transport import wrong_network

# How far a controller's clock may be off, in seconds.
_CLOCKS = 60.0
# A look at the run costs as much as it has pods: after each, a pause of so many times its length, in seconds at most.
_PAUSE, _MOST_PAUSE = 30.0, 0.5
# Seconds without a word of any pod after which their watch may be dead, and how often they are waited for.
_QUIET, _TURNS = 0.1, 50


@dataclass(frozen=True, slots=True)
class RunProgress:
    """For the live line: what a run is doing, and how many ranks have started and finished."""

    run_id: str
    phase: str
    """plan, wait, deploy, schedule, start, train, end, done."""
    world_size: int
    started: int
    finished: int
    message: str = ""


Observer = Callable[[RunProgress], None]


class Following:
    """One deployed run. Await `to_the_end()`; then `failures` and `state` hold what the checks need."""

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
        self._api, self._plan, self._namespace = api, plan, namespace
        self._ledger, self._artefacts = ledger, artefacts
        self._observe = observe
        self._shown: RunProgress | None = None
        self._began = time.time()
        self._pace = Pace.of(plan.nodes)
        self._news = 0
        """How often the watch has told of a pod."""
        self._changed = asyncio.Event()
        self._stopping = self._left_alone = False
        self.state = RunState(plan, settings, ledger)
        self.failures: list[Finding] = []

    async def to_the_end(self) -> None:
        """Returns when all that can be known is known. Raises ClusterError when the API server stays away."""
        watchers: list[asyncio.Task[None]] = [asyncio.create_task(work, name=name) for name, work in self._watches()]
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
            for pod in self.state.pods.values():
                await pod.stop_following()
        self._conclude()

    # What comes in ---------------------------------------------------------------------------------------------------

    def _watches(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        labelled = {"labelSelector": f"{RUN_LABEL}={self.state.name}"}
        here = self._namespace
        watches = [
            ("watch pods", self._watch(paths.namespaced("pods", here), labelled, self._on_pod_news)),
            ("watch job", self._watch(paths.namespaced("jobs", here), labelled, self._on_job)),
            ("watch events", self._watch(paths.namespaced("events", here), {}, self._on_event)),
            ("watch nodes", self._watch(paths.NODES, self._of_nodes(), self._on_node)),
        ]
        if self.state.settings.provision:
            # Of objects without a namespace; who provisions nodes tells there how far it is.
            claims = {"fieldSelector": "involvedObject.kind=NodeClaim"}
            at = paths.namespaced("events", "default")
            watches.append(("watch node claims", self._watch(at, claims, self._on_claim, optional=True)))
        return watches

    def _of_nodes(self) -> dict[str, str]:
        """A cluster may have thousands of nodes: only those of our kind are watched."""
        kind = self._plan.instance_type
        return {"labelSelector": f"{INSTANCE_TYPE}={kind}"} if kind else {}

    async def _watch(
        self, path: str, query: dict[str, str], on: Callable[[Object, bool], None], *, optional: bool = False
    ) -> None:
        try:
            async with aclosing(watch(self._api, path, query)) as changes:
                async for change in changes:
                    if change.type is not Type.SYNCED:
                        on(change.object, change.type is Type.DELETED)
                        self._changed.set()
        except ApiError as error:
            if not optional or error.status != 403:
                raise
            await asyncio.Event().wait()  # we may not see it; the run does not depend on it

    def _on_pod_news(self, state: Object, deleted: bool) -> None:
        self._news += 1
        self._on_pod(state, deleted)

    def _on_pod(self, state: Object, deleted: bool) -> None:
        if not controlled_by(state, self.state.name):
            return  # somebody else's, with our label
        # What each pod repeats of the Job grows with their number; a thousand of them would be most of our memory.
        state["metadata"].pop("managedFields", None)
        state.get("spec", {}).pop("affinity", None)
        pod = self.state.pod(state, deleted=deleted)
        pod.follow(self._api, self._ledger, self._artefacts, self._on_log, self._pace, self._look_at)
        if pod.terminal:
            self._changed.set()

    async def _look_at(self, pod: FollowedPod) -> None:
        """Its log has ended: ask what became of it, should the watch be late (or dead without a sign)."""
        for _ in range(_TURNS):
            news = self._news
            if await pod.told_of_its_end(_QUIET):
                return
            if self._news == news:
                break
            # A watch that speaks is only busy: it will tell before an answer would.
        try:
            path = paths.namespaced("pods", self._namespace, pod.name)
            state = await self._api.call("GET", path, patience=0)
        except ApiError as error:
            if error.status == 404:
                self._on_pod(pod.object, True)
            return
        except ClusterError:
            return
        if state["metadata"]["uid"] != pod.object["metadata"]["uid"]:
            self._on_pod(pod.object, True)
        elif diagnosis.container_state(state, "terminated") is not None and not pod.terminal:
            self._on_pod(state, False)

    def _on_job(self, state: Object, deleted: bool) -> None:
        self.state.job = state
        if deleted and not self._stopping:
            self.state.job_deleted = time.time()

    def _on_event(self, event: Object, deleted: bool) -> None:
        # A queue's Workload has the Job's name in its own.
        if deleted or self.state.name not in str((event.get("involvedObject") or {}).get("name", "")):
            return
        self._artefacts.event(event)
        self.state.event(event)

    def _on_claim(self, event: Object, deleted: bool) -> None:
        """Told from those of others by time: what happened before this run is not about it."""
        if not deleted and diagnosis.event_time(event) >= self._began - _CLOCKS:
            self._artefacts.event(event)
            self.state.event(event)

    def _on_node(self, node: Object, deleted: bool) -> None:
        self.state.node(node, deleted=deleted)

    def _on_log(self, pod: FollowedPod) -> None:
        self.state.heard(stepped=pod.told.stepped)
        self._changed.set()

    # What is concluded -----------------------------------------------------------------------------------------------

    async def _until_over(self) -> None:
        while True:
            self._changed.clear()
            for pod in self.state.pods.values():
                if trouble := pod.trouble():
                    raise trouble
            now = time.monotonic()
            self._show()
            over = over_at(self.state, now, stopping=self._stopping)
            if self._left_alone or over <= now:
                break
            expected = [] if self._stopping else list(timers(self.state, now))
            if due := [finding for at, finding in expected if at <= now]:
                self.failures.append(due[0]())
                with suppress(ClusterError):  # what was found stands; whether it ends is then up to the Job's deadline
                    await self._stop(self.failures[-1])
                continue
            look = time.monotonic() - now
            wake = min([over, *(at for at, _ in expected)])
            try:
                async with asyncio.timeout(wake - now if wake != float("inf") else None):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(min(_MOST_PAUSE, _PAUSE * look))
        self.state.moment("ended")

    async def _stop(self, why: Finding) -> None:
        """Ends the run early. Its logs are read on: the ranks print their stacks when they are told to go."""
        self._stopping = True
        self._show()
        here, name = self._namespace, self.state.name
        if why.code == PEERS_LEFT:
            self._left_alone = True
        elif self.state.settings.keep == "never":
            names = [pod.name for pod in self.state.pods.values() if not pod.terminal]
            await objects.stop_pods(self._api, here, name, names, grace=GRACE_PERIOD)
        elif why.phase in BEFORE_START:
            self._left_alone = True  # as it stands is how somebody wants to look at it
        else:
            await objects.end_job(self._api, here, name)

    def _conclude(self) -> None:
        """Adds what the objects say in the end."""
        pods = self.state.pods
        known = {finding.pod for finding in self.failures}
        gone = {finding.node for finding in self.failures if finding.code in ("node-lost", "node-gone")}
        for uid, pod in pods.items():
            found = diagnosis.disruption(pod.object)
            if found is not None and found.pod not in known:
                # By our clock: the order of what happens in several places is the order in which we saw it.
                at = self.state.disrupted.get(uid, found.at)
                self.failures.append(replace(found, at=at, consequence=found.node in gone))
            elif (again := diagnosis.restarted(pod.object)) is not None:
                self.failures.append(again)
        failure = diagnosis.job_failure(self.state.job)
        at_deadline = failure is not None and failure.code == "deadline"
        if self.state.job_deleted is None and not self.failures and not at_deadline:
            taken = [pods[uid] for uid in self.state.taken]
            self.failures += [diagnosis.pod_deleted(pod.object, self._began) for pod in taken]
        network = wrong_network(self._plan, self._ledger, self.state.networks, self.state.moments["ended"])
        if network is not None and network.code not in {finding.code for finding in self.failures}:
            self.failures.append(network)
        self.failures += diagnosis.shared_nodes(pod.object for pod in pods.values() if not pod.extra)
        explained = bool(self.failures) or any(pod.failed for pod in pods.values())
        if failure is not None and (failure.code != "job-failed" or not explained):
            self.failures.append(failure)

    # What is shown ---------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        progress = self._ledger.progress
        done = progress.finished == self._plan.world_size
        phase = "end" if self._stopping or ("last record" in self.state.moments and done) else str(self.state.phase())
        message = self.failures[0].message if self.failures else self._waiting_for()
        shown = RunProgress(self.state.name, phase, self._plan.world_size, progress.heard, progress.finished, message)
        if shown != self._shown:
            self._shown = shown
            self._observe(shown)

    def _waiting_for(self) -> str:
        state = self.state
        if state.suspended and state.settings.queue:
            return diagnosis.no_pods(state.job, list(state.events.values()), state.name).finding.message
        for lost in state.lost_nodes.values():
            return lost.message
        waiting = [pod for pod in state.pods.values() if not (pod.started or pod.terminal)]
        about, _ = diagnosis.by_pod(state.events.values() if waiting else ())
        for pod in waiting:
            found = diagnosis.blocked(pod.object, about.get(pod.name, ()))
            # That an image is being pulled is no news; that a sandbox cannot be made is.
            if found is not None and (found.finding.code != "not-started" or found.finding.evidence):
                return found.finding.message
        return ""
