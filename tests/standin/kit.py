"""A real stand-in process, a small HTTP client, and kubectl, for the stand-in's own tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
DEADLINE = 30.0
Object = dict[str, Any]


class Client:
    """Talks HTTP to one stand-in. Paths are relative to the kubeconfig's server."""

    def __init__(self, kubeconfig: Path, process: subprocess.Popen[str], root: Path) -> None:
        self.kubeconfig = kubeconfig
        self.process = process
        self.root = root
        config = json.loads(kubeconfig.read_text())
        server = urllib.parse.urlsplit(config["clusters"][0]["cluster"]["server"])
        self.address = (server.hostname or "", server.port or 0)
        self.token = config["users"][0]["user"]["token"]
        self._namespaces = 0

    @contextlib.contextmanager
    def open(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Iterator[http.client.HTTPResponse]:
        """A response whose body is still to be read."""
        connection = http.client.HTTPConnection(*self.address, timeout=DEADLINE)
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **(headers or {})}
        where = path + ("?" + urllib.parse.urlencode(query) if query else "")
        connection.request(method, where, json.dumps(body) if body is not None else None, sent)
        try:
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **query: Any
    ) -> tuple[int, Any]:
        """Status code and decoded body."""
        with self.open(method, path, body, headers, **query) as response:
            text = response.read()
            kind = response.headers.get_content_type()
            return response.status, json.loads(text) if kind == "application/json" else text

    def get(self, path: str, **query: Any) -> Any:
        code, body = self.ask("GET", path, **query)
        assert code == 200, body
        return body

    def create(self, path: str, body: Any) -> Any:
        code, made = self.ask("POST", path, body)
        assert code == 201, made
        return made

    def patch(self, path: str, body: Any, kind: str = "merge-patch") -> Any:
        code, made = self.ask("PATCH", path, body, {"Content-Type": f"application/{kind}+json"})
        assert code == 200, made
        return made

    def watch(self, path: str, **query: Any) -> Iterator[Object]:
        """The events of a watch, as they come, until it ends."""
        query = {"timeoutSeconds": int(DEADLINE), "watch": "true"} | query
        with self.open("GET", path, **query) as response:
            while line := response.readline():
                yield json.loads(line)

    def until(self, path: str, holds: Callable[[Object], bool]) -> Object:
        """The object at `path` once `holds` is true of it, by watch; fails at the deadline."""
        collection, _, name = path.rpartition("/")
        for event in self.watch(collection, fieldSelector=f"metadata.name={name}"):
            if event["type"] != "DELETED" and holds(event["object"]):
                found: Object = event["object"]
                return found
        raise AssertionError(f"{path} did not get there: {self.ask('GET', path)}")

    def until_gone(self, path: str) -> None:
        collection, _, name = path.rpartition("/")
        version = self.get(collection)["metadata"]["resourceVersion"]
        if self.ask("GET", path)[0] == 404:
            return
        for event in self.watch(collection, fieldSelector=f"metadata.name={name}", resourceVersion=version):
            if event["type"] == "DELETED":
                return
        raise AssertionError(f"{path} is still there: {self.ask('GET', path)}")

    def namespace(self) -> str:
        """A new namespace."""
        self._namespaces += 1
        name = f"test-{self._namespaces}"
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def fault(self, **fault: Any) -> Object:
        made: Object = self.create("/standin/faults", fault)
        return made

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.root)}
        done = subprocess.run(
            ["kubectl", *arguments], input=stdin, capture_output=True, text=True, env=env, timeout=DEADLINE, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE)
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


Start = Callable[..., Client]


def launch(directory: Path, *arguments: str) -> Client:
    kubeconfig = directory / "kubeconfig"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "allranks.standin", "--exit-with-parent"),
            *("--root", str(directory / "root"), "--kubeconfig", str(kubeconfig)),
            *arguments,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    said = process.stdout.readline() + process.stdout.readline()
    assert f"export KUBECONFIG={kubeconfig}" in said, said
    return Client(kubeconfig, process, directory)


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One stand-in with the default nodes, shared by the tests that each use a namespace of their own."""
    client = launch(
        tmp_path_factory.mktemp("standin"), "--nodes", "nvidia:2x2", "--nodes", "neuron:2x2", "--nodes", "cpu:2"
    )
    yield client
    assert client.stop() == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts further stand-ins with arguments of their own; they end with the test."""
    started: list[Client] = []

    def begin(*arguments: str) -> Client:
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(launch(directory, *arguments))
        return started[-1]

    yield begin
    for client in started:
        if client.process.poll() is None:
            client.stop()


@pytest.fixture
def kubectl(standin: Client) -> Client:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    return standin


def pod(code: str, name: str = "p", **spec: Any) -> Object:
    """A pod whose one container runs Python code. `container` among the keywords is merged into the container."""
    container = {"name": "main", "image": "python", "command": ["python3", "-c", code], **spec.pop("container", {})}
    held = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": held}


def job(code: str, name: str = "j", completions: int = 2, container: Object | None = None, **spec: Any) -> Object:
    """An Indexed Job of Python code."""
    template = {"metadata": {"labels": {"app": name}}, "spec": pod(code, container=container or {})["spec"]}
    held = {"completions": completions, "parallelism": completions, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": held | {"template": template} | spec,
    }


def condition(obj: Object, kind: str) -> Object | None:
    held = obj.get("status", {}).get("conditions") or []
    return next((c for c in held if c["type"] == kind and c["status"] == "True"), None)


def finished(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def running(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running"


def ended(pod: Object, container: int = 0) -> Object:
    """The terminated state of a container."""
    state: Object = pod["status"]["containerStatuses"][container]["state"]["terminated"]
    return state


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """For what has no event to wait for."""
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)
