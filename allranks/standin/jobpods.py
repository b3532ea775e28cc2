"""The pods of Jobs: how they are made, and what a failed one means for its Job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from allranks.standin import defaults
from allranks.standin.objects import Object, clone, condition_of, name_of, namespace_of

INDEX_KEY = "batch.kubernetes.io/job-completion-index"


def index_of(pod: Object) -> int | None:
    """The completion index that a pod works on."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX_KEY, "")
    return int(text) if text.isdigit() else None


def format_indexes(indexes: Iterable[int]) -> str:
    """As Job status writes them: `0-3,5`."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    # Two neighbours are written apart, three or more as a range; that is how the controller does it.
    return ",".join(
        str(first) if first == last else f"{first},{last}" if last == first + 1 else f"{first}-{last}"
        for first, last in runs
    )


def make_pod(job: Object, index: int | None) -> Object:
    """A pod from the Job's template, not yet stored, for one completion index (None: not an Indexed Job)."""
    template = clone(job["spec"]["template"])
    meta = template.get("metadata") or {}
    name = name_of(job)
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name}-" if index is None else f"{name[:52]}-{index}-",
            "namespace": namespace_of(job),
            "labels": meta.get("labels") or {},
            "annotations": meta.get("annotations") or {},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": name,
                    "uid": job["metadata"]["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": template["spec"],
    }
    if index is not None:
        pod["metadata"]["labels"][INDEX_KEY] = str(index)
        pod["metadata"]["annotations"][INDEX_KEY] = str(index)
        pod["spec"]["hostname"] = f"{name[:52]}-{index}"
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX_KEY}']"}}
        for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]:
            env = container.setdefault("env", [])
            if all(entry["name"] != "JOB_COMPLETION_INDEX" for entry in env):
                env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
    defaults.pod_spec(pod["spec"])
    return pod


class Ruling(NamedTuple):
    """What the failure policy makes of a failed pod."""

    counts: bool
    fail_job: str | None
    """The message of the FailJob rule that matched."""


def rule(job: Object, pod: Object) -> Ruling:
    """Applies podFailurePolicy; without a matching rule a failure counts towards backoffLimit."""
    policy = job["spec"].get("podFailurePolicy") or {}
    for index, entry in enumerate(policy.get("rules") or ()):
        what = _matches(entry, pod)
        if what is None:
            continue
        action = entry["action"]
        if action == "FailJob":
            return Ruling(True, f"{what} matching FailJob rule at index {index}")
        return Ruling(action != "Ignore", None)
    return Ruling(True, None)


def _matches(entry: Mapping[str, Any], pod: Object) -> str | None:
    """The description of what matched, or None."""
    where = f"{namespace_of(pod)}/{name_of(pod)}"
    codes = entry.get("onExitCodes")
    if codes:
        status = pod.get("status", {})
        for held in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]:
            ended = held["state"].get("terminated")
            if not ended or not ended["exitCode"] or codes.get("containerName") not in (None, held["name"]):
                continue
            if (ended["exitCode"] in codes["values"]) == (codes["operator"] == "In"):
                return f"Container {held['name']} for pod {where} failed with exit code {ended['exitCode']}"
        return None
    for pattern in entry.get("onPodConditions") or ():
        condition = condition_of(pod, pattern["type"])
        if condition and condition["status"] == pattern.get("status", "True"):
            return f"Pod {where} has condition {pattern['type']}"
    return None
