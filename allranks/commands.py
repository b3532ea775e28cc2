"""The commands that use a cluster or what a run left: run, render, inventory, clean, replay."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from allranks import arguments
from allranks.plan import DEVICE, Accelerator, Plan, PlanError
from allranks.references import References, ReferencesError
from allranks.result import TrainingRun, Verdict
from allranks.settings import Settings, Workload
from allranks.text import printable

if TYPE_CHECKING:
    from allranks.cluster.client import Api
    from allranks.cluster.inventory import Inventory
    from allranks.follow import RunProgress

PASSED, NOT_PASSED, UNUSABLE = 0, 1, 2
T = TypeVar("T")

_WORKLOADS = Path(__file__).resolve().parent.parent / "workloads"


def run(argv: Sequence[str]) -> int:
    """Exit code: 0 passed, 1 not passed, 2 no run could be judged."""
    own, program = _split(argv)
    parser = _parser("run", "Deploy a training job on a cluster, follow every rank, judge.")
    _add_workload(parser)
    _add_cluster(parser)
    _add_what(parser)
    parser.add_argument("--namespace", metavar="NS", help="use this namespace (default: one of the run's own)")
    parser.add_argument("--artefacts", type=Path, metavar="DIR", help="where evidence goes (default: artefacts)")
    parser.add_argument("--keep", choices=("never", "failed", "all"), help="leave the objects on the cluster")
    parser.add_argument("--references", type=Path, metavar="FILE", help="hold the figures against references.toml")
    parser.add_argument("--require-reference", action="store_true", help="a run that no reference fits is failed")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of text")
    parser.add_argument("--max-flaky", type=int, default=0, metavar="N", help="1: green at a later attempt is green")
    options = parser.parse_args(own)

    def judged() -> TrainingRun:
        from allranks.run import run as run_once

        return run_once(_settings(options), _workload(options.workload, program), observe=_live_lines())

    return _report(judged, as_json=options.json, allowed=options.max_flaky)


def render(argv: Sequence[str]) -> int:
    """Prints what a run would apply. No cluster is contacted."""
    own, program = _split(argv)
    parser = _parser("render", "Print the Kubernetes objects that a run would apply.")
    _add_workload(parser)
    _add_what(parser)
    parser.add_argument("--namespace", metavar="NS", help="use this namespace (default: one of the run's own)")
    options = parser.parse_args(own)

    def text() -> str:
        from allranks.render import Placement
        from allranks.render import render as to_objects

        settings = _settings(options)
        workload = _workload(options.workload, program)
        plan = _assumed_plan(settings, workload)
        place = Placement(settings.namespace or f"allranks-{plan.run_id}", settings.namespace is None, 29500)
        return to_objects(plan, workload, settings, place).to_yaml()

    return _attempt(lambda: print(text(), end="") or PASSED)


def inventory(argv: Sequence[str]) -> int:
    """Prints the cluster's nodes by accelerator and instance type."""
    parser = _parser("inventory", "List a cluster's accelerator nodes, ready or not.")
    _add_cluster(parser)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)

    async def show(api: Api) -> int:
        from allranks.cluster import paths
        from allranks.cluster.inventory import read

        nodes = (await api.call("GET", paths.NODES)).get("items") or ()
        found = {accelerator: read(nodes, accelerator) for accelerator in Accelerator}
        if options.json:
            print(json.dumps({name.value: asdict(each) for name, each in found.items()}, indent=2))
            return PASSED
        print(f"cluster: {printable(api.where)}")
        for accelerator, each in found.items():
            for line in _inventory_lines(accelerator, each):
                print(line)
        return PASSED

    return _attempt(lambda: _with_cluster(options, show))


