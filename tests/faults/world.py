"""A stand-in cluster as the world acts on it: other people, nodes, the API server. Plain HTTP, no client library."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

Object = dict[str, Any]
PATIENCE = 30.0
LEASES = "allranks"
RUN_LABEL = "?labelSelector=app.kubernetes.io/managed-by%3Dallranks"


class World:
    """One running stand-in, and one run on it at a time."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        config = json.loads(kubeconfig.read_text())
        self._server = config["clusters"][0]["cluster"]["server"]
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.diary = kubeconfig.with_name("diary")
        self._added: Counter[str] = Counter()
        self._tokens: Object = {}

    # HTTP.

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer. Raises HTTPError for a refusal."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, method=method)
        kind = "merge-patch+json" if method == "PATCH" else "json"
        request.add_header("Content-Type", f"application/{kind}")
        with self._opener.open(request, timeout=PATIENCE) as answer:
            text = answer.read()
        return json.loads(text) if text[:1] in (b"{", b"[") else text

    def get(self, path: str) -> Any:
        return self.ask("GET", path)

    def fault(self, kind: str, path: str = "", **fault: Any) -> None:
        self.ask("POST", "/standin/faults", {"kind": kind, "path": path, **fault})
        self._added[kind] += 1

    def tokens(self, what: str) -> int:
        """How many were `issued`, or requests `refused`, for this run."""
        return int(self.get("/standin/tokens")[what] - self._tokens[what])

    def unmet(self) -> list[str]:
        """The kinds of faults that never struck. One that has ended did; a permission may only be asked for."""
        listed: dict[str, list[int]] = {}
        for fault in self.get("/standin/faults")["faults"]:
            listed.setdefault(fault["kind"], []).append(fault["hits"])
        return [
            kind
            for kind, hits in listed.items()
            if kind != "forbid" and len(hits) == self._added[kind] and not any(hits)
        ]

    def struck(self) -> float | None:
        """When the fault that is switched on struck first; of several the last one to do so."""
        return max((f["firstHit"] for f in self.get("/standin/faults")["faults"] if f["firstHit"]), default=None)

    # What the run is doing.

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + PATIENCE
        while not (held := holds()):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {PATIENCE:g} s: {what}")
            time.sleep(0.03)
        return held

    def noted(self, word: str) -> list[float]:
        """The times at which ranks noted this in the diary."""
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        return [float(at) for said, _, at in map(str.split, lines) if said == word]

    def training(self, ranks: int = 4) -> None:
        """Returns when so many ranks have begun."""
        self.until(lambda: len(self.noted("begun")) >= ranks, f"{ranks} ranks have begun")

    def pod(self, index: int) -> Object:
        """The run's pod for an index, once it has a node."""
        return dict(self.until(lambda: self._pod(index), f"a pod for index {index}"))

    def _pod(self, index: int) -> Object | None:
        for pod in self.get("/api/v1/pods" + RUN_LABEL)["items"]:
            mark = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
            if mark == str(index) and pod["spec"].get("nodeName"):
                return dict(pod)
        return None

    def job(self) -> Object:
        return dict(self.until(lambda: self.get("/apis/batch/v1/jobs" + RUN_LABEL)["items"], "a job")[0])

    @staticmethod
    def path(thing: Object) -> str:
        group = "/apis/batch/v1" if thing.get("kind") == "Job" or "completions" in thing["spec"] else "/api/v1"
        plural = "jobs" if group != "/api/v1" else "pods"
        meta = thing["metadata"]
        return f"{group}/namespaces/{meta['namespace']}/{plural}/{meta['name']}"

    # What others do.

    def node(self, name: str, change: Object, *, status: bool = False) -> None:
        self.ask("PATCH", f"/api/v1/nodes/{name}" + ("/status" if status else ""), change)

    def occupy(self, node: str, count: int = 2) -> None:
        """Another team's pod takes a node's GPUs."""
        limits = {"limits": {"nvidia.com/gpu": str(count)}}
        sleep = ["python3", "-c", "import time; time.sleep(600)"]
        spec = {
            "containers": [{"name": "c", "image": "python", "command": sleep, "resources": limits}],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
        }
        where = "/api/v1/namespaces/default/pods"
        self.ask("POST", where, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "holder"}, "spec": spec})
        self.until(lambda: self.get(f"{where}/holder")["spec"].get("nodeName"), "the holder has a node")

    def release(self) -> None:
        """The other team's pod has ended."""
        self._forget("/api/v1/namespaces/default/pods/holder")

    def lease(self, node: str, holder: str, *, duration: int, renewed: float) -> None:
        """Another run's lease on a node, last renewed at a time (Unix seconds)."""
        at = datetime.fromtimestamp(renewed, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        meta = {"name": node, "labels": {"allranks.dev/lease": "node"}}
        spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "acquireTime": at, "renewTime": at}
        if LEASES not in [space["metadata"]["name"] for space in self.get("/api/v1/namespaces")["items"]]:
            self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": LEASES}})
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases"
        self.ask("POST", leases, {"metadata": meta, "spec": spec})

    def event(self, kind: str, reason: str, message: str) -> None:
        """A warning about an object without a namespace, as its controller records it."""
        about = {"apiVersion": "karpenter.sh/v1", "kind": kind, "name": "default-x7k2p", "uid": "1"}
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = {"involvedObject": about, "reason": reason, "message": message, "type": "Warning", "count": 1}
        meta = {"name": f"default-x7k2p.{time.time_ns():x}", "namespace": "default"}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": meta, "firstTimestamp": now, "lastTimestamp": now}
        self.ask("POST", "/api/v1/namespaces/default/events", event | told)

    # Between runs.

    def begin(self) -> None:
        self.diary.unlink(missing_ok=True)
        self._added.clear()
        self._tokens = self.get("/standin/tokens")

    def left(self) -> list[str]:
        """What of ours is still there, given the time that pods need to end."""
        self.until(self._no_faults, "the API server answers")
        end = time.monotonic() + PATIENCE / 2
        kinds = (
            "/apis/batch/v1/jobs",
            *(f"/api/v1/{kind}" for kind in ("pods", "services", "configmaps", "namespaces")),
        )
        while found := [thing["metadata"]["name"] for kind in kinds for thing in self.get(kind + RUN_LABEL)["items"]]:
            if time.monotonic() > end:
                return found
            time.sleep(0.05)
        return []

    def restore(self) -> None:
        """No faults, nodes as they were, nothing of the last run left."""
        self.until(self._no_faults, "the API server answers")
        for name in ("standin-nvidia-0", "standin-nvidia-1"):
            efa = {"vpc.amazonaws.com/efa": None}
            self.node(name, {"spec": {"unschedulable": None, "taints": None}})
            self.node(name, {"status": {"capacity": efa, "allocatable": efa}}, status=True)
        for path in ("/api/v1/namespaces/default/events", f"/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases"):
            self.ask("DELETE", path)
        for namespace in self.get("/api/v1/namespaces" + RUN_LABEL)["items"]:
            self._forget(f"/api/v1/namespaces/{namespace['metadata']['name']}")
        for pod in self.get("/api/v1/pods")["items"]:
            self._forget(f"{self.path(pod)}?gracePeriodSeconds=0")
        self.until(lambda: not self.get("/api/v1/pods")["items"], "no pod is left")

    def _no_faults(self) -> bool:
        try:
            self.ask("DELETE", "/standin/faults")
        except OSError:  # it may be restarting
            return False
        return True

    def _forget(self, path: str) -> None:
        try:
            self.ask("DELETE", path)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
