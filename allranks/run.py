"""The one loop: choose the cluster, plan, render, deploy, follow, judge, keep the evidence, clean up."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path

from allranks.artefacts import Artefacts
from allranks.checks import judge
from allranks.cluster import ClusterError, objects
from allranks.cluster.choose import Choice, Kind, choose
from allranks.cluster.client import TRANSIENT, Api
from allranks.cluster.inventory import Inventory, make_plan, settle
from allranks.follow import Following, Observer, RunProgress
from allranks.ledger import Ledger
from allranks.names import free_port, new_run_id
from allranks.plan import Plan
from allranks.render import Manifests, Placement, render
from allranks.result import Finding, Judgement, TrainingRun, Verdict
from allranks.settings import Settings, Workload
from allranks.signals import Interrupted, run_interruptible
from allranks.standin_process import start_standin

__all__ = ["Interrupted", "RunProgress", "run"]

_CLEAN_UP = 30.0
_DEPLOY_BOUND = 5.0
# Seconds for the ranks of a run that nobody waits for any more.
_INTERRUPTED_GRACE = 5


def run(settings: Settings, workload: Workload, *, observe: Observer | None = None) -> TrainingRun:
    """Runs the workload once and judges it. `observe` is called on every change, in this thread.

    Raises ClusterError when there is no usable cluster, NoSuchPool when it has no such nodes, PlanError and
    RenderError for what cannot be planned or rendered, and Interrupted after a signal. Whatever happens, what the run
    made on the cluster is removed, unless `settings.keep` says otherwise.
    """
    choice = choose(settings.cluster, settings.kubeconfig)
    with ExitStack() as stack:
        if choice.kind is Kind.STANDIN and not choice.kubeconfig:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="allranks-standin-"))
            kubeconfig = stack.enter_context(start_standin(Path(directory)))
            choice = replace(choice, kubeconfig=(kubeconfig,))
        return run_interruptible(_run(choice, settings, workload, observe or (lambda progress: None)))


async def _run(choice: Choice, settings: Settings, workload: Workload, observe: Observer) -> TrainingRun:
    run_id = new_run_id(workload.name, settings.accelerator)
    observe(RunProgress(run_id, "plan", 0, 0, 0))
    started = time.time()
    async with await Api.connect(choice) as api:
        leftovers = asyncio.create_task(_clean_leftovers(api))
        try:
            inventory, pool = await settle(api, settings)
            plan = make_plan(pool, settings, workload, run_id)
            namespace = settings.namespace or f"allranks-{run_id}"
            manifests = render(plan, workload, settings, Placement(namespace, settings.namespace is None, free_port()))
            job = Deployment(api, settings, plan, namespace, manifests, inventory, observe)
            result = await job.judged(started)
        finally:
            leftovers.cancel()
            await asyncio.gather(leftovers, return_exceptions=True)
    measured = result.figures.ranks
    observe(RunProgress(run_id, "done", plan.world_size, job.heard, measured, result.sentence()))
    return result


class Deployment:
    """One run's objects on the cluster, from apply to removal."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        plan: Plan,
        namespace: str,
        manifests: Manifests,
        inventory: Inventory,
        observe: Observer,
    ) -> None:
        assert plan.run_id is not None
        self._api, self._settings, self._plan = api, settings, plan
        self._run_id, self._namespace = plan.run_id, namespace
        self._manifests, self._inventory = manifests, inventory
        self._observe = observe
        self._ledger = Ledger(plan)
        self._moments = {"planned": time.time()}

    @property
    def heard(self) -> int:
        return self._ledger.progress.heard

    async def judged(self, started: float) -> TrainingRun:
        artefacts = Artefacts(self._settings.artefacts / self._run_id)
        keep = ended = False
        try:
            self._write_plan(artefacts)
            self._observe(RunProgress(self._run_id, "deploy", self._plan.world_size, 0, 0))
            following = await self._follow(artefacts)
            ended = True
            judgement = self._judge(following, artefacts)
            result = self._result(judgement, started, following, artefacts)
            keep = self._settings.keep == "all" or (
                self._settings.keep == "failed" and result.verdict is not Verdict.PASSED
            )
            artefacts.result(result)
            return result
        finally:
            artefacts.close()
            if not keep:
                await self._remove(interrupted=not ended)

    def _write_plan(self, artefacts: Artefacts) -> None:
        artefacts.write_json("plan.json", self._plan.to_dict())
        artefacts.write_text("manifests.yaml", self._manifests.to_yaml())
        artefacts.write_json("nodes.json", json.loads(json.dumps(asdict(self._inventory))))

    async def _follow(self, artefacts: Artefacts) -> Following:
        deploying = asyncio.ensure_future(objects.deploy(self._api, self._manifests.objects()))
        try:
            await asyncio.shield(deploying)
        except asyncio.CancelledError:
            # What was just asked for may still be made: it can be removed only after that.
            await asyncio.wait([deploying], timeout=_DEPLOY_BOUND)
            deploying.cancel()
            raise
        self._moments["applied"] = time.time()
        following = Following(
            self._api, self._plan, self._settings, self._namespace, self._ledger, artefacts, self._observe
        )
        await following.to_the_end()
        self._moments |= following.moments
        return following

    def _judge(self, following: Following, artefacts: Artefacts) -> Judgement:
        pods = sorted((pod.evidence() for pod in following.pods.values()), key=lambda pod: (pod.pod_index, pod.extra))
        failures = [*following.failures, *self._notes(following)]
        states = [pod.object for pod in following.pods.values()]
        artefacts.evidence(pods, failures)
        artefacts.write_json("objects.json", {"job": following.job, "pods": states})
        judgement = judge(self._plan, self._ledger, pods=pods, failures=failures)
        self._moments["verdict"] = time.time()
        return judgement

    def _notes(self, following: Following) -> list[Finding]:
        """What changes no verdict but belongs beside it."""
        notes = [
            Finding(
                "note-node-skipped", f"node {each.name} was left out: {each.reason}", Verdict.PASSED, node=each.name
            )
            for each in self._inventory.skipped
        ]
        for pod in following.pods.values():
            if not pod.log_whole:
                message = f"the log of pod {pod.name} broke off when the pod was deleted: its last lines may be missing"
                notes.append(Finding("note-log-cut", message, Verdict.PASSED, pod=pod.name, node=pod.node))
        return notes

    def _result(self, judgement: Judgement, started: float, following: Following, artefacts: Artefacts) -> TrainingRun:
        return TrainingRun(
            plan=self._plan,
            judgement=judgement,
            cluster=self._api.where,
            namespace=self._namespace,
            started=started,
            finished=time.time(),
            timeline=tuple(sorted(self._moments.items(), key=lambda moment: moment[1])),
            artefacts=str(artefacts.directory),
        )

    async def _remove(self, *, interrupted: bool) -> None:
        """Bounded, whatever the cluster does; what it cannot remove ends by the deadline and TTL in the Job."""
        try:
            async with asyncio.timeout(_CLEAN_UP):
                if interrupted:
                    # First, because what the Job's deletion takes along gets the full time to end.
                    await objects.end_pods(self._api, self._namespace, self._run_id, grace=_INTERRUPTED_GRACE)
                await objects.remove(self._api, self._manifests.objects())
                if interrupted:
                    own = self._manifests.namespace is not None
                    await objects.gone(self._api, self._namespace, self._run_id, own_namespace=own)
        except (TimeoutError, ClusterError, *TRANSIENT) as error:
            left = f"namespace {self._namespace}, label {objects.RUN_LABEL}={self._run_id}"
            why = str(error) or f"no end within {_CLEAN_UP:g} s"
            print(f"allranks: cleaning up is left to the cluster ({left}): {why}", file=sys.stderr, flush=True)


async def _clean_leftovers(api: Api) -> None:
    """Runs that were killed leave an expired namespace behind; whoever comes next sweeps it up, if they may."""
    with suppress(ClusterError, *TRANSIENT):
        await objects.clean(api)
