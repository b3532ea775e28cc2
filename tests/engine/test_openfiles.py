"""The limit on open files, in processes of their own: it holds for all of a process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys
from allranks import openfiles
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
print(openfiles.allow(int(sys.argv[2]), 3), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def allowed(hard: int, pods: int) -> tuple[int, int]:
    """What is missing, and the soft limit, after the soft one was 64."""
    command = [sys.executable, "-c", PROGRAM, str(hard), str(pods)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    missing, soft = told.stdout.split()
    return int(missing), int(soft)


def test_the_soft_limit_is_raised_to_what_the_pods_need():
    missing, soft = allowed(hard=900, pods=200)
    assert missing == 0
    assert 600 < soft <= 900


def test_what_the_hard_limit_does_not_allow_is_told():
    missing, soft = allowed(hard=512, pods=1280)
    assert soft == 512
    assert missing > 3000