def _inventory_lines(accelerator: Accelerator, found: Inventory) -> Iterator[str]:
    for pool in found.pools:
        odd = {sentence.split(":")[0].removeprefix("node "): sentence for sentence in pool.odd()}
        yield f"{accelerator}: {printable(pool.instance_type or 'no instance type')}, {len(pool.nodes)} nodes"
        for node in pool.nodes:
            what = [f"{node.devices} {DEVICE[accelerator]}" if accelerator in DEVICE else "ready"]
            what += [f"{node.cores} cores"] if node.cores else []
            what += [f"{node.efa} EFA"] if node.efa else []
            what += [f"{node.hugepages // 2**20} MiB of huge pages"] if node.hugepages else []
            what += [node.product] if node.product else []
            what += [f"{name} {value}" for name, value in node.details]
            yield printable(f"  {node.name}: {', '.join(what)}", 400) + (
                f"  ← {printable(odd[node.name])}" if node.name in odd else ""
            )
    for left_out in found.skipped:
        yield printable(f"{accelerator}: {left_out.name} left out: {left_out.reason}")


def clean(argv: Sequence[str]) -> int:
    """Removes what runs of ours left behind, and nothing else."""
    parser = _parser("clean", "Remove what expired, interrupted or kept runs left on a cluster.")
    _add_cluster(parser)
    parser.add_argument(
        "--older-than",
        type=arguments.age,
        metavar="AGE",
        help="what was made so long ago (30m, 12h, 7d) and runs no more, instead of what has expired",
    )
    parser.add_argument("--namespace", metavar="NS", help="look for kept jobs there only (default: everywhere)")
    options = parser.parse_args(argv)

    async def sweep(api: Api) -> int:
        from allranks.cluster import leftovers

        removed = await leftovers.clean(api, older_than=options.older_than, namespace=options.namespace)
        print("\n".join(f"{printable(what)} removed" for what in removed) or "nothing to remove")
        return PASSED

    return _attempt(lambda: _with_cluster(options, sweep))


def replay(argv: Sequence[str]) -> int:
    """Judges a finished run again from its artefacts."""
    parser = _parser("replay", "Judge a finished run again, from its artefacts, without a cluster.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="a run's directory below --artefacts")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of text")
    options = parser.parse_args(argv)

    def judged() -> TrainingRun:
        from allranks.artefacts import replay as judge_again

        return judge_again(options.directory)

    return _report(judged, as_json=options.json)


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"allranks {command}", description=description)


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our arguments, and the training program's after `--`."""
    given = list(argv)
    at = given.index("--") if "--" in given else len(given)
    return given[:at], tuple(given[at + 1 :])


def _add_workload(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} WORKLOAD --accelerator NAME [options] [-- program arguments]"
    parser.add_argument("workload", metavar="WORKLOAD", help="a training program of workloads/, e.g. bert")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", metavar="NAME", help="auto (default), standin, or a kubeconfig context")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE")


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accelerator", type=Accelerator, required=True, choices=list(Accelerator))
    parser.add_argument("--nodes", type=_nodes, metavar="N|all", help="default: all nodes of the pool")
    parser.add_argument(
        "--nproc-per-node",
        type=arguments.positive,
        dest="processes_per_node",
        metavar="P",
        help="default: all devices",
    )
    parser.add_argument(
        "--nthread-per-process",
        type=arguments.positive,
        dest="threads_per_process",
        metavar="T",
        help="ranks as threads of a process",
    )
    parser.add_argument("--instance-type", metavar="TYPE")
    parser.add_argument("--node-selector", type=_label, action="append", metavar="KEY=VALUE")
    parser.add_argument("--image", metavar="IMAGE", help="default: a stock image per accelerator")
    parser.add_argument("--launcher", choices=("allranks", "torchrun"))
    arguments.add_to(parser)


def _nodes(text: str) -> int | None:
    return None if text == "all" else arguments.positive(text)


_nodes.__name__ = "number of nodes"  # as argparse names it in its message


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text}: KEY=VALUE is expected")
    return key, value


