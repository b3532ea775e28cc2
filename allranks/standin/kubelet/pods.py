"""One pod on its way: volumes, images, init containers, containers, restarts, termination."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.standin.kubelet import names, volumes
from allranks.standin.kubelet.environment import ConfigError, Rewriter, Surroundings, surroundings
from allranks.standin.kubelet.generator import bare_volumes, is_generated, start
from allranks.standin.kubelet.logs import ContainerLog
from allranks.standin.kubelet.process import MARKER, Container
from allranks.standin.kubelet.status import ENDED, RUNNING, WAITING, ContainerState, clone_states, fill
from allranks.standin.kubelet.termination import termination_message
from allranks.standin.objects import Object, is_finished, name_of, namespace_of, set_condition, timestamp
from allranks.standin.resources import PODS

if TYPE_CHECKING:
    from allranks.standin.kubelet.kubelet import Kubelet

RETRY = 0.5
"""Seconds between attempts at what is not there yet: a ConfigMap, a volume's source."""
PULL_BACK_OFF = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""Seconds between attempts to pull, shorter at first than a kubelet's so that a transient refusal is soon over."""
CRASH_BACK_OFF = (0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)


class PodWorker:
    """Carries one pod from its binding to its end."""

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self.pod = pod
        self.key = (namespace_of(pod), name_of(pod))
        self.uid: str = pod["metadata"]["uid"]
        self.root = kubelet.root / "pods" / self.uid
        self.logs: dict[str, list[ContainerLog]] = {}
        self._kubelet = kubelet
        self._recorder = kubelet.recorder(pod["spec"]["nodeName"])
        self.node: str = pod["spec"]["nodeName"]
        self._address = kubelet.addresses.of_pod(pod)
        self._clock = functools.partial(kubelet.clock, self.node)
        self._started = timestamp(self._clock())
        spec = pod["spec"]
        self._init = [self._state(c, init=True) for c in spec.get("initContainers") or ()]
        self._main = [self._state(c) for c in spec["containers"]]
        if self._init:
            for state in self._main:
                state.wait("PodInitializing")
        self._volumes: dict[str, Path] = {}
        self._running: dict[str, Container] = {}
        self._stopping = asyncio.Event()
        self._stop_reason: tuple[str, str] | None = None
        self._out_of_memory: int | None = None
        """The exit code that is reported for it."""
        self._restarting = False
        self._work = asyncio.create_task(self._live())
        self._ending: asyncio.Task[None] | None = None

    def _state(self, container: Mapping[str, Any], *, init: bool = False) -> ContainerState:
        return ContainerState(container["name"], container["image"], self.uid, init=init, clock=self._clock)

    @property
    def states(self) -> list[ContainerState]:
        return self._init + self._main

    def state_of(self, container: str) -> ContainerState | None:
        return next((state for state in self.states if state.name == container), None)

    # What the outside does to a pod.

    def changed(self, pod: Object) -> None:
        """The object was modified."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._stop(float(pod["metadata"].get("deletionGracePeriodSeconds", 0)))

    def gone(self) -> None:
        """The object was removed: nothing may stay."""
        self._stop(0.0)

    def _stop(self, grace: float) -> None:
        if self._ending is not None:
            if grace > 0 or self._ending.done():
                return
            self._ending.cancel()  # A second delete with no grace.
        self._ending = asyncio.create_task(self._end(grace))

    async def _end(self, grace: float) -> None:
        await self._get_stuck()
        self._stopping.set()
        for name, container in tuple(self._running.items()):
            self._recorder.normal(self.pod, "Killing", f"Stopping container {name}", _field(name))
            if grace > 0:
                container.terminate()
        if grace > 0 and self._running:
            await asyncio.wait([self._work], timeout=grace)
        for container in self._running.values():
            container.kill()
        await asyncio.wait([self._work])

    async def ended(self) -> None:
        await asyncio.wait([self._work])

    # What faults do to it.

    def evict(self, message: str) -> None:
        """As a kubelet does that runs out of something: at once, without grace."""
        self._stop_reason = ("Evicted", message)
        self._recorder.warning(self.pod, "Evicted", message)
        self._stop(0.0)

    def run_out_of_memory(self, code: int) -> None:
        """The kernel kills one process, or (137) all of them, as it does with cgroup v2."""
        self._out_of_memory = code
        for container in tuple(self._running.values()):
            if code == 137:
                container.kill()
            else:
                container.kill_one()

    def restart(self) -> None:
        self._restarting = True
        for container in tuple(self._running.values()):
            container.kill()

    def freeze(self) -> None:
        for container in self._running.values():
            container.stand_still(still=True)

    def thaw(self) -> None:
        for container in self._running.values():
            container.stand_still(still=False)

    async def _get_stuck(self) -> None:
        """Returns when the processes can die: never, while a fault says so."""
        faults = self._kubelet.faults
        if faults.hit(("stuck-pod",), "KILL", self.key[1]) is None:
            return
        self.freeze()
        while faults.standing("stuck-pod", self.key[1]) is not None:
            await faults.ended()
        self.thaw()

    def kill(self) -> None:
        """SIGKILL to whatever runs, with nothing written any more: the stand-in itself is ending."""
        self._work.cancel()
        for container in self._running.values():
            container.kill()

    # The pod's life.

    async def _live(self) -> None:
        self._publish("Pending")
        try:
            await self._prepare()
            done = all([await self._run_init(state) for state in self._init])
            if done:
                main = zip(self._main, self.pod["spec"]["containers"], strict=True)
                deadline = self.pod["spec"].get("activeDeadlineSeconds")
                async with asyncio.TaskGroup() as group:
                    timer = group.create_task(self._deadline(float(deadline))) if deadline else None
                    tasks = [group.create_task(self._run(state, container)) for state, container in main]
                    await asyncio.wait(tasks)
                    if timer:
                        timer.cancel()
            await self._kubelet.heard(self.node)
        except asyncio.CancelledError:
            return
        self._finish()

    async def _deadline(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._stop_reason = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        self._stop(float(self.pod["spec"].get("terminationGracePeriodSeconds", 30)))

    def _finish(self) -> None:
        for state in self._main:
            if WAITING in state.state:
                message = "The container could not be located when the pod was terminated"
                state.end(137, "ContainerStatusUnknown", message, None)
        good = all(state.exit_code == 0 for state in self._main) and self._stop_reason is None
        self._publish("Succeeded" if good else "Failed")
        self._kubelet.finished(self)

    def _publish(self, phase: str | None = None) -> None:
        if phase is None:
            phase = "Running" if any(state.runs for state in self._main) else "Pending"

        def write(pod: Object) -> None:
            fill(pod, clone_states(self.states), phase, (self._kubelet.node_address, self._address), self._started)
            if self._stop_reason is not None:
                pod["status"]["reason"], pod["status"]["message"] = self._stop_reason
                if self._stop_reason[0] == "Evicted":
                    set_condition(pod, "DisruptionTarget", "True", "TerminationByKubelet", self._stop_reason[1])

        if self.node in self._kubelet.lost:
            return
        held = self._kubelet.store.find(PODS, *self.key)
        if held is not None and held["metadata"]["uid"] == self.uid and not is_finished(held):
            self.pod = self._kubelet.store.mutate(PODS, *self.key, write, status_only=True) or self.pod

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _prepare(self) -> None:
        generated = is_generated(self.pod)
        if not generated:
            (self.root / "tmp").mkdir(parents=True, exist_ok=True)
        while not self._stopping.is_set():
            try:
                place = self.root / "volumes"
                self._volumes = (
                    bare_volumes(self.pod, place) if generated else volumes.set_up(self._kubelet.store, self.pod, place)
                )
                return
            except (volumes.MountError, ConfigError, OSError) as error:
                self._recorder.warning(self.pod, "FailedMount", str(error))
                await self._pause(RETRY)

    async def _run_init(self, state: ContainerState) -> bool:
        container = next(c for c in self.pod["spec"]["initContainers"] if c["name"] == state.name)
        await self._run(state, container)
        if state.exit_code == 0:
            return True
        for later in self._main:
            later.wait("PodInitializing")
        return False

    async def _run(self, state: ContainerState, container: Mapping[str, Any]) -> None:
        """Runs a container until its restart policy says that it is over."""
        while not self._stopping.is_set():
            if not await self._pull(state):
                return
            await self._run_once(state, container)
            if state.exit_code is None or self._stopping.is_set() or not self._restarts(state):
                return
            state.last = state.state
            if self._restarting:
                self._restarting = False
                state.restarts += 1
                continue
            pause = CRASH_BACK_OFF[min(state.restarts, len(CRASH_BACK_OFF) - 1)]
            if pause:
                await self._crash_loop(state, pause)
            state.restarts += 1

    def _restarts(self, state: ContainerState) -> bool:
        policy = self.pod["spec"]["restartPolicy"]
        if self._restarting:
            return True
        if policy == "Never" or (state.init and state.exit_code == 0):
            return False
        return policy == "Always" or state.exit_code != 0

    async def _crash_loop(self, state: ContainerState, pause: float) -> None:
        ended = state.state
        pod = f"{self.key[1]}_{self.key[0]}({self.uid})"
        message = f"back-off {pause:.0f}s restarting failed container={state.name} pod={pod}"
        state.wait("CrashLoopBackOff", message)
        self._publish()
        self._recorder.warning(self.pod, "BackOff", message, _field(state.name))
        await self._pause(pause)
        if self._stopping.is_set():
            state.state = ended

    async def _pull(self, state: ContainerState) -> bool:
        """Waits until the image can be had. False when the pod is stopped before."""
        for attempt in range(1 << 30):
            refusal = self._kubelet.refuses_image(state.image)
            where = _field(state.name)
            if refusal is None:
                if not state.runs:
                    present = f'Container image "{state.image}" already present on machine'
                    self._recorder.normal(self.pod, "Pulled", present, where)
                return True
            self._recorder.normal(self.pod, "Pulling", f'Pulling image "{state.image}"', where)
            self._recorder.warning(self.pod, "Failed", f'Failed to pull image "{state.image}": {refusal}', where)
            self._recorder.warning(self.pod, "Failed", "Error: ErrImagePull", where)
            state.wait("ErrImagePull", refusal)
            self._publish()
            await self._pause(PULL_BACK_OFF[0])
            if not self._stopping.is_set():
                message = f'Back-off pulling image "{state.image}"'
                self._recorder.normal(self.pod, "BackOff", message, where)
                self._recorder.warning(self.pod, "Failed", "Error: ImagePullBackOff", where)
                state.wait("ImagePullBackOff", f"{message}: ErrImagePull: {refusal}")
                self._publish()
                await self._pause(PULL_BACK_OFF[min(attempt + 1, len(PULL_BACK_OFF) - 1)])
            if self._stopping.is_set():
                return False
        return False

    async def _run_once(self, state: ContainerState, container: Mapping[str, Any]) -> None:
        prepared = await self._configure(state, container)
        if prepared is None:
            return
        outside, message_file = prepared
        state.runs += 1
        log = self._new_log(state)
        self._recorder.normal(self.pod, "Created", f"Created container: {state.name}", _field(state.name))
        try:
            process = start(self._kubelet.reaper, outside.argv, outside.env, outside.cwd, log.write)
        except OSError as error:
            log.close()
            self._failed_to_start(state, outside, error)
            return
        self._running[state.name] = process
        self._kubelet.note_group(process.pid, running=True)
        self._recorder.normal(self.pod, "Started", f"Started container {state.name}", _field(state.name))
        state.run()
        started = state.state[RUNNING]["startedAt"]
        self._publish()
        try:
            code = await process.wait()
        finally:
            self._kubelet.note_group(process.pid, running=False)
            self._running.pop(state.name, None)
            log.close()
        exit_code, reason = code if code >= 0 else 128 - code, ""
        if self._out_of_memory is not None:
            exit_code, reason = self._out_of_memory, "OOMKilled"
        message = termination_message(container, message_file, log, exit_code)
        state.end(exit_code, reason or ("Completed" if exit_code == 0 else "Error"), message, started)
        if not state.init and all(ENDED in other.state for other in self._main) and not self._restarts(state):
            return  # The pod's end is published with its last container's, in one step.
        self._publish()

    async def _configure(self, state: ContainerState, container: Mapping[str, Any]) -> tuple[Surroundings, Path] | None:
        """What the process is started with; waits for ConfigMaps to come. None when the pod is stopped."""
        store, message_file = self._kubelet.store, self.root / "termination" / f"{state.name}-{state.runs}"
        message_file.parent.mkdir(parents=True, exist_ok=True)
        message_file.write_bytes(b"")
        local = Rewriter(
            volumes.mounts(container, self._volumes)
            | {container.get("terminationMessagePath", "/dev/termination-log"): message_file}
        )
        base = self._kubelet.devices_env(self.pod, container) | {
            MARKER: f"{self._kubelet.instance}/{self.uid}/{state.name}/"
        }
        resolve = names.resolver(store, self._kubelet.addresses, self.key[0])
        while not self._stopping.is_set():
            try:
                if fault := self._kubelet.faults.hit(("config-error",), "START", self.key[1]):
                    raise ConfigError(fault.message or 'secret "token" not found')
                made = surroundings(
                    store, self.pod, container, base=base, local=local, resolve=resolve, scratch=self.root
                )
            except ConfigError as error:
                state.wait("CreateContainerConfigError", str(error))
                self._publish()
                self._recorder.warning(self.pod, "Failed", f"Error: {error}", _field(state.name))
                await self._pause(RETRY)
                continue
            if container.get("workingDir"):
                made.cwd.mkdir(parents=True, exist_ok=True)  # As container runtimes do.
            return made, message_file
        return None

    def _failed_to_start(self, state: ContainerState, outside: Surroundings, error: OSError) -> None:
        why = (
            "executable file not found in $PATH"
            if isinstance(error, FileNotFoundError)
            else str(error.strerror).lower()
        )
        message = (
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
            "runc create failed: unable to start container process: error during container init: "
            f'exec: "{outside.argv[0]}": {why}: unknown'
        )
        self._recorder.warning(self.pod, "Failed", f"Error: {message}", _field(state.name))
        state.end(128, "StartError", message, None)
        if not all(ENDED in other.state for other in self._main):
            self._publish()

    def _new_log(self, state: ContainerState) -> ContainerLog:
        name = f"{self.key[0]}_{self.key[1]}_{self.uid}"
        path = self._kubelet.root / "logs" / name / state.name / f"{state.restarts}.log"
        log = ContainerLog(path, self._kubelet.log_max_size, self._kubelet.log_max_files, self._clock)
        self.logs.setdefault(state.name, []).append(log)
        return log

    def clean(self) -> None:
        """Removes everything the pod left on disk."""
        shutil.rmtree(self.root, ignore_errors=True)
        for logs in self.logs.values():
            shutil.rmtree(logs[0].path.parent.parent, ignore_errors=True)


def _field(container: str) -> str:
    return f"spec.containers{{{container}}}"
