"""What the API server fills in when an object is created."""

from __future__ import annotations

from typing import Any

from allranks.standin.objects import Object, clone
from allranks.standin.resources import DAEMON_SETS, EVENTS, JOBS, NAMESPACES, NODES, PODS, SECRETS, SERVICES, Resource


def apply_defaults(resource: Resource, obj: Object) -> None:
    """Fills in the kind's defaults in place. The object's uid is there already."""
    spec = obj.get("spec")
    if resource is PODS and spec is not None:
        pod_spec(spec)
        obj["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}
    elif resource is JOBS and spec is not None:
        _job(obj)
    elif resource is NAMESPACES:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    elif resource is SERVICES and spec is not None:
        _service(spec)
        obj["status"] = {"loadBalancer": {}}
    elif resource is SECRETS:
        obj.setdefault("type", "Opaque")
        _secret(obj)
    elif resource is NODES:
        obj.setdefault("spec", {})
        obj.setdefault("status", {})
    elif resource is EVENTS:
        obj.setdefault("type", "Normal")
    elif resource is DAEMON_SETS and spec is not None:
        template_spec = spec.get("template", {}).get("spec")
        if template_spec is not None:
            pod_spec(template_spec)
        zero = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
        obj["status"] = dict.fromkeys(zero, 0)


def pod_spec(spec: dict[str, Any]) -> None:
    """Defaults of a pod's spec, in place."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("enableServiceLinks", True)
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        latest = ":" not in container.get("image", "").rsplit("/", 1)[-1] or container["image"].endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        resources = container.setdefault("resources", {})
        for name, value in resources.get("limits", {}).items():
            resources.setdefault("requests", {}).setdefault(name, value)
        for port in container.get("ports", ()):
            port.setdefault("protocol", "TCP")
    for volume in spec.get("volumes", ()):
        for source in ("configMap", "secret", "projected", "downwardAPI"):
            if source in volume:
                volume[source].setdefault("defaultMode", 0o644)


def _qos_class(spec: dict[str, Any]) -> str:
    held = [container.get("resources", {}) for container in spec.get("containers", ())]
    if not any(r.get("requests") or r.get("limits") for r in held):
        return "BestEffort"
    guaranteed = all(
        r.get("limits", {}).get(name) is not None and r["limits"][name] == r.get("requests", {}).get(name)
        for r in held
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _job(job: Object) -> None:
    spec, meta = job["spec"], job["metadata"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    for rule in (spec.get("podFailurePolicy") or {}).get("rules", ()):
        for pattern in rule.get("onPodConditions") or ():
            pattern.setdefault("status", "True")
    if isinstance(spec.get("template"), dict):
        template = spec["template"]
        if isinstance(template.get("spec"), dict):
            pod_spec(template["spec"])
        uid = meta["uid"]
        template.setdefault("metadata", {})["labels"] = (template.get("metadata", {}).get("labels") or {}) | {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": meta["name"],
            "controller-uid": uid,
            "job-name": meta["name"],
        }
        spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})
    if not meta.get("labels"):
        meta["labels"] = clone(spec.get("template", {}).get("metadata", {}).get("labels") or {})
    job["status"] = {}


def _service(spec: dict[str, Any]) -> None:
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if spec["type"] != "ExternalName":
        # No proxy stands behind an address, so every service here is headless or unreachable; None says so.
        spec.setdefault("clusterIP", "None")
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _secret(secret: Object) -> None:
    import base64

    for name, text in (secret.pop("stringData", None) or {}).items():
        secret.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
