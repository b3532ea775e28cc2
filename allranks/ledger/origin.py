"""What the name of a log tells of who wrote it.

`…/attempt_0/3/stdout.log` is torchrun's --log-dir (a local rank), `rank_3.log` and mpirun's `rank.3/stdout` a global
rank, `job-1-abcde.log` and `bert-1.log` a pod's index, `node_1.log` a node's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LOG_DIR = re.compile(r"^(?P<place>.*?)(?:^|/)attempt_(?P<attempt>\d{1,4})/(?P<local>\d{1,5})/[^/]+$")
_RANK = re.compile(r"(?:^|[._-])(?P<kind>local[_-]?)?rank[._-]?(?P<rank>\d{1,6})(?=$|[._-])", re.IGNORECASE)
_NODE = re.compile(r"(?:^|[._-])node(?:[_-]?rank)?[._-]?(?P<node>\d{1,5})(?=$|[._-])", re.IGNORECASE)
_POD = re.compile(r"(?:^|_)(?P<name>[a-z][a-z0-9.-]*?)-(?P<index>\d{1,5})(?:-[a-z0-9]{5})?(?=$|[._])")
_NOT_PODS = {
    "attempt",
    "epoch",
    "iter",
    "iteration",
    "log",
    "part",
    "restart",
    "retry",
    "run",
    "slurm",
    "step",
    "try",
    "v",
}
_DATE = re.compile(r"\d{4}-\d\d(?:-\d\d)?")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who wrote a log, by its name; None where the name does not say."""

    place: str
    """The log, or the directory that stdout and stderr of one process share."""
    rank: int | None = None
    local: int | None = None
    node: int | None = None
    """A pod's index or a node's number."""
    attempt: int | None = None


def origin_of(name: str) -> Origin:
    """By the last part of the path that says something."""
    match = _LOG_DIR.match(name)
    if match:
        above = origin_of(match["place"]) if match["place"] else Origin("")
        process = int(match["local"])
        return Origin(f"{match['place']}/{process}", None, process, above.node, int(match["attempt"]))
    rank: int | None = None
    local: int | None = None
    node: int | None = None
    for part in reversed(name.split("/")):
        part = _DATE.sub("", part)
        found = _RANK.search(part)
        if found and rank is None and local is None:
            if found["kind"]:
                local = int(found["rank"])
            else:
                rank = int(found["rank"])
        if node is None:
            node = _node(part)
    return Origin(name.rpartition("/")[0] if name.endswith(("/stdout", "/stderr")) else name, rank, local, node)


def _node(part: str) -> int | None:
    match = _NODE.search(part)
    if match:
        return int(match["node"])
    match = _POD.search(part)
    if match and match["name"].rpartition("-")[2] not in _NOT_PODS and "rank" not in match["name"]:
        return int(match["index"])
    return None
