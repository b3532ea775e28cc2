"""Said by a rank, or only shown? And who said it: what stands around a record in its line.

Echoed commands, configuration dumps, tracebacks and quoted strings show text that ranks say elsewhere. Launchers put
prefixes before lines, and within them where a process wrote half a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from allranks.ledger.lines import Line
from allranks.ledger.text import in_string, is_quoted

TRACEBACK = b"Traceback (most recent call last)"
IGNORED = b"Exception ignored in"
_REACH = 1024
"""Bytes before a record in which a launcher's prefix is looked for."""
_LONGEST_TRACEBACK = 2000
"""Lines; one that never ends must not keep the reader looking at every line."""

_MPIRUN = rb"\[(?:[\w.@-]+[@,])?(?P<job>\d+),(?P<task>\d+)\](?:\[[^\]\s]*\])?<std(?:out|err|diag)>:? ?"
_TORCHRUN = rb"\[(?P<role>[A-Za-z_][\w.-]*?)(?P<local>\d{1,5})\]:"
_PREFIXES = (
    ("pod", re.compile(rb"\[pod/(?P<pod>[\w.-]+)/[\w.-]+\] ?")),
    ("stern", re.compile(rb"(?P<pod>[a-z][a-z0-9.-]*-\d{1,5}-[a-z0-9]{5}) [a-z][\w-]*[ :]")),
    ("mpirun", re.compile(_MPIRUN)),
    ("several", re.compile(rb"\[(?=[^\]\s]*rank)(?P<template>[A-Za-z][^\]\s]*\d[^\]\d\s]+\d[^\]\s]*)\]: ?")),
    ("torchrun", re.compile(_TORCHRUN)),
    ("srun", re.compile(rb" {0,6}(?P<label>\d{1,6}): ")),
    (
        "time",
        re.compile(
            rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? ?"
            rb"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?:<std(?:out|err)>:|(?=\[))"
        ),
    ),
)
"""In any order; each at most once."""
_INNER = re.compile(_MPIRUN + rb"|" + _TORCHRUN)
_NUMBERED = re.compile(rb"(?:(local|group|node|role|global)[_-]?)?(?:rank|node)[=: _-]?(\d+)", re.IGNORECASE)
_POD_INDEX = re.compile(r"-(\d{1,5})(?:-[a-z0-9]{5})?$")

_SHELL = re.compile(rb"\s*(?:\++|\$|>|#|[\w.@:~/-]{1,60}[$#]|(?:Executing|Running|Command|cmd|CMD)\b[^:=]{0,20}[:=]) ")
_OPTION = re.compile(rb"(?:^|\s)--?[A-Za-z][\w-]*(?:=| +)$")
_KEY = re.compile(rb"(?:^|[\s{\[(,;])[\"']?([A-Za-z_][\w.\-/]*)[\"']?\s*([:=])\s*$")
_ITEM = re.compile(rb"\s*[-*] +")
_LEVEL = re.compile(
    rb"(?i:info|debug|warn(?:ing)?|notice|error|critical|stdout|stderr|out|err|root|main|log|output)$|[A-Z]"
    rb"|(?:localhost|host|node|master|head|chief|worker|launcher)$"
)
_SHOWN = re.compile(
    rb"(?i:examples?|samples?|formats?|templates?|patterns?|expected|records?|lines?|text|messages?|msg|values?|default"
    rb"|banner|usage|help|note|description)$"
)
"""Names of what holds lines to show them."""
_ERROR = re.compile(rb"\s*(?:[\w.]+\.)?\w*(?:Error|Exception|Warning|Interrupt)\b[^:]{0,80}: ")


@dataclass(frozen=True, slots=True)
class Prefix:
    """What launchers say before a line of who speaks."""

    pod: str | None = None
    task: int | None = None
    """A number that mpirun or srun gave: a global rank, or a node's where a torchrun below it says the local rank."""
    local: int | None = None
    rank: int | None = None
    """Global rank, where a torchrun template names it as such."""
    node: int | None = None
    end: int = 0
    """Where the line proper begins."""

    @property
    def pod_index(self) -> int | None:
        return pod_index(self.pod) if self.pod else None


def pod_index(name: str) -> int | None:
    """`job-1-abcde` and `set-1` are number 1."""
    match = _POD_INDEX.search(name)
    return int(match.group(1)) if match else None


def prefix_of(line: Line, at: int) -> Prefix:
    """The prefixes before what stands at text[at]: those of the line, and what launchers put in its middle."""
    return _prefix(line.text, line.head, at) if line.head or at > _REACH else _whole_prefix(line.text[:at])


@lru_cache(maxsize=1024)
def _whole_prefix(before: bytes) -> Prefix:
    """A speaker's is mostly the same."""
    return _prefix(before, b"", len(before))


