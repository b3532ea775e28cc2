"""The pods of a run as they are followed: each one's newest state, its log stream, and what is known at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from allranks.artefacts import Artefacts
from allranks.checks import PodEvidence
from allranks.cluster.client import Api, Object
from allranks.cluster.logs import LogFollower
from allranks.cluster.pace import Pace
from allranks.diagnosis import CONTAINER, container_state, container_status, pod_index, seconds
from allranks.ledger import Ledger
from allranks.ledger.status import parse_status
from allranks.transport import NodeLog

Look = Callable[["FollowedPod"], Awaitable[None]]
# When a container started that never ran: the kubelet's word, and the runtime's (1970).
_NEVER = (None, 0.0)


def controlled_by(pod: Object, job: str) -> bool:
    """Whether the Job's controller made the pod."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and (owner["kind"], owner["name"]) == ("Job", job) for owner in owners)


class FollowedPod:
    """One pod. `update()` with each state; its log is followed from the moment its container runs."""

    def __init__(self, first: Object, *, extra: bool) -> None:
        self.object = first
        self.name = str(first["metadata"]["name"])
        self.index = pod_index(first)
        self.extra = extra
        self.deleted = False
        # Asked of every pod at every look at the run: found out once for each state.
        self.phase = "Unknown"
        self.started = False
        self.clock: float | None = None
        """Seconds to add to its node's times to have ours; None before anything told the time."""
        self.told = NodeLog()
        self._terminated: Object | None = None
        self._follower: LogFollower | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def node(self) -> str | None:
        name = self.object.get("spec", {}).get("nodeName")
        return None if name is None else str(name)

    @property
    def source(self) -> str:
        """The name of its log."""
        return f"{self.name}.log"

    @property
    def pulled(self) -> bool:
        """Its image is on the node."""
        return self.started or bool(container_status(self.object).get("imageID"))

    @property
    def terminal(self) -> bool:
        """Nothing more will happen to it."""
        return self.deleted or self._terminated is not None or self.phase in ("Succeeded", "Failed")

    @property
    def failed(self) -> bool:
        code = (self._terminated or {}).get("exitCode")
        return self.phase == "Failed" or code not in (None, 0) or (self.deleted and code is None)

    @property
    def out_of_memory(self) -> bool:
        return (self._terminated or {}).get("reason") == "OOMKilled"

    @property
    def drained(self) -> bool:
        """Its log is read to the end, or will never begin."""
        return self.terminal and (self._task is None or self._task.done())

    @property
    def log_whole(self) -> bool:
        """Whether the log was read to its end."""
        return self._follower is None or self._follower.whole

    def update(self, state: Object, *, deleted: bool = False) -> None:
        self.object = state
        self.phase = str((state.get("status") or {}).get("phase", "Unknown"))
        self.deleted = self.deleted or deleted
        running = container_state(state, "running")
        if running is not None:
            self._tell_time(seconds(running.get("startedAt")))
        terminated = container_state(state, "terminated")
        # Kept: a pod that is garbage-collected may be seen once more without its container's state.
        self._terminated = dict(terminated) if terminated is not None else self._terminated
        if running is not None and self.phase == "Running":
            self._terminated = None  # it was started again
        ran = seconds((self._terminated or {}).get("startedAt"))
        self.started = self.started or running is not None or ran not in _NEVER
        if self.terminal and self._follower is not None:
            self._follower.ended()

    def _tell_time(self, said: float | None) -> None:
        """A time that its node gave, now. The least difference is the clocks'; the rest of it is the way to us."""
        if said is not None:
            late = time.time() - said
            self.clock = late if self.clock is None else min(late, self.clock)

    def follow(
        self,
        api: Api,
        ledger: Ledger,
        artefacts: Artefacts,
        moved: Callable[[FollowedPod], None],
        pace: Pace,
        look: Look | None = None,
    ) -> None:
        """Starts the log stream once the container has started; does nothing before and after that.

        `look` is called when the log ends although nothing told that the container did.
        """
        if self._task is not None or not self.started:
            return
        namespace = str(self.object["metadata"]["namespace"])
        reader = ledger.source(self.source, pod_index=self.index, pod=self.name, node=self.node)
        log = artefacts.open_log(self.name)

        def sink(content: bytes) -> None:
            log.write(content)
            before = self.told.newest
            reader.feed(content)
            self.told.feed(content)
            if self.told.newest != before:
                self._tell_time(self.told.newest)
            moved(self)

        async def read_to_the_end(follower: LogFollower) -> None:
            try:
                await follower.run()
            finally:
                reader.close()
                moved(self)

        asked = None if look is None else partial(look, self)
        self._follower = LogFollower(api, namespace, self.name, CONTAINER, sink, pace=pace, look=asked)
        if self.terminal:
            self._follower.ended()
        self._task = asyncio.create_task(read_to_the_end(self._follower), name=f"log of {self.name}")

    async def told_of_its_end(self, seconds: float) -> bool:
        """Whether a state within so many seconds says that it has ended; returns as soon as one does."""
        return self._follower is not None and await self._follower.told(seconds)

    async def stop_following(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def trouble(self) -> BaseException | None:
        """What the log's task died of: a fault of ours, never of the log's."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    def evidence(self) -> PodEvidence:
        ended: dict[str, Any] = dict(self._terminated or {})
        message = ended.get("message")
        return PodEvidence(
            pod_index=self.index,
            pod=self.name,
            node=self.node,
            status=parse_status(message or ""),
            phase=self.phase,
            exit_code=ended.get("exitCode"),
            reason=ended.get("reason") or (self.object.get("status") or {}).get("reason"),
            message=message,
            extra=self.extra,
            clock=self.clock or 0.0,
        )
