"""Our own records (contract 2): `ALLRANKS {"v":1,"run":"…","rank":3,"world":64,"attempt":0,"seq":0,"event":"start",…}`.

They are found anywhere in a line, since lines merge and launchers prefix; what is cut, quoted or not as the contract
says becomes a remark, and its number is missing from the rank's count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from allranks.ledger.formats import Format
from allranks.ledger.lines import Line
from allranks.ledger.record import Record, Remark, as_number
from allranks.ledger.text import is_quoted, strip_escapes
from allranks.text import printable

VERSION = 1
_MARKER = b"ALLRANKS {"
_BEGIN = len(_MARKER) - 1
_LONGEST = 1 << 14
"""Bytes; the contract's limit is 4096, what other writers exceed it by is still read."""
_decode = json.JSONDecoder().raw_decode


def _read(line: Line) -> Iterator[Record | Remark]:
    text = line.text
    last = line.end + _BEGIN
    at = text.find(_MARKER, line.start, last)
    while at >= 0:
        said, end = _read_one(text, at)
        yield said
        at = text.find(_MARKER, end, last)


def _read_one(text: bytes, at: int) -> tuple[Record | Remark, int]:
    """What stands at the marker, and where to read on."""
    begin = at + _BEGIN
    raw = text[begin : begin + _LONGEST]
    parsed = _object(raw)
    if parsed is None and b"\x1b" in raw:
        parsed = _object(strip_escapes(raw))
    if parsed is None:
        return Remark("malformed", "not one whole JSON object", printable(text[at : at + 200])), begin
    fields, source = parsed
    end = begin + len(source)
    wrong = _wrong(fields)
    quoted = is_quoted(text, at, end)
    if wrong or quoted:
        kind, reason = ("quoted", "quoted, not said by a rank") if quoted else ("malformed", wrong or "")
        return Remark(kind, reason, printable(text[at:end], 120)), end
    record = Record(
        event=fields["event"],
        rank=fields["rank"],
        fields=fields,
        run=fields["run"],
        world=fields.get("world"),
        attempt=fields["attempt"],
        seq=fields["seq"],
        time=as_number(fields.get("t")),
        digest=hash(source) & 0xFFFF_FFFF_FFFF_FFFF,
        span=(at, end) if at else None,  # at the line's very beginning nothing stands around it
    )
    return record, end


def _object(raw: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The JSON object that `raw` begins with, and its bytes."""
    text = raw.decode("utf-8", "surrogateescape")
    try:
        value, end = _decode(text)
    except (ValueError, RecursionError):
        return None
    return value, text[:end].encode("utf-8", "surrogateescape")


def _wrong(fields: dict[str, Any]) -> str | None:
    """What keeps the fields from being a record."""
    if fields.get("v") != VERSION:
        return f"record version {printable(str(fields.get('v')), 20)}, this reader knows version {VERSION}"
    for name, least in (("rank", 0), ("world", 1), ("attempt", 0), ("seq", 0)):
        value = fields.get(name)
        if name == "world" and value is None and fields.get("event") == "error":
            continue  # it failed before it had a process group
        if type(value) is not int or value < least:
            return f"{name} is not a whole number of at least {least}"
    for name in ("run", "event"):
        if not isinstance(fields.get(name), str):
            return f"{name} is not a string"
    return None


FORMAT = Format("allranks", (_MARKER,), lambda: _read)
