"""The whole stand-in, put together: store, controllers, kubelet, server, kubeconfig."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from allranks.standin import credential, errors
from allranks.standin.api import Api
from allranks.standin.defaults import apply_defaults
from allranks.standin.faults import Fault, Faults
from allranks.standin.garbage import Collector
from allranks.standin.incidents import Incidents
from allranks.standin.jobs import JobController
from allranks.standin.kubelet.kubelet import Kubelet
from allranks.standin.kubelet.process import Guardian
from allranks.standin.lifecycle import NodeLifecycle
from allranks.standin.nodes import Pool, make_nodes
from allranks.standin.objects import Object, namespace_of
from allranks.standin.resources import NAMESPACES, NODES, PODS
from allranks.standin.scheduler import Scheduler
from allranks.standin.server import Server
from allranks.standin.store import Store
from allranks.standin.tokens import Tokens

EXEC_KUBECONFIG = "kubeconfig-exec"
NAMESPACES_AT_START = ("default", "kube-system", "kube-public", "kube-node-lease")


@dataclass(frozen=True, slots=True)
class Options:
    """How a stand-in is started."""

    pools: Sequence[Pool]
    gpus: Sequence[str]
    root: Path
    kubeconfig: Path
    port: int = 0
    log_max_size: int = 10 << 20
    log_max_files: int = 5
    history: int = 4096
    token_life: float | None = None
    """Seconds; with it a second kubeconfig is written, `kubeconfig-exec`, whose credentials expire and are renewed."""


class Cluster:
    """A running stand-in. Construct it inside an event loop."""

    def __init__(self, options: Options, guardian: Guardian, instance: str) -> None:
        self._options = options
        self._faults = Faults()
        self.store = Store(options.history)
        api = Api(self.store)
        self._kubelet = Kubelet(
            self.store,
            self._faults,
            guardian,
            instance=instance,
            root=options.root,
            log_max_size=options.log_max_size,
            log_max_files=options.log_max_files,
        )
        collector, scheduler = Collector(self.store), Scheduler(self.store)
        jobs = JobController(self.store, self._admit)
        lifecycle = NodeLifecycle(self.store)
        Incidents(self.store, self._kubelet, lifecycle, self._faults)
        self._loops = (collector.run, scheduler.run, jobs.run, lifecycle.run)
        self._tokens = Tokens()
        self._server = Server(api, self._kubelet, self._faults, self._tokens)
        self._restarting: asyncio.Queue[float] = asyncio.Queue()
        self._faults.listen(self._restart, lambda fault: None)

    def _restart(self, fault: Fault) -> None:
        if fault.kind == "restart-api":
            self._restarting.put_nowait(fault.seconds)
            self._faults.used(fault)

    def _admit(self, pod: Object) -> Object:
        """Stores a controller's pod, unless admission refuses it."""
        namespace = self.store.get(NAMESPACES, "", namespace_of(pod))
        why = None
        if namespace["status"]["phase"] == "Terminating":
            why = f"unable to create new content in namespace {namespace_of(pod)} because it is being terminated"
        else:
            fault = self._faults.hit(("forbid-pod",), "POST", pod["metadata"]["generateName"])
            why = (
                (fault.message or "exceeded quota: standin, requested: pods=1, used: pods=0, limited: pods=0")
                if fault
                else None
            )
        if why is not None:
            message = f'pods "{pod["metadata"]["generateName"]}" is forbidden: {why}'
            raise errors.StatusError(403, "Forbidden", message)
        prepared = self.store.prepare(PODS, pod)
        apply_defaults(PODS, prepared)
        return self.store.add(PODS, prepared)

    def _populate(self) -> None:
        for name in NAMESPACES_AT_START:
            namespace = self.store.prepare(
                NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            )
            apply_defaults(NAMESPACES, namespace)
            self.store.add(NAMESPACES, namespace)
        for node in make_nodes(self._options.pools, self._options.gpus):
            self.store.create(NODES, node)

    async def run(self, stop: asyncio.Event, ready: asyncio.Event | None = None) -> None:
        """Serves until `stop` is set; `ready` is set when the kubeconfig is written and requests are answered."""
        self._kubelet.start()
        self._populate()
        runner = web.AppRunner(self._server.application(), access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._options.port)
        await site.start()
        loops = [asyncio.create_task(loop()) for loop in self._loops]
        loops.append(asyncio.create_task(self._restarts(runner, site)))
        failed = [asyncio.ensure_future(stop.wait()), *loops]
        try:
            self._write_kubeconfigs(runner.addresses[0][1])
            if ready is not None:
                ready.set()
            done, _ = await asyncio.wait(failed, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # A controller that died takes the stand-in with it, loudly.
        finally:
            self._server.close()
            for task in failed:
                task.cancel()
            await self._kubelet.stop()
            await runner.cleanup()
            for path in (self._options.kubeconfig, self._options.kubeconfig.with_name(EXEC_KUBECONFIG)):
                with contextlib.suppress(OSError):
                    path.unlink()

    async def _restarts(self, runner: web.AppRunner, site: web.TCPSite) -> None:
        """The API server goes away and comes back at the same address when a fault asks for it."""
        port = runner.addresses[0][1]
        while True:
            seconds = await self._restarting.get()
            await asyncio.sleep(0.05)  # Whoever asked for it gets the answer.
            await site.stop()
            for handler in runner.server.connections if runner.server else ():
                if handler.transport is not None:
                    handler.transport.abort()
            await asyncio.sleep(seconds)
            site = web.TCPSite(runner, "127.0.0.1", port)
            await site.start()

    def _write_kubeconfigs(self, port: int) -> None:
        server, main = f"http://127.0.0.1:{port}", self._options.kubeconfig
        write_kubeconfig(main, f"{server}/t/{self._tokens.secret}", {"token": self._tokens.secret})
        if self._options.token_life is None:
            return
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-I", credential.__file__, str(main), str(self._options.token_life)],
            "interactiveMode": "Never",
        }
        write_kubeconfig(main.with_name(EXEC_KUBECONFIG), server, {"exec": plugin})


def write_kubeconfig(path: Path, server: str, user: Object) -> None:
    """Writes a kubeconfig with one context, `standin`, readable by its owner only, in one step."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "standin", "cluster": {"server": server}}],
        "users": [{"name": "standin", "user": user}],
        "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "standin", "namespace": "default"}}],
        "current-context": "standin",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(json.dumps(config, indent=2) + "\n")
    draft.replace(path)
