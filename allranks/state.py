"""What is known of a run while it is followed: its pods, its Job, events, nodes, and when each thing was first seen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from allranks import diagnosis
from allranks.ledger import Ledger
from allranks.plan import Plan
from allranks.pods import FollowedPod
from allranks.result import Finding, Phase
from allranks.settings import Settings
from allranks.transport import networks_of_ranks

Object = Mapping[str, Any]

_MOST_EVENTS = 2000
_AT_ONCE = 0.1


class RunState:
    """Written by what follows the run, read by what concludes from it. Moments are Unix times, `since` monotonic."""

    def __init__(self, plan: Plan, settings: Settings, ledger: Ledger) -> None:
        assert plan.run_id is not None
        self.plan, self.settings, self.ledger = plan, settings, ledger
        self.name = plan.run_id
        self.pods: dict[str, FollowedPod] = {}
        """By uid."""
        self.job: Object | None = None
        self.job_deleted: float | None = None
        """When somebody else deleted it (Unix seconds)."""
        self.events: dict[str, Object] = {}
        """By uid, the newest last."""
        self.nodes: dict[str, Object] = {}
        """By name: those that the run may use, as last seen."""
        self.lost_nodes: dict[str, Finding] = {}
        """Nodes that are gone or not ready now, by name."""
        self.troubled: dict[str, float] = {}
        """Nodes that were not ready at some time: since when (monotonic)."""
        self.disrupted: dict[str, float] = {}
        """Pods (by uid) that were taken away: when that was seen, by our clock, since the nodes' may differ."""
        self.taken: dict[str, float] = {}
        """Pods (by uid) that were deleted while nothing had failed: by somebody else, then."""
        self.failed_at: float | None = None
        """When (monotonic) the first pod was seen to have failed."""
        self.moments: dict[str, float] = {}
        """Name → Unix time of the first occurrence."""
        self.moved_at = time.monotonic()
        """When a record last brought something new."""
        self._records: tuple[int, int, float | None] = (0, 0, None)
        self._since: dict[str, float] = {}
        self._of_index: Counter[int] = Counter()
        """Index → how many pods had it."""
        self._reached: dict[str, set[str]] = {"scheduled": set(), "pulled": set(), "started": set()}
        """Moment → the pods (by uid) that are as far; a look at all of them for each news of one would be too slow."""

    @property
    def planned(self) -> list[FollowedPod]:
        return [pod for pod in self.pods.values() if not pod.extra]

    @property
    def everywhere_started(self) -> bool:
        planned = self.planned
        return len(planned) == self.plan.nodes and all(pod.started for pod in planned)

    @property
    def suspended(self) -> bool:
        """Whether a queue holds the Job."""
        return bool((self.job or {}).get("spec", {}).get("suspend"))

    @property
    def networks(self) -> dict[int, tuple[str, ...]]:
        """Rank → the networks that its process says it uses."""
        logs = {pod.source: pod.told for pod in self.pods.values() if pod.told.networks}
        return networks_of_ranks(self.ledger, logs) if logs else {}

    def phase(self) -> Phase:
        if "scheduled" not in self.moments:
            return Phase.SCHEDULE
        if "pulled" not in self.moments:
            return Phase.PULL
        if "started" not in self.moments:
            return Phase.START
        return Phase.TRAIN if self.ledger.progress.heard else Phase.RENDEZVOUS

    def moment(self, name: str) -> None:
        self.moments.setdefault(name, time.time())

    def first(self, what: str, now: float) -> float:
        """Since when (monotonic) something is so."""
        return self._since.setdefault(what, now)

    def only(self, prefix: str, standing: set[str]) -> None:
        """Forgets what began with the prefix and is not so any more."""
        for key in [key for key in self._since if key.startswith(prefix) and key.removeprefix(prefix) not in standing]:
            del self._since[key]

    # What comes in ---------------------------------------------------------------------------------------------------

    def pod(self, state: Object, *, deleted: bool) -> FollowedPod:
        uid = state["metadata"]["uid"]
        pod = self.pods.get(uid)
        if pod is None:
            index = diagnosis.pod_index(state)
            pod = self.pods[uid] = FollowedPod(dict(state), extra=self._of_index[index] > 0)
            self._of_index[index] += 1
        pod.update(dict(state), deleted=deleted)
        if diagnosis.disruption(state) is not None:
            self.disrupted.setdefault(uid, time.time())
        self._note_end(uid, pod)
        if not pod.extra:
            for name, reached in (("scheduled", pod.node), ("pulled", pod.pulled), ("started", pod.started)):
                pods = self._reached[name]
                (pods.add if reached else pods.discard)(uid)
                if len(pods) == self.plan.nodes:
                    self.moment(name)
        return pod

    def _note_end(self, uid: str, pod: FollowedPod) -> None:
        """The controller deletes the peers of a pod that has failed; one deleted before any did was deleted by others.

        A listing brings both at once, in any order: then it was the controller.
        """
        now = time.monotonic()
        if pod.failed and not pod.deleted and self.failed_at is None:
            self.failed_at = now
            # How a pod ends that was told to go is no failure that it was told to go for.
            self.taken = {each: at for each, at in self.taken.items() if each == uid or at < now - _AT_ONCE}
        deleting = pod.deleted or pod.object["metadata"].get("deletionTimestamp")
        if not deleting or pod.extra or self.failed_at is not None or uid in self.disrupted:
            return
        if self._of_index[pod.index] == 1:
            self.taken.setdefault(uid, now)

    def heard(self, *, stepped: bool) -> None:
        """The ledger was fed: notes whether, and when, that brought something new.

        `stepped` says whether a step was told of in the log that it was fed from.
        """
        progress = self.ledger.progress
        records = (progress.heard, progress.finished, progress.last_record)
        if records == self._records:
            return
        self._records = records
        self.moved_at = time.monotonic()
        if progress.heard == self.plan.world_size:
            self.moment("heard")
        if stepped:
            self.moment("first step")
        # After those: one piece of a log may bring all three.
        self.moments["last record"] = time.time()

    def event(self, event: Object) -> None:
        uid = event["metadata"]["uid"]
        self.events.pop(uid, None)
        self.events[uid] = event
        if len(self.events) > _MOST_EVENTS:  # a thousand pods' routine must not hide what comes after it
            del self.events[next(iter(self.events))]

    def node(self, node: Object, *, deleted: bool) -> None:
        name = str(node["metadata"]["name"])
        if name in self.plan.node_names or not self.plan.node_names:
            self.nodes[name] = node
        lost = diagnosis.node_trouble(node, deleted=deleted, at=time.time())
        if lost is None and name not in self.lost_nodes:
            return
        if name not in {pod.node for pod in self.pods.values() if not pod.terminal}:
            return
        if lost is None:
            self.lost_nodes.pop(name, None)
        else:
            # The first word of it stays: the message is of the moment at which it was seen.
            self.lost_nodes.setdefault(name, lost)
            self.troubled.setdefault(name, time.monotonic())