def _settings(options: argparse.Namespace) -> Settings:
    values = vars(options) | {"node_selector": tuple(options.node_selector or ())}
    values["references"] = References.read(values.get("references"), required=values.get("require_reference", False))
    return Settings(**arguments.given(values))


def _workload(name: str, args: tuple[str, ...]) -> Workload:
    """A program is a module of workloads/ that can be run; raises PlanError with the names there are."""
    programs = sorted(path.stem for path in _WORKLOADS.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
    if name not in programs:
        raise PlanError(f"no workload {name!r}; there are: {', '.join(programs)}")
    return Workload(name, f"workloads.{name}", args)


def _assumed_plan(settings: Settings, workload: Workload) -> Plan:
    """Without a cluster nothing can be counted: what is not given is 1, or one process per device of that many."""
    from allranks.names import new_run_id

    processes, threads = settings.processes_per_node or 1, settings.threads_per_process
    ranks = processes * threads
    resource = DEVICE.get(settings.accelerator)
    # A NeuronCore is not requested by itself: two of them make the smallest Neuron device.
    devices = -(-ranks // 2) if settings.accelerator is Accelerator.NEURON else ranks
    return Plan(
        nodes=settings.nodes or 1,
        processes_per_node=processes,
        threads_per_process=threads,
        run_id=new_run_id(workload.name, settings.accelerator),
        workload=workload.name,
        accelerator=settings.accelerator,
        resources=((resource, str(devices)),) if resource else (),
        instance_type=settings.instance_type,
    )


def _live_lines() -> Callable[[RunProgress], None]:
    """Progress as lines on standard error: the report has standard output to itself."""
    started = time.monotonic()

    def show(progress: RunProgress) -> None:
        ranks = ""
        if progress.world_size:
            world = progress.world_size
            ranks = f"  {progress.started}/{world} ranks started, {progress.finished}/{world} finished"
        message = f"  {progress.message}" if progress.message and progress.phase != "done" else ""
        line = f"{time.monotonic() - started:7.1f}s  {progress.run_id}  {progress.phase}{ranks}{message}"
        print("".join(c if c.isprintable() else "�" for c in line), file=sys.stderr, flush=True)

    return show


def _report(judged: Callable[[], TrainingRun], *, as_json: bool, allowed: int = 0) -> int:
    def show() -> int:
        result = judged()
        if as_json:
            print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
        else:
            from allranks.report.text import render as to_text

            print("\n".join(to_text(result)))
        flaky = result.verdict is Verdict.FLAKY and allowed > 0
        return PASSED if result.verdict is Verdict.PASSED or flaky else NOT_PASSED

    return _attempt(show)


def _attempt(work: Callable[[], int]) -> int:
    """Known errors are one sentence on standard error and exit code 2; a signal is 128 + its number."""
    from allranks.artefacts import UnusableArtefacts
    from allranks.cluster import ClusterError
    from allranks.render import RenderError
    from allranks.signals import Interrupted

    try:
        return work()
    except (ClusterError, PlanError, ReferencesError, RenderError, UnusableArtefacts) as error:
        print(f"allranks: {printable(str(error), 4000)}", file=sys.stderr)
        return UNUSABLE
    except Interrupted as interrupted:
        print(
            f"allranks: ended by {interrupted}; the run was removed, or it is said above what is left", file=sys.stderr
        )
        return 128 + interrupted.signal


def _with_cluster(options: argparse.Namespace, work: Callable[[Api], Awaitable[int]]) -> int:
    from allranks.cluster import ClusterError
    from allranks.cluster.choose import Kind, choose
    from allranks.cluster.client import Api

    choice = choose("auto" if options.cluster is None else options.cluster, options.kubeconfig)
    if choice.kind is Kind.STANDIN and not choice.kubeconfig:
        raise ClusterError("no cluster is configured, and no stand-in is running: give its --kubeconfig, or a context")

    async def connected() -> int:
        async with await Api.connect(choice) as api:
            return await work(api)

    return asyncio.run(connected())