def _prefix(text: bytes, head: bytes, at: int) -> Prefix:
    opening, end = _launchers(head or text[: min(at, _REACH)])
    said = dict(opening)
    end = 0 if head else end
    # A carriage return begins a line anew; so do the zeros that a log has where it was truncated under its writer.
    low = max(0, at - _REACH)
    begun = max(text.rfind(b"\r", low, at), text.rfind(b"\0", low, at)) + 1
    if begun:
        within, length = _launchers(text[begun : min(at, begun + _REACH)])
        said |= within
        end = begun + length
    for inner in _INNER.finditer(text, max(end, at - _REACH), at):
        said.update((key, value) for key, value in inner.groupdict().items() if value is not None)
    numbers = _template(said.get("template", b""))
    return Prefix(
        pod=said["pod"].decode("ascii", "replace") if "pod" in said else None,
        task=_whole(said.get("task", said.get("label"))),
        local=numbers.get("local", _whole(said.get("local"))),
        rank=numbers.get("rank"),
        node=numbers.get("node"),
        end=min(end, at),
    )


@lru_cache(maxsize=1024)
def _launchers(text: bytes) -> tuple[Mapping[str, bytes], int]:
    """The named parts of the prefixes that a text begins with, and where they end."""
    said: dict[str, bytes] = {}
    left = dict(_PREFIXES)
    end = 0
    while found := next(((name, m) for name, pattern in left.items() if (m := pattern.match(text, end))), None):
        name, match = found
        del left[name]
        said.update((key, value) for key, value in match.groupdict().items() if value is not None)
        end = match.end()
    return said, end


def _whole(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _template(text: bytes) -> dict[str, int]:
    """The numbers of a torchrun prefix that names more than one thing: `rank12-group_rank1-attempt0`."""
    kinds = {b"local": "local", b"group": "node", b"node": "node", b"": "rank", b"global": "rank"}
    found = [(kinds.get((kind or b"").lower()), int(value)) for kind, value in _NUMBERED.findall(text)]
    return {kind: value for kind, value in found if kind} if len(found) > 1 else {}


class Listener:
    """Keeps in mind, for one stream, what lines are part of: so far tracebacks, one per speaker's prefix."""

    def __init__(self) -> None:
        self._open: dict[Prefix, int] = {}
        """Speakers in the middle of a traceback, and the line it began in."""
        self._ignored: int | None = None

    @property
    def attentive(self) -> bool:
        """Whether the next line has to be seen, marked or not."""
        return bool(self._open)

    def hear(self, line: Line) -> None:
        """Take a line in before what it says is judged."""
        if IGNORED in line.text:
            self._ignored = line.number
        if not self._open and TRACEBACK not in line.text:
            return
        who = self._who(line)
        rest = line.text[who.end :]
        key = self._key(who)
        if TRACEBACK in rest:
            self._open[key] = line.number
        elif key in self._open:
            ended = rest.strip() and not rest[:1].isspace() and not _ERROR.match(rest)
            if ended or line.number - self._open[key] > _LONGEST_TRACEBACK or _ERROR.match(rest):
                del self._open[key]
        for other, began in list(self._open.items()):
            if line.number - began > _LONGEST_TRACEBACK:
                del self._open[other]

    def ignored(self, line: Line) -> bool:
        """Whether a traceback that begins here is one that Python itself says it ignored (at its exit, mostly)."""
        return self._ignored is not None and line.number - self._ignored <= 1

    def why_not_said(self, line: Line, start: int, end: int, who: Prefix, *, numbered: bool) -> str | None:
        """Why text[start:end], which `who` stands before, was not said by a rank; None when it was.

        A record that is `numbered` is no template, as configurations hold them.
        """
        text = line.text
        if is_quoted(text, start, end) or in_string(text, start, end, who.end):
            return "quoted"
        lead = text[who.end : start]
        if not lead:
            return None
        if _ITEM.fullmatch(lead):
            return "an item of a list"
        if _SHELL.match(lead) or _OPTION.search(lead[-120:]):
            return "part of an echoed command"
        if _ERROR.match(lead) or (self._key(who) in self._open and lead[:1].isspace()):
            return "part of a traceback"
        key = _KEY.search(lead[-120:])
        if key and (key[2] == b"=" or lead[:1].isspace() or _dumped(lead, key, numbered)):
            return "part of a configuration dump"
        return None

    @staticmethod
    def _who(line: Line) -> Prefix:
        return prefix_of(line, min(len(line.text), 256))

    @staticmethod
    def _key(who: Prefix) -> Prefix:
        return Prefix(who.pod, who.task, who.local, who.rank, who.node)


def _dumped(lead: bytes, key: re.Match[bytes], numbered: bool) -> bool:
    """`log_format: …` is a dump; `node-1: …`, `INFO: …`, `train.py: …` are prefixes of programs.

    `alpha: …` can be either, and before a record of ours it is a host's name, as pdsh writes it.
    """
    name = key[1]
    if numbered and b"_" not in name and not _SHOWN.match(name):
        return False
    alone = lead.strip(b" -\"'").startswith(name)
    return alone and not re.search(rb"\d|\.", name) and not _LEVEL.match(name)
