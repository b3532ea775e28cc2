"""kubectl against the stand-in: apply, get, logs -f, wait, describe, delete."""

from __future__ import annotations

import json

from tests.standin.kit import Client, job, pod

MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: train}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {job-name: train}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
data: {main: "import os\\nprint('rank', os.environ['JOB_COMPLETION_INDEX'])\\n"}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 0
  suspend: true
  template:
    spec:
      restartPolicy: Never
      subdomain: train
      containers:
      - name: main
        image: python
        command: [python3, /opt/code/pkg/main.py]
        resources: {limits: {nvidia.com/gpu: 1}}
        volumeMounts: [{name: code, mountPath: /opt/code}]
      volumes: [{name: code, configMap: {name: code, items: [{key: main, path: pkg/main.py}]}}]
"""


def test_a_job_is_applied_resumed_followed_waited_for_and_deleted(kubectl: Client) -> None:
    space = ("-n", kubectl.namespace())
    kubectl.kubectl("apply", *space, "-f", "-", stdin=MANIFEST)
    assert kubectl.kubectl("get", "pods", *space).stdout == ""
    kubectl.kubectl("patch", "job/train", *space, "-p", '{"spec":{"suspend":false}}')
    kubectl.kubectl("wait", "--for=condition=complete", "job/train", "--timeout=20s", *space)
    logs = kubectl.kubectl("logs", "-f", "-l", "job-name=train", "--prefix", *space).stdout
    assert "rank 0" in logs
    assert "rank 1" in logs
    table = kubectl.kubectl("get", "jobs,pods", "-o", "wide", *space).stdout
    assert "Complete" in table
    assert "2/2" in table
    assert "standin-nvidia-" in table
    described = kubectl.kubectl("describe", "job", "train", *space).stdout
    assert "SuccessfulCreate" in described
    assert "Job completed" in described
    kubectl.kubectl("delete", "job", "train", *space)
    assert kubectl.kubectl("get", "pods", *space).stdout == ""


def test_applying_again_patches_strategically(kubectl: Client) -> None:
    space = ("-n", kubectl.namespace())
    manifest = pod("import time; time.sleep(60)")
    manifest["spec"]["terminationGracePeriodSeconds"] = 0
    kubectl.kubectl("apply", *space, "-f", "-", stdin=json.dumps(manifest))
    assert "unchanged" in kubectl.kubectl("apply", *space, "-f", "-", stdin=json.dumps(manifest)).stdout
    manifest["metadata"]["labels"] = {"added": "later"}
    assert "configured" in kubectl.kubectl("apply", *space, "-f", "-", stdin=json.dumps(manifest)).stdout
    assert kubectl.kubectl("get", "pod", "-l", "added=later", "-o", "name", *space).stdout == "pod/p\n"
    manifest["spec"]["containers"][0]["command"] = ["true"]
    refused = kubectl.kubectl("apply", *space, "-f", "-", stdin=json.dumps(manifest), check=False)
    assert "pod updates may not change fields" in refused.stderr


def test_a_dry_run_validates_and_stores_nothing(kubectl: Client) -> None:
    space = ("-n", kubectl.namespace())
    kubectl.kubectl("apply", "--dry-run=server", *space, "-f", "-", stdin=json.dumps(job("pass")))
    assert kubectl.kubectl("get", "jobs", *space).stdout == ""
    wrong = job("pass", parallelizm=3)
    refused = kubectl.kubectl("apply", "--dry-run=server", *space, "-f", "-", stdin=json.dumps(wrong), check=False)
    assert 'unknown field "spec.parallelizm"' in refused.stderr


def test_server_side_apply_is_refused_by_name(kubectl: Client) -> None:
    refused = kubectl.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(job("pass")), check=False)
    assert "server-side apply is not implemented by the stand-in" in refused.stderr


def test_an_unknown_kind_and_an_unknown_object_are_not_found(kubectl: Client) -> None:
    kind = kubectl.kubectl(
        "apply", "-f", "-", stdin='{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"}}', check=False
    )
    assert 'no matches for kind "Deployment"' in kind.stderr
    assert 'jobs.batch "nobody" not found' in kubectl.kubectl("get", "job", "nobody", check=False).stderr


def test_nodes_are_cordoned_and_events_listed(kubectl: Client) -> None:
    kubectl.kubectl("cordon", "standin-cpu-1")
    assert "Ready,SchedulingDisabled" in kubectl.kubectl("get", "nodes").stdout
    kubectl.kubectl("uncordon", "standin-cpu-1")
    described = kubectl.kubectl("describe", "node", "standin-nvidia-0").stdout
    assert "nvidia.com/gpu" in described
    assert kubectl.kubectl("auth", "can-i", "create", "jobs").stdout == "yes\n"


def test_the_version_says_that_it_is_a_stand_in(kubectl: Client) -> None:
    assert "standin" in kubectl.kubectl("version").stdout
