"""What ranks say, for tests: records of contract 2 as bytes, and a ledger that has read them."""

import json
from collections.abc import Iterable
from typing import Any

from allranks.ledger import Ledger
from allranks.plan import Plan

RUN = "bert-test-3f9a1c"


def record(
    rank: int, seq: int, event: str, *, world: int | None = 4, attempt: int = 0, run: str = RUN, **fields: Any
) -> bytes:
    """One record's line, without the line break."""
    data = {"v": 1, "run": run, "rank": rank, "world": world, "attempt": attempt, "seq": seq, "event": event}
    data |= {"t": 1764497325.0 + seq + rank / 1000} | fields
    return b"ALLRANKS " + json.dumps(data, separators=(",", ":")).encode()


def rank_lines(
    rank: int, *, world: int = 4, per_node: int = 2, losses: Iterable[Any] = (9.5, 8.0, 7.5, 7.0), **changes: Any
) -> list[bytes]:
    """All lines of a rank that trained well; `changes` go into its records (pid, pod, attempt …) or its end record."""
    losses = list(losses)
    common = {key: changes.pop(key) for key in ("attempt", "run", "t") if key in changes}
    start = {"pod": f"bert-{rank // per_node}", "node": f"node-{rank // per_node}", "local_rank": rank % per_node}
    start |= {"pid": 100 + rank, "device": "cpu", "backend": "gloo", "size": "tiny", "steps": len(losses)}
    start |= {key: changes.pop(key) for key in ("pod", "node", "pid", "device", "standin") if key in changes}
    lines = [record(rank, 0, "start", world=world, **start, **common)]
    for step, loss in enumerate(losses, start=1):
        lines.append(record(rank, step, "step", world=world, step=step, loss=loss, samples=4, **common))
    last = len(losses) + 1
    end = {"steps": len(losses), "records": last + 1, "samples": 78.1, "total_time": 1.56, "throughput": 49.97}
    end |= {"epoch_time": 0.31, "loss_first": losses[0], "loss_last": losses[-1], "fingerprint": "c0ffee"} | changes
    lines.append(record(rank, last, "end", world=world, **end, **common))
    return lines


def world_lines(world: int = 4, **changes: Any) -> list[list[bytes]]:
    """The lines of each rank of a good run."""
    return [rank_lines(rank, world=world, **changes) for rank in range(world)]


def log(*parts: bytes | Iterable[bytes]) -> bytes:
    """Lines (or lists of lines) as one log."""
    lines: list[bytes] = []
    for part in parts:
        lines += [part] if isinstance(part, bytes) else part
    return b"".join(line + b"\n" for line in lines)


def plan_of(world: int = 4, nodes: int = 2, **values: Any) -> Plan:
    return Plan(nodes=nodes, processes_per_node=world // nodes, run_id=values.pop("run_id", RUN), **values)


def ledger_of(*logs: bytes, plan: Plan | None = None) -> Ledger:
    """A ledger that has read each log as a source of its own: `log-0`, `log-1` …"""
    ledger = Ledger(plan or plan_of())
    for number, data in enumerate(logs):
        reader = ledger.source(f"log-{number}")
        reader.feed(data)
        reader.close()
    return ledger


def contents(ledger: Ledger) -> dict[int, Any]:
    """All that a ledger holds of each rank, but for the places where it was read."""
    return {
        rank: {
            "records": account.records,
            "repeated": account.repeated,
            "conflicts": account.conflict_count,
            "seen": account.seen().runs,
            "worlds": sorted(account.worlds),
            "processes": account.processes,
            "losses": account.losses.points(),
            "final": account.final
            and {name: getattr(account.final, name) for name in account.final.__slots__ if name != "where"},
            "errors": [text for text, *_ in account.errors],
        }
        for rank, account in ledger.accounts().items()
    }
