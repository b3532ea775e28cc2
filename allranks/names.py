"""What a run is called and known by on a cluster, chosen so that no two runs meet."""

from __future__ import annotations

import random
import re
import secrets
import socket

MANAGED_BY = {"app.kubernetes.io/managed-by": "allranks"}
RUN_LABEL = "allranks.dev/run"
"""On everything that a run makes; its value is the run's id."""
EXPIRES = "allranks.dev/expires"
"""When everything in a namespace of ours has certainly ended (RFC 3339)."""


def new_run_id(workload: str, accelerator: str) -> str:
    """`bert-nvidia-3f9a1c`: a DNS label of at most 40 characters, never the same twice."""
    name = re.sub(r"[^a-z0-9]+", "-", workload.lower()).strip("-")[:24].rstrip("-") or "run"
    if not name[0].isalpha():  # a Service's name begins with a letter
        name = f"w-{name}"
    return f"{name}-{accelerator}-{secrets.token_hex(3)}"


def free_port() -> int:
    """For the rendezvous. Checked here because a stand-in's pods share this machine."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
