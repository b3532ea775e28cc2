"""MLPerf's logging:

`:::MLLOG {"namespace": "", "time_ms": 1592000000000, "event_type": "POINT_IN_TIME", "key": "tracked_stats", "value": {"throughput": 123.4}, "metadata": {"step": 100}}`

Rank: from the metadata where it has one, else from prefixes or the log's name. The final record is `run_stop`; one whose
status is not `success` is a failure. Epoch time: from epoch_start to epoch_stop.
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from allranks.ledger.formats import Format, Reader
from allranks.ledger.lines import Line
from allranks.ledger.record import DONE, FAILURE, STEP, Record, Remark, as_number
from allranks.text import printable

_MARKER = b":::MLLOG {"
_BEGIN = len(_MARKER) - 1
_LONGEST = 1 << 16
_RATES = ("throughput", "samples_per_second", "train_samples_per_second", "training_throughput")
_STEPS = ("global_step", "step", "step_num", "samples_count", "epoch_num")
_decode = json.JSONDecoder().raw_decode


def _reader() -> Reader:
    begun: dict[object, float] = {}
    epochs: dict[object, list[float]] = {}
    rates: dict[object, float] = {}
    kinds: dict[object, str] = {}

    def read(line: Line) -> Iterator[Record | Remark]:
        at = line.text.find(_MARKER, line.start, line.end + _BEGIN)
        while at >= 0:
            begin = at + _BEGIN
            text = line.text[begin : begin + _LONGEST].decode("utf-8", "surrogateescape")
            try:
                event, length = _decode(text)
                length = len(text[:length].encode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError):
                yield Remark("malformed", "not one whole JSON object", printable(line.text[at : at + 200]))
                length = 0
            else:
                # What one process says is told from another's by what stands before it.
                who = (line.head or line.text[:at])[:64] if line.text[:at] else b""
                yield from _said(event, (at, begin + length), (begun, epochs, rates, kinds), who)
            at = line.text.find(_MARKER, begin + length, line.end + _BEGIN)

    return read


_State = tuple[dict[object, float], dict[object, list[float]], dict[object, float], dict[object, str]]


def _said(event: dict[str, Any], span: tuple[int, int], state: _State, who: object) -> Iterator[Record | Remark]:
    begun, epochs, rates, kinds = state
    key, value, meta, time = (event.get(name) for name in ("key", "value", "metadata", "time_ms"))
    meta = meta if isinstance(meta, dict) else {}
    rank = next((meta[name] for name in ("global_rank", "rank") if isinstance(meta.get(name), int)), None)
    who = (who, rank)
    stats = value if isinstance(value, dict) else {str(key): value}
    rate = next((number for name in _RATES if (number := as_number(stats.get(name))) is not None), None)
    if rate is not None:
        rates[who] = rate
    if key == "epoch_start" and isinstance(time, int | float):
        begun[who] = time
    elif key == "epoch_stop" and who in begun and isinstance(time, int | float):
        epochs.setdefault(who, []).append((time - begun.pop(who)) / 1000)
    loss = next((number for name in ("train_loss", "loss") if (number := as_number(stats.get(name))) is not None), None)
    kind = next((name for name in _STEPS if as_number(meta.get(name)) is not None), None)
    # Steps, samples and epochs are no one series: the kind that came first is it.
    if kind is not None and (loss is not None or rate is not None) and kinds.setdefault(who, kind) == kind:
        told = {"step": as_number(meta[kind]), "loss": loss, "throughput": rate}
        yield Record(STEP, rank, {name: number for name, number in told.items() if number is not None}, span=span)
    if key == "run_stop":
        status = meta.get("status")
        if status not in (None, "success"):
            message = f"run_stop with status {printable(str(status), 40)}"
            yield Record(FAILURE, rank, {"message": message, "kind": "launcher", "launcher": "mlperf"}, span=span)
            return
        times = epochs.get(who)
        told = {"throughput": rates.get(who), "epoch_time": sum(times) / len(times) if times else None}
        yield Record(DONE, rank, {name: number for name, number in told.items() if number is not None}, span=span)


FORMAT = Format("mlperf", (_MARKER,), _reader, lasting=True, needs_end=True)
