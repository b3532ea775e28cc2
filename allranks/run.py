"""The one loop: choose the cluster, plan, share it, deploy and judge; once more when it was the infrastructure."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from allranks import openfiles
from allranks.artefacts import rewrite
from allranks.attempts import without_another, worth_another
from allranks.cluster import ClusterError, access, leftovers, plugins
from allranks.cluster.choose import Choice, Kind, choose
from allranks.cluster.client import TRANSIENT, Api
from allranks.cluster.inventory import Inventory, make_plan, provisioned_plan, settle
from allranks.cluster.leases import NodeLeases
from allranks.deployment import Deployment
from allranks.follow import Observer, RunProgress
from allranks.names import free_port, new_run_id
from allranks.plan import Accelerator, Plan
from allranks.render import Placement, render
from allranks.result import TrainingRun
from allranks.settings import Settings, Workload
from allranks.signals import Interrupted, run_interruptible
from allranks.standin_process import start_standin

__all__ = ["Interrupted", "RunProgress", "run"]

_ALLOCATIONS = 20_000
_FILES = 3
"""A pod's kept log, its stream, and for a moment at its end a last reading."""


def run(settings: Settings, workload: Workload, *, observe: Observer | None = None) -> TrainingRun:
    """Runs the workload, at most `settings.attempts` times, and judges it.

    `observe` is called on every change, in this thread. Raises ClusterError when there is no usable cluster, NoSuchPool
    when it has no such nodes, PlanError and RenderError for what cannot be planned or rendered, and Interrupted after a
    signal. Whatever happens, what the run made on the cluster is removed, unless `settings.keep` says otherwise.
    """
    choice = choose(settings.cluster, settings.kubeconfig)
    with ExitStack() as stack:
        if choice.kind is Kind.STANDIN and not choice.kubeconfig:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="allranks-standin-"))
            kubeconfig = stack.enter_context(start_standin(Path(directory)))
            choice = replace(choice, kubeconfig=(kubeconfig,))
        stack.enter_context(_rare_collections())
        return run_interruptible(_run(choice, settings, workload, observe or (lambda progress: None)))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """What is known of a thousand pods lives to the end: looked through for garbage at Python's usual rate, it took a
    fifth of our time.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _ALLOCATIONS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _run(choice: Choice, settings: Settings, workload: Workload, observe: Observer) -> TrainingRun:
    async with await Api.connect(choice) as api:
        await _check_access(api, settings)
        if settings.install_device_plugins:
            await plugins.install(api, settings)
        sweeping = asyncio.create_task(_clean_leftovers(api))
        try:
            return await _attempts(api, settings, workload, observe)
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)


async def _check_access(api: Api, settings: Settings) -> None:
    """Before anything is made. What is needed in a namespace of the run's own is asked when that has a name."""
    await access.check(api, access.ON_CLUSTER)
    if settings.namespace is None:
        await access.check(api, access.OWN_NAMESPACE)
    else:
        await access.check(api, access.IN_NAMESPACE, settings.namespace)
    if _shares(settings):
        await access.check(api, access.LEASES, settings.lease_namespace)


def _shares(settings: Settings) -> bool:
    """CPU pods request nothing that another run could take away; a queue shares in its own way."""
    unplanned = settings.queue is not None or settings.provision or settings.accelerator is Accelerator.CPU
    return settings.lease_namespace is not None and not unplanned


async def _attempts(api: Api, settings: Settings, workload: Workload, observe: Observer) -> TrainingRun:
    earlier: list[TrainingRun] = []
    while True:
        try:
            result = await _attempt(api, settings, workload, observe, earlier)
        except ClusterError as error:
            if not earlier:
                raise
            # The cluster has not even the nodes any more: the attempt that was made stands.
            result = without_another(earlier[-1], str(error))
            rewrite(result)
            return result
        if len(earlier) + 1 >= settings.attempts or not worth_another(result):
            return result
        earlier.append(result)
        # A node less must not become a smaller world that passes.
        settings = replace(settings, nodes=result.plan.nodes, processes_per_node=result.plan.processes_per_node)


async def _attempt(
    api: Api, settings: Settings, workload: Workload, observe: Observer, earlier: Sequence[TrainingRun]
) -> TrainingRun:
    """With a name, a namespace and evidence of its own: nothing of an earlier attempt can be mistaken for it."""
    run_id = new_run_id(workload.name, settings.accelerator)
    observe(RunProgress(run_id, "plan", 0, 0, 0))
    started = time.time()
    inventory, plan = await _planned(api, settings, workload, run_id)
    _allow_open_files(plan)
    async with _shared(api, settings, plan, observe) as (plan, lost):
        namespace = settings.namespace or f"allranks-{run_id}"
        manifests = render(plan, workload, settings, Placement(namespace, settings.namespace is None, free_port()))
        job = Deployment(api, settings, plan, namespace, manifests, inventory, observe, lost)
        result = await job.judged(started, earlier)
    observe(RunProgress(run_id, "done", plan.world_size, job.heard, result.figures.ranks, result.sentence()))
    return result


def _allow_open_files(plan: Plan) -> None:
    """Before anything is made: logs that cannot be opened would be missing."""
    if missing := openfiles.allow(plan.nodes, _FILES):
        raise ClusterError(
            f"{plan.nodes} pods cannot be followed: {missing} more open files are needed than this process may have. "
            f"Raise the limit (ulimit -n, LimitNOFILE=, the container runtime's nofile), or plan fewer nodes"
        )


async def _planned(api: Api, settings: Settings, workload: Workload, run_id: str) -> tuple[Inventory, Plan]:
    if settings.provision:
        return Inventory(()), provisioned_plan(settings, workload, run_id)
    inventory, pool = await settle(api, settings)
    return inventory, make_plan(pool, settings, workload, run_id)


@asynccontextmanager
async def _shared(
    api: Api, settings: Settings, plan: Plan, observe: Observer
) -> AsyncIterator[tuple[Plan, Sequence[str]]]:
    """The plan on nodes that no other run uses meanwhile; and, later, the nodes for which that proved wrong."""
    if not _shares(settings):
        yield plan, ()
        return
    assert settings.lease_namespace is not None
    assert plan.run_id is not None
    run_id, world = plan.run_id, plan.world_size
    leases = NodeLeases(
        api, settings.lease_namespace, run_id, lambda why: observe(RunProgress(run_id, "wait", world, 0, 0, why))
    )
    async with leases.hold(plan.node_names, plan.nodes, patience=settings.lease_timeout) as names:
        yield replace(plan, node_names=names), leases.lost


async def _clean_leftovers(api: Api) -> None:
    """Runs that were killed leave an expired namespace behind; whoever comes next sweeps it up, if they may."""
    with suppress(ClusterError, *TRANSIENT):
        await leftovers.clean(api)
