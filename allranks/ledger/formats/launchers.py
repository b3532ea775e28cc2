"""Words of failure: launchers', of a job that failed, and those that a dying process leaves.

`allranks: FAILED: rank 3 exited with code 17 (local rank 1), node 1, pod bert-1, on ip-10-0-3-7`
`torch.distributed.elastic.multiprocessing.errors.ChildFailedError:`
`srun: error: node-1: task 3: Exited with exit code 1`
`mpirun noticed that process rank 3 with PID 0 on node x exited on signal 9 (Killed).`
`Traceback (most recent call last)`, `Segmentation fault (core dumped)` …
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import found
from allranks.ledger.lines import Line
from allranks.ledger.record import FAILURE, Record, Remark
from allranks.text import printable

_OURS = b"allranks: FAILED: "
_RANK = re.compile(r"rank (\d{1,9}) ")
_NODE = re.compile(r"(node \d{1,9})\b(?:, pod [\w.-]+)?(?:, on [\w.-]+)?$")

_WORDS: tuple[tuple[str, str, bytes, bytes], ...] = (
    # launcher, kind, literal marker, pattern
    ("torchrun", "launcher", b"ChildFailedError:", rb"\S*errors\.ChildFailedError:"),
    (
        "torchrun",
        "crash",
        b"closing signal SIG",
        rb"Sending process \d+ closing signal SIG\w+",
    ),
    ("torchrun", "crash", b"(exitcode: ", rb"failed \(exitcode: -?[1-9]\d*\) local_rank: \d+[^\r\n]{0,80}"),
    (
        "slurm",
        "launcher",
        b"srun: error: ",
        rb"srun: error: [^\r\n]*?"
        rb"(?:tasks? [\d,-]+: (?!Exited with exit code 0)\w|[Nn]ode failure|[Aa]bort)[^\r\n]{0,120}",
    ),
    (
        "slurm",
        "launcher",
        b"slurmstepd: error: ",
        rb"slurmstepd: error: [^\r\n]*?(?:CANCELLED|oom|OOM|Exceeded|exceeded)[^\r\n]{0,120}",
    ),
    (
        "mpirun",
        "launcher",
        b" noticed that process rank",
        rb"\w+ noticed that process rank (?P<rank>\d+)[^\r\n]{0,160}",
    ),
    ("mpirun", "launcher", b"MPI_ABORT was invoked", rb"MPI_ABORT was invoked on rank (?P<rank>\d+)[^\r\n]{0,120}"),
    (
        "mpirun",
        "launcher",
        b"processes exited with non-zero status",
        rb"[^\r\n]{0,80}processes exited with non-zero status",
    ),
    ("mpirun", "launcher", b"BAD TERMINATION OF ONE OF YOUR", rb"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"),
    (
        "mpirun",
        "launcher",
        b"job  terminated normally, but",
        rb"\w+ job  terminated normally, but \d+ process[^\r\n]{0,80}",
    ),
    ("deepspeed", "launcher", b"exits with return code = ", rb"exits with return code = -?[1-9]\d*"),
    (
        "accelerate",
        "launcher",
        b"returned non-zero exit status",
        rb"CalledProcessError: Command [^\r\n]{0,400}returned non-zero exit status \d+",
    ),
    (
        "kubectl",
        "launcher",
        b"command terminated with ",
        rb"command terminated with (?:non-zero )?exit code[: ]+[1-9]\d*",
    ),
    ("process", "crash", b"Traceback (most recent call last)", rb"Traceback \(most recent call last\)"),
    ("process", "crash", b"Segmentation fault", rb"Segmentation fault[^\r\n]{0,60}"),
    ("process", "crash", b"(core dumped)", rb"[^\r\n]{0,60}\(core dumped\)"),
    ("process", "crash", b"Fatal Python error: ", rb"Fatal Python error: [^\r\n]{0,120}"),
    ("process", "crash", b"terminate called ", rb"terminate called (?:after throwing|without)[^\r\n]{0,120}"),
    ("process", "crash", b"*** Process received signal ***", rb"\*\*\* Process received signal \*\*\*"),
    ("process", "crash", b"Check failure stack trace: ***", rb"\*\*\* Check failure stack trace: \*\*\*"),
    ("process", "crash", b"*** Aborted at ", rb"\*\*\* Aborted at \d[^\r\n]{0,60}"),
    (
        "process",
        "crash",
        b"aught collective operation timeout",
        rb"[Cc]aught collective operation timeout[^\r\n]{0,160}",
    ),
    ("process", "crash", b"Out of memory: Killed process", rb"Out of memory: Killed process[^\r\n]{0,80}"),
    ("process", "crash", b"Killed", rb"(?:(?<=^)|(?<=: )|(?<=\d ))\s*(?:\d+ )?Killed(?=\s*$|  +\S)"),
    ("process", "crash", b"Aborted", rb"(?:(?<=^)|(?<=: )|(?<=\d ))\s*(?:\d+ )?Aborted(?=\s*$|  +\S)"),
    ("process", "crash", b"Bus error", rb"Bus error[^\r\n]{0,60}"),
    ("process", "crash", b"CUDA out of memory", rb"CUDA out of memory[^\r\n]{0,80}"),
    ("process", "crash", b"CUDA error: ", rb"CUDA error: [^\r\n]{0,80}"),
    ("process", "crash", b"NRT_FAILURE", rb"[^\r\n]{0,60}NRT_FAILURE"),
    ("process", "crash", b"' failed.", rb"[\w./-]+:\d+: [^\r\n]{0,200}Assertion [`'][^\r\n]{1,200}' failed\."),
    *(
        ("process", "crash", words, rb"(?:^|(?<=\s))" + words.replace(b"(", rb"\(").replace(b")", rb"\)"))
        for words in (
            b"double free or corruption",
            b"corrupted size vs. prev_size",
            b"corrupted double-linked list",
            b"free(): invalid",
            b"malloc(): ",
            b"munmap_chunk(): invalid pointer",
        )
    ),
    ("process", "crash", b"stack smashing detected", rb"\*\*\* stack smashing detected \*\*\*"),
)
_PATTERNS = tuple(
    (launcher, kind, marker, re.compile(pattern, re.MULTILINE)) for launcher, kind, marker, pattern in _WORDS
)
_IGNORED = b"Exception ignored in"


def _read(line: Line) -> Iterator[Record | Remark]:
    text = line.text.rstrip()
    at = text.find(_OURS)
    if at >= 0:
        said = printable(text[at + len(_OURS) :])
        rank, node = _RANK.match(said), _NODE.search(said)
        fields = {"message": said, "kind": "launcher", "launcher": node.group(1) if node else "ours"}
        yield Record(FAILURE, int(rank.group(1)) if rank else None, fields, span=(at, len(text)))
    for launcher, kind, marker, pattern in _PATTERNS:
        if marker not in text:
            continue
        for match in found(line, pattern):
            named = match.groupdict().get("rank")
            message = printable(match.group()).strip()
            if "ChildFailedError" in message:
                message = "torchrun reports a failed process (ChildFailedError)"
            fields = {"message": message, "kind": kind, "launcher": launcher}
            begin = text.find(marker, match.start())
            yield Record(FAILURE, int(named) if named else None, fields, span=(begin, begin + len(marker)))
            break


FORMAT = Format("launchers", (_OURS, _IGNORED, *(marker for _, _, marker, _ in _WORDS)), lambda: _read)
