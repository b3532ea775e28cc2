"""A real stand-in cluster per module, and the program without PyTorch that shows faults on it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.plan import Accelerator
from allranks.result import TrainingRun
from allranks.settings import Settings, Workload
from allranks.standin_process import start_standin

PROGRAM = Path(__file__).parent / "programs" / "faulty.py"


def faulty(*args: str) -> Workload:
    return Workload("faulty", "faulty", args=args, extra_files=(("faulty.py", PROGRAM),))


@dataclass
class StandIn:
    """A running stand-in, and runs on it."""

    kubeconfig: Path
    artefacts: Path
    progress: list[Any] = field(default_factory=list)

    def run(self, *args: str, observe: Callable[[Any], None] | None = None, **settings: Any) -> TrainingRun:
        from allranks.run import run

        settings = {"artefacts": self.artefacts, "accelerator": Accelerator.NVIDIA, **settings}
        asked = Settings(**{"cluster": "standin", "kubeconfig": self.kubeconfig, **settings})
        return run(asked, faulty(*args), observe=observe or self.progress.append)

    def get(self, path: str) -> Any:
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        return self._request("GET", path)

    def fault(self, **fault: Any) -> None:
        self._request("POST", "/standin/faults", fault)

    def no_faults(self) -> None:
        self._request("DELETE", "/standin/faults")

    def hold(self, node: str, resource: str, count: int) -> Callable[[], object]:
        """Another team's pod takes devices of a node, until what is returned is called."""
        sleep = ["python3", "-c", "import time; time.sleep(600)"]
        limits = {"limits": {resource: str(count)}}
        spec = {
            "containers": [{"name": "c", "image": "python", "command": sleep, "resources": limits}],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
        }
        pods = "/api/v1/namespaces/default/pods"
        self._request("POST", pods, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "holder"}, "spec": spec})
        until = time.monotonic() + 20
        while not self.get(f"{pods}/holder")["spec"].get("nodeName"):
            assert time.monotonic() < until, self.get(f"{pods}/holder")
            time.sleep(0.02)
        return lambda: self._request("DELETE", f"{pods}/holder")

    def create(self, path: str, thing: Any) -> None:
        self._request("POST", path, thing)

    def delete_namespace(self, name: str) -> None:
        self._request("DELETE", f"/api/v1/namespaces/{name}")

    def left(self) -> list[str]:
        """Everything of ours that is on the cluster."""
        collections = ["/apis/batch/v1/jobs", *(f"/api/v1/{plural}" for plural in ("pods", "services", "configmaps"))]
        label = "?labelSelector=app.kubernetes.io/managed-by%3Dallranks"
        found = [item for path in (*collections, "/api/v1/namespaces") for item in self.get(path + label)["items"]]
        return [item["metadata"]["name"] for item in found]

    def patch(self, path: str, change: Any) -> None:
        self._request("PATCH", path, change, "application/merge-patch+json")

    def _request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> str:
        config = yaml.safe_load(self.kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]["server"]
        request = urllib.request.Request(server + path, method=method, data=json.dumps(body).encode() if body else None)
        request.add_header("Content-Type", content_type)
        request.add_header("Authorization", f"Bearer {config['users'][0]['user'].get('token')}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=20) as answer:
            text: bytes = answer.read()
        return text.decode()


@pytest.fixture(scope="module")
def standin_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    directory = tmp_path_factory.mktemp("standin")
    with start_standin(directory, ["nvidia:2x2"], ["--log-max-size", "64Ki", "--log-max-files", "2"]) as kubeconfig:
        yield StandIn(kubeconfig, directory / "artefacts")


@pytest.fixture
def cluster(standin_cluster: StandIn) -> Iterator[StandIn]:
    """The module's stand-in, with no fault switched on."""
    standin_cluster.progress.clear()
    yield standin_cluster
    standin_cluster.no_faults()
