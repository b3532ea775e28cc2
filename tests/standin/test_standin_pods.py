"""The kubelet: what a container sees, how it ends, what is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.standin.kit import Client, Start, condition, ended, finished, job, pod, running, wait_until


def run(standin: Client, body: dict, space: str | None = None) -> tuple[dict, bytes]:
    """Runs a pod to its end. Returns it and its log."""
    path = f"/api/v1/namespaces/{space or standin.namespace()}/pods"
    standin.create(path, body)
    done = standin.until(f"{path}/{body['metadata']['name']}", finished)
    return done, standin.get(f"{path}/{body['metadata']['name']}/log")


def test_the_environment_is_declared_and_clean(standin: Client) -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)-$(MISSING)-$$(A)"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "SPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['who']"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        {"name": "CM", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "k", "optional": True}}},
    ]
    space = standin.namespace()
    standin.create(
        f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": "c"}, "data": {"k": "v", "FROM": "all"}}
    )
    standin.create(f"/api/v1/namespaces/{space}/secrets", {"metadata": {"name": "s"}, "stringData": {"k": "hush"}})
    container = {
        "env": env,
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}],
        "args": ["$(A)", "$$(A)", "$(NOPE)"],
        "resources": {"limits": {"cpu": "500m"}},
    }
    body = pod(
        "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], sys.executable]))", container=container
    )
    body["metadata"]["labels"] = {"who": "me"}
    done, log = run(standin, body, space)
    seen, arguments, interpreter = json.loads(log)
    assert arguments == ["1", "$(A)", "$(NOPE)"]
    assert Path(interpreter).parent == Path(sys.executable).parent
    expected = {"A": "1", "B": "1-$(MISSING)-$(A)", "NAME": "p", "SPACE": space, "LABEL": "me", "CPU": "500"}
    expected |= {"CM": "v", "SECRET": "hush", "P_FROM": "all", "NODE": done["spec"]["nodeName"]}
    assert {name: seen.get(name) for name in expected} == expected
    assert seen["IP"] == done["status"]["podIP"]
    assert seen["IP"].startswith("127.")
    assert "NONE" not in seen
    assert "KUBECONFIG" not in seen
    assert not [name for name in seen if name.startswith("PYTEST")]


def test_volumes_lie_where_paths_point(standin: Client) -> None:
    space = standin.namespace()
    data = {"a": "one", "b": "two"}
    standin.create(f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": "c"}, "data": data})
    volumes = [
        {
            "name": "code",
            "configMap": {"name": "c", "items": [{"key": "a", "path": "deep/er/a.txt"}], "defaultMode": 0o555},
        },
        {"name": "all", "configMap": {"name": "c"}},
        {"name": "gone", "configMap": {"name": "nobody", "optional": True}},
        {"name": "shared", "emptyDir": {"medium": "Memory"}},
        {"name": "me", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "both", "projected": {"sources": [{"configMap": {"name": "c"}}]}},
    ]
    mounts = [{"name": v["name"], "mountPath": f"/opt/{v['name']}"} for v in volumes]
    program = "import os, sys; print(open('/opt/code/deep/er/a.txt').read(), sorted(os.listdir('/opt/all')), "
    program += "os.listdir('/opt/gone'), open('/opt/shared/x').read(), open('/opt/me/labels').read(), "
    program += "open('/opt/both/b').read(), oct(os.stat('/opt/code/deep/er/a.txt').st_mode)[-3:], os.environ['P'])"
    body = pod(
        program,
        volumes=volumes,
        container={"volumeMounts": mounts, "env": [{"name": "P", "value": "/opt/code:/opt/codes"}]},
        initContainers=[
            {
                "name": "first",
                "image": "python",
                "command": ["sh", "-c", "echo from init > /opt/shared/x"],
                "volumeMounts": [{"name": "shared", "mountPath": "/opt/shared"}],
            }
        ],
    )
    body["metadata"]["labels"] = {"who": "me"}
    done, log = run(standin, body, space)
    assert done["status"]["phase"] == "Succeeded", log
    said = log.decode()
    assert said.startswith("one ['a', 'b'] [] from init\n who=\"me\" two 555 ")
    assert said.endswith("/volumes/code:/opt/codes\n")


@pytest.mark.parametrize(
    ("code", "exit_code", "reason", "phase"),
    [
        ("pass", 0, "Completed", "Succeeded"),
        ("raise SystemExit(17)", 17, "Error", "Failed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, "Error", "Failed"),
    ],
    ids=["zero", "code", "signal"],
)
def test_exit_codes(standin: Client, code: str, exit_code: int, reason: str, phase: str) -> None:
    done, _ = run(standin, pod(code))
    assert (ended(done)["exitCode"], ended(done)["reason"], done["status"]["phase"]) == (exit_code, reason, phase)


def test_a_command_that_does_not_exist_is_a_start_error(standin: Client) -> None:
    space = standin.namespace()
    path = f"/api/v1/namespaces/{space}/pods"
    standin.create(path, pod("", container={"command": ["no-such-program"]}))
    done = standin.until(f"{path}/p", finished)
    assert (ended(done)["exitCode"], ended(done)["reason"]) == (128, "StartError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in ended(done)["message"]


def test_a_missing_config_map_is_waited_for_and_named(standin: Client) -> None:
    space = standin.namespace()
    path = f"/api/v1/namespaces/{space}/pods"
    env = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]
    standin.create(path, pod("import os; print(os.environ['X'])", container={"env": env}))
    waiting = standin.until(f"{path}/p", lambda p: _waiting(p).get("reason") == "CreateContainerConfigError")
    assert _waiting(waiting)["message"] == 'configmap "late" not found'
    code, status = standin.ask("GET", f"{path}/p/log")
    assert code == 400
    assert status["message"] == 'container "main" in pod "p" is waiting to start: CreateContainerConfigError'
    standin.create(f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": "late"}, "data": {"k": "came"}})
    standin.until(f"{path}/p", finished)
    assert standin.get(f"{path}/p/log") == b"came\n"


def test_a_missing_volume_source_is_an_event(standin: Client) -> None:
    space = standin.namespace()
    body = pod("pass", volumes=[{"name": "v", "configMap": {"name": "late"}}])
    standin.create(f"/api/v1/namespaces/{space}/pods", body)
    for event in standin.watch(
        f"/api/v1/namespaces/{space}/events", resourceVersion="0", fieldSelector="reason=FailedMount"
    ):
        assert event["object"]["message"] == 'MountVolume.SetUp failed for volume "v" : configmap "late" not found'
        break
    standin.create(f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": "late"}})
    standin.until(f"/api/v1/namespaces/{space}/pods/p", finished)


def test_an_image_that_cannot_be_pulled_backs_off(standin: Client) -> None:
    space = standin.namespace()
    path = f"/api/v1/namespaces/{space}/pods"
    standin.create(path, pod("pass", container={"image": "registry.invalid/team/image:1"}))
    pulling = standin.until(f"{path}/p", lambda p: _waiting(p).get("reason") == "ErrImagePull")
    assert "registry.invalid/team/image:1: not found" in _waiting(pulling)["message"]
    standin.until(f"{path}/p", lambda p: _waiting(p).get("reason") == "ImagePullBackOff")
    standin.ask("DELETE", f"{path}/p")
    standin.until_gone(f"{path}/p")


def test_the_termination_message_is_the_files_or_the_logs_end(standin: Client) -> None:
    program = (
        "import os; f = open('/dev/termination-log', 'w'); f.write('x' * 5000 + 'end'); f.close(); raise SystemExit(1)"
    )
    done, _ = run(standin, pod(program))
    assert ended(done)["message"] == "x" * 4093 + "end"
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    done, _ = run(standin, pod("for i in range(200): print('line', i)\nraise SystemExit(1)", container=fallback))
    lines = ended(done)["message"].splitlines()
    assert len(lines) == 80
    assert lines[-1] == "line 199"
    done, _ = run(standin, pod("print('fine')", container=fallback))
    assert "message" not in ended(done)


def test_a_pod_is_given_its_grace_and_then_killed_with_all_it_started(standin: Client) -> None:
    space = standin.namespace()
    path = f"/api/v1/namespaces/{space}/pods"
    program = (
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'asked\\n'))\n"
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "while True: time.sleep(1)"
    )
    standin.create(path, pod(program, terminationGracePeriodSeconds=1))
    standin.until(f"{path}/p", running)
    with standin.open("GET", f"{path}/p/log", follow="true") as response:
        pids = [int(pid) for pid in response.readline().split()]
        version = standin.get(path)["metadata"]["resourceVersion"]
        standin.ask("DELETE", f"{path}/p")
        assert response.read() == b"asked\n"
    for event in standin.watch(path, resourceVersion=version):
        if event["type"] == "DELETED":
            break
    assert ended(event["object"])["exitCode"] == 137
    wait_until(lambda: not [pid for pid in pids if _alive(pid)], "processes of the pod are left")


def test_a_sigterm_handler_decides_the_exit_code(standin: Client) -> None:
    space = standin.namespace()
    path = f"/api/v1/namespaces/{space}/pods"
    program = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
    program += "print('up', flush=True)\ntime.sleep(60)"
    standin.create(path, pod(program, terminationGracePeriodSeconds=30))
    standin.until(f"{path}/p", running)
    with standin.open("GET", f"{path}/p/log", follow="true") as response:
        response.readline()
    version = standin.get(path)["metadata"]["resourceVersion"]
    standin.ask("DELETE", f"{path}/p")
    for event in standin.watch(path, resourceVersion=version):
        if event["type"] == "DELETED":
            break
    assert ended(event["object"])["exitCode"] == 9


def test_background_children_do_not_keep_a_pod_running(standin: Client) -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '300'], start_new_session=True).pid)"
    done, log = run(standin, pod(program))
    assert done["status"]["phase"] == "Succeeded"
    wait_until(lambda: not _alive(int(log)), "the child is still there")


def test_one_containers_end_leaves_its_neighbour_alone(standin: Client) -> None:
    containers = [
        {"name": "main", "image": "python", "command": ["python3", "-c", "pass"]},
        {"name": "main2", "image": "python", "command": ["python3", "-c", "import time; time.sleep(1); print('on')"]},
    ]
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod("pass", containers=containers))
    done = standin.until(f"{path}/p", finished)
    assert [ended(done, index)["exitCode"] for index in range(2)] == [0, 0]
    assert "choose one of: [main main2]" in standin.ask("GET", f"{path}/p/log")[1]["message"]
    assert standin.get(f"{path}/p/log", container="main2") == b"on\n"


def test_pod_names_become_addresses_also_of_pods_to_come(standin: Client) -> None:
    space = standin.namespace()
    service = {"metadata": {"name": "net"}, "spec": {"clusterIP": "None", "selector": {"app": "j"}}}
    standin.create(f"/api/v1/namespaces/{space}/services", service)
    env = [{"name": "MASTER", "value": "j-0.net"}, {"name": "MODULE", "value": "some.net x.net j-9.net"}]
    env += [{"name": "LONG", "value": f"tcp://j-1.net.{space}.svc.cluster.local:80"}]
    env += [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    body = job(
        "import os; print(*(os.environ[n] for n in ('MASTER', 'LONG', 'IP', 'MODULE')), sep='|')",
        container={"env": env},
    )
    body["spec"]["template"]["spec"]["subdomain"] = "net"
    standin.create(f"/apis/batch/v1/namespaces/{space}/jobs", body)
    standin.until(f"/apis/batch/v1/namespaces/{space}/jobs/j", lambda j: condition(j, "Complete") is not None)
    pods = standin.get(f"/api/v1/namespaces/{space}/pods")["items"]
    logs = [
        standin.get(f"/api/v1/namespaces/{space}/pods/{p['metadata']['name']}/log").decode().strip().split("|")
        for p in pods
    ]
    (master, long, first, module), (other_master, _, second, _) = logs
    assert master == first == other_master
    assert long == f"tcp://{second}:80"
    assert module == "some.net x.net j-9.net", "names of no pod stay as they are"
    if sys.platform == "linux":
        assert first != second


def test_a_node_without_its_devices_says_so_to_its_pods(standin: Client) -> None:
    done, log = run(
        standin,
        pod(
            "import os; print(os.environ.get('ALLRANKS_STANDIN_DEVICE'))",
            container={"resources": {"limits": {"aws.amazon.com/neuron": 1}}},
        ),
    )
    assert log == b"cpu\n"
    assert done["spec"]["nodeName"].startswith("standin-neuron-")


def test_nothing_is_left_when_the_stand_in_ends(start: Start) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        client = start("--nodes", "cpu:1")
        path = "/api/v1/namespaces/default/pods"
        program = "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        client.create(path, pod(program + "print(os.getpid(), child.pid, flush=True)\ntime.sleep(300)"))
        client.until(f"{path}/p", running)
        with client.open("GET", f"{path}/p/log", follow="true") as response:
            pids = [int(pid) for pid in response.readline().split()]
        assert len(pids) == 2
        client.stop(number)
        wait_until(
            lambda pids=pids: not [pid for pid in pids if _alive(pid)], f"after signal {number} {pids} still run"
        )


def test_the_stand_in_ends_with_its_starter(start: Start) -> None:
    client = start("--nodes", "cpu:1")
    assert client.process.stdin is not None
    client.process.stdin.close()
    assert client.process.wait(10) == 0
    assert not client.kubeconfig.exists()
    client.stop()


def _waiting(pod: dict) -> dict:
    statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
    held: dict = statuses[0]["state"].get("waiting") or {}
    return held


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")
