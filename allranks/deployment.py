"""One attempt: deploy, follow, judge, keep the evidence, and remove what was made."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from allranks import transport
from allranks.artefacts import Artefacts
from allranks.attempts import KEPT, after, worth_another
from allranks.checks import judge
from allranks.checks.references import hold_or_fail
from allranks.checks.verdict import concluded
from allranks.cluster import ClusterError, access, objects
from allranks.cluster.client import TRANSIENT, Api
from allranks.cluster.inventory import Inventory
from allranks.follow import Following, Observer, RunProgress
from allranks.ledger import Ledger
from allranks.names import RUN_LABEL
from allranks.plan import Plan, format_ranks
from allranks.render import Manifests
from allranks.result import Finding, Judgement, Phase, TrainingRun, Verdict
from allranks.settings import Settings
from allranks.text import printable

_CLEAN_UP = 30.0
_DEPLOY_BOUND = 5.0
# Seconds for the ranks of a run that nobody waits for any more.
_INTERRUPTED_GRACE = 5
# Clocks that differ by less are as good as equal: a log line may well take that long to us.
_SKEW = 5.0


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
        lost: Sequence[str] = (),
    ) -> None:
        """`lost` names, in the end, the nodes that another run took over meanwhile."""
        assert plan.run_id is not None
        self._api, self._settings, self._plan = api, settings, plan
        self._run_id, self._namespace = plan.run_id, namespace
        self._manifests, self._inventory = manifests, inventory
        self._observe, self._lost = observe, lost
        self._ledger = Ledger(plan)
        self._moments = {"planned": time.time()}

    @property
    def heard(self) -> int:
        return self._ledger.progress.heard

    async def judged(self, started: float, earlier: Sequence[TrainingRun] = ()) -> TrainingRun:
        """`earlier` are the attempts before this one, the oldest first."""
        artefacts = Artefacts(self._settings.artefacts / self._run_id, self._settings.log_limit)
        keep = ended = False
        try:
            self._write_plan(artefacts)
            self._observe(RunProgress(self._run_id, "deploy", self._plan.world_size, 0, 0))
            following = await self._follow(artefacts)
            ended = True
            result = self._result(following, started, earlier, artefacts)
            keep = self._keeps(result, len(earlier) + 1)
            if keep:
                result = replace(result, judgement=concluded(result.judgement, [self._how_to_look()]))
            artefacts.result(result)
            return result
        finally:
            try:
                artefacts.close()  # on a full disk this fails
            finally:
                if not keep:
                    await _to_its_end(self._remove(interrupted=not ended))

    def _keeps(self, result: TrainingRun, attempt: int) -> bool:
        if self._settings.keep == "never" or (self._settings.keep == "failed" and result.verdict is Verdict.PASSED):
            return False
        # What is tried again needs the nodes.
        return attempt >= self._settings.attempts or not worth_another(result)

    def _how_to_look(self) -> Finding:
        kubectl = " ".join(["kubectl", *self._api.kubectl_options, "-n", self._namespace])
        label = f"-l {RUN_LABEL}={self._run_id}"
        own = self._manifests.namespace is not None
        commands = (
            f"{kubectl} get job,pods {label} -o wide",
            f"{kubectl} describe pods {label}",
            f"{kubectl} get events --sort-by=.lastTimestamp",
            f"{kubectl} logs {label} --prefix --tail=-1",
            f"{kubectl} delete {f'namespace {self._namespace}' if own else f'job {self._run_id}'}",
        )
        message = f"the run is kept on the cluster (--keep {self._settings.keep}); to look at it, and to remove it:"
        return Finding(KEPT, message, Verdict.PASSED, evidence=commands)

    def _write_plan(self, artefacts: Artefacts) -> None:
        artefacts.write_json("plan.json", self._plan.to_dict())
        artefacts.write_json("references.json", self._settings.references.to_dict())
        artefacts.write_text("manifests.yaml", self._manifests.to_yaml())
        artefacts.write_json("nodes.json", json.loads(json.dumps(asdict(self._inventory))))

    async def _follow(self, artefacts: Artefacts) -> Following:
        deploying = asyncio.ensure_future(self._deploy())
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
        self._moments |= following.state.moments
        return following

    async def _deploy(self) -> None:
        if self._manifests.namespace is not None:
            # One may ask about a namespace that does not exist yet.
            await access.check(self._api, access.IN_NAMESPACE, self._namespace)
            await objects.create_namespace(self._api, self._manifests.namespace)
        for secret in self._settings.image_pull_secrets:
            await objects.copy_secret(self._api, secret, self._namespace, self._run_id)
        await objects.deploy(self._api, self._manifests.objects(), resume=self._settings.queue is None)

    def _result(
        self, following: Following, started: float, earlier: Sequence[TrainingRun], artefacts: Artefacts
    ) -> TrainingRun:
        judgement = self._judge(following, artefacts)
        result = TrainingRun(
            plan=self._plan,
            judgement=judgement,
            cluster=self._api.where,
            namespace=self._namespace,
            started=started,
            finished=time.time(),
            timeline=tuple(sorted(self._moments.items(), key=lambda moment: moment[1])),
            artefacts=str(artefacts.directory),
            attempts=tuple(run.judgement for run in earlier),
        )
        result = hold_or_fail(result, self._settings.references)
        return replace(result, judgement=after(result.judgement, earlier))

    def _judge(self, following: Following, artefacts: Artefacts) -> Judgement:
        state = following.state
        pods = sorted((pod.evidence() for pod in state.pods.values()), key=lambda pod: (pod.pod_index, pod.extra))
        failures = [*following.failures, *self._stood_in(), *self._notes(following, artefacts)]
        artefacts.evidence(pods, failures)
        seen = {"job": state.job, "pods": [pod.object for pod in state.pods.values()]}
        artefacts.write_objects({**seen, "nodes": list(state.nodes.values())})
        judgement = judge(self._plan, self._ledger, pods=pods, failures=failures)
        self._moments["verdict"] = time.time()
        return transport.with_networks(judgement, state.networks)

    def _stood_in(self) -> list[Finding]:
        """CPUs stand in for devices on a stand-in's nodes only, not where an image brings the variable along."""
        accounts = {} if self._api.is_standin else self._ledger.accounts()
        ranks = [rank for rank, account in accounts.items() if any(start.standin for start in account.starts)]
        if not ranks:
            return []
        message = (
            f"ranks {format_ranks(ranks)} computed on CPUs in place of {self._plan.accelerator}, which only nodes of a "
            "stand-in may ask for: is ALLRANKS_STANDIN_DEVICE set in the image?"
        )
        return [Finding("wrong-device", message, phase=Phase.START, ranks=tuple(ranks))]

    def _notes(self, following: Following, artefacts: Artefacts) -> list[Finding]:
        """What changes no verdict but belongs beside it."""
        state = following.state
        notes = [
            _note("node-skipped", f"node {x.name} was left out: {x.reason}", node=x.name)
            for x in self._inventory.skipped
        ]
        for pod in state.pods.values():
            if not pod.log_whole:
                why = "when the pod was deleted" if pod.deleted else "and was not served again at the end"
                message = f"the log of pod {pod.name} broke off {why}: its last lines may be missing"
                notes.append(_note("log-cut", message, pod=pod.name, node=pod.node))
            if pod.clock is not None and abs(pod.clock) > _SKEW:
                where = "behind" if pod.clock > 0 else "ahead of"
                message = f"the clock of node {pod.node} is {abs(pod.clock):.0f} s {where} ours"
                notes.append(_note("clock-skew", message, pod=pod.name, node=pod.node))
        for name in sorted(set(state.troubled) - {finding.node for finding in following.failures}):
            notes.append(_note("node-not-ready", f"node {name} was not ready for a while during the run", node=name))
        for name, dropped in sorted(artefacts.dropped.items()):
            message = (
                f"{dropped} bytes of {name} are not kept on disk (limit {self._settings.log_limit} bytes): records are"
            )
            notes.append(_note("log-truncated", message))
        for node in self._lost:
            notes.append(_note("lease-lost", f"the lease of node {node} was taken over: figures may be of two runs"))
        untold = transport.untold(self._plan, self._ledger, state.networks)
        return notes if untold is None else [*notes, untold]

    async def _remove(self, *, interrupted: bool) -> None:
        """Bounded, whatever the cluster does; what it cannot remove ends by the deadline and TTL in the Job."""
        try:
            async with asyncio.timeout(_CLEAN_UP):
                if interrupted:
                    # First, because what the Job's deletion takes along gets the full time to end.
                    with suppress(ClusterError):  # that is a courtesy; what follows ends them as well
                        await objects.end_pods(self._api, self._namespace, self._run_id, grace=_INTERRUPTED_GRACE)
                await objects.remove(self._api, self._manifests.objects())
                if interrupted:
                    own = self._manifests.namespace is not None
                    await objects.gone(self._api, self._namespace, self._run_id, own_namespace=own)
        except (TimeoutError, ClusterError, *TRANSIENT) as error:
            left = f"namespace {self._namespace}, label {RUN_LABEL}={self._run_id}"
            why = printable(str(error), 2000) or f"no end within {_CLEAN_UP:g} s"
            print(f"allranks: cleaning up is left to the cluster ({left}): {why}", file=sys.stderr, flush=True)


def _note(code: str, message: str, *, pod: str | None = None, node: str | None = None) -> Finding:
    return Finding(f"note-{code}", message, Verdict.PASSED, pod=pod, node=node)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits the (bounded) work whatever signal comes meanwhile, and passes a cancellation on after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
