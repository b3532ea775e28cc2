"""Options that the command line and pytest share: each is defined once, under the name of the setting that it means."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from allranks.settings import Settings


def seconds(text: str) -> float:
    """A time. Raises ValueError for what is none."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def mebibytes(text: str) -> int:
    """`256` or `256Mi` → bytes."""
    return positive(text.removesuffix("Mi")) * 2**20


def age(text: str) -> float:
    """`90s`, `30m`, `12h`, `7d` → seconds."""
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[-1:])
    if unit is None:
        raise ValueError(text)
    return seconds(text[:-1]) * unit


for _type, _name in (
    (seconds, "number of seconds"),
    (positive, "number from 1 on"),
    (age, "age such as 30m, 12h or 7d"),
):
    _type.__name__ = _name  # as argparse and pytest name it in their messages

Option = tuple[str, dict[str, Any]]

SHARED: tuple[Option, ...] = (
    ("--attempts", {"type": positive, "metavar": "N", "help": "tries, when the infrastructure fails (default: 2)"}),
    (
        "--lease-namespace",
        {"metavar": "NS", "help": "where the nodes' leases are, by which runs share a cluster; none: no leases"},
    ),
    ("--queue", {"metavar": "NAME", "help": "give the Job to this Kueue queue, in place of leases"}),
    (
        "--image-pull-secret",
        {
            "dest": "image_pull_secrets",
            "action": "append",
            "metavar": "NAME",
            "help": "of the --namespace; or NAMESPACE/NAME, copied from there into the run's own (repeatable)",
        },
    ),
    (
        "--shared-volume",
        {"metavar": "CLAIM[:PATH]|hostPath:/PATH", "help": "mounted at /shared in every pod"},
    ),
    (
        "--provision",
        {
            "action": "store_true",
            "default": None,
            "help": "the nodes do not exist yet; needs --instance-type, --nodes and --nproc-per-node",
        },
    ),
    ("--efa", {"type": positive, "metavar": "N", "help": "EFA interfaces per pod (default: all of the node's)"}),
    (
        "--neuron-logical-cores",
        {"type": positive, "metavar": "N", "help": "physical NeuronCores per logical one (default: as nodes are set)"},
    ),
    (
        "--install-device-plugins",
        {
            "action": "store_true",
            "default": None,
            "help": "apply manifests/device-plugins first, and wait for their pods",
        },
    ),
    (
        "--log-limit",
        {
            "type": mebibytes,
            "metavar": "MIB",
            "help": "of one container's log kept on disk (default: 256); records stay",
        },
    ),
)
"""Beside these, each time in `TIMES` is an option."""

TIMES = {
    "deadline": "the whole run, from apply to the last pod's end",
    "schedule_timeout": "how long pods may stay unschedulable",
    "provision_timeout": "the same with --provision",
    "lease_timeout": "how long to wait for nodes that other runs hold, or for the queue",
    "pull_timeout": "how long an image pull may take",
    "start_timeout": "from the containers' start to the last rank's first record, and from there to the first step",
    "stall_timeout": "no record from any rank for so long is a stall",
    "ready_timeout": "how long to wait for devices that are not allocatable yet",
    "node_timeout": "how long a node of the run may be NotReady",
}


def options() -> tuple[Option, ...]:
    """All shared ones, for `add_argument` and for pytest's `addoption`."""
    times = ((f"--{name.replace('_', '-')}", _time(what)) for name, what in TIMES.items())
    return (*SHARED, *times)


def _time(what: str) -> dict[str, Any]:
    return {"type": seconds, "metavar": "SECONDS", "help": what}


def add_to(parser: argparse.ArgumentParser) -> None:
    for name, keywords in options():
        parser.add_argument(name, **keywords)


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of parsed options those that were given and are settings, in the form that Settings takes."""
    known = {field.name for field in fields(Settings)}
    found = {name: value for name, value in values.items() if name in known and value is not None}
    found |= {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    if found.get("lease_namespace") == "none":
        found["lease_namespace"] = None
    return found
