"""The peer: what suites for this job do today. Polls the Job every 5 seconds and fetches the logs once it has ended.

    python -m benchmarks.polling KUBECONFIG NAMESPACE

Waits for a Job to appear in the namespace, prints one JSON line at its verdict, and ends.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time

POLL = 5.0
THROUGHPUT = re.compile(r"\[Rank (\d+)\].*local_throughput=([\d.]+) samples/s")


def main(kubeconfig: str, namespace: str) -> None:
    from kubernetes import client, config

    config.load_kube_config(kubeconfig)
    batch, core = client.BatchV1Api(), client.CoreV1Api()
    print("ready", flush=True)
    while not (jobs := batch.list_namespaced_job(namespace).items):
        time.sleep(0.02)
    name = jobs[0].metadata.name
    while True:
        status = batch.read_namespaced_job_status(name, namespace).status
        if any(condition.type in ("Complete", "Failed") for condition in status.conditions or ()):
            break
        time.sleep(POLL)
    ranks = {}
    for pod in core.list_namespaced_pod(namespace, label_selector=f"job-name={name}").items:
        log = core.read_namespaced_pod_log(pod.metadata.name, namespace)
        ranks |= {int(rank): float(rate) for rank, rate in THROUGHPUT.findall(log)}
    at = time.time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"verdict": at, "ranks": len(ranks), "peak_mib": peak}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
