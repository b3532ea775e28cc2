"""The launcher's termination message."""

import json
import math

import pytest

from allranks.ledger.status import parse_status

FAILED = {
    "v": 1,
    "run": "r",
    "attempt": 0,
    "node": 1,
    "nnodes": 2,
    "nproc": 4,
    "state": "failed",
    "codes": [[0, 1], [17, 1], [-15, 1], [None, 1]],
    "first": {
        "rank": 5,
        "local_rank": 1,
        "code": 17,
        "at": 12.5,
        "why": "exited",
        "lines": ["Traceback", "\x1b[1mboom\x07"],
    },
    "figures": {"ranks": [[4, 2], [7, 1]], "throughput": [1.5, "nan", None], "epoch_time": [0.1, 0.2, 0.3]},
}


def test_all_columns_are_read():
    status = parse_status(json.dumps(FAILED))
    assert status is not None
    assert [status.exit_code(local) for local in range(5)] == [0, 17, -15, None, None]
    assert (status.node, status.state, status.attempt) == (1, "failed", 0)
    assert status.first is not None
    assert (status.first.rank, status.first.code, status.first.at) == (5, 17, 12.5)
    assert status.first.lines == ("Traceback", "boom")
    assert status.figures is not None
    assert sorted(status.figures) == [4, 5, 7]
    assert status.figures[4].throughput == 1.5
    assert math.isnan(status.figures[5].throughput or 0)
    assert status.figures[7].throughput is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "42",
        "Traceback (most recent call last):",
        "{",
        "[" * 5000,
        json.dumps(FAILED | {"v": 2}),
        json.dumps(FAILED | {"codes": [[0]]}),
        json.dumps(FAILED | {"codes": [[0, 10**9]]}),
        json.dumps(FAILED | {"codes": [["x", 1]]}),
        json.dumps(FAILED | {"nproc": "4"}),
        json.dumps(FAILED | {"state": "fine"}),
        json.dumps(FAILED)[:200],
        b"\xff\xfe",
    ],
)
def test_a_message_that_is_not_the_launchers_is_none(text):
    assert parse_status(text) is None


def test_figures_that_did_not_fit_are_none():
    status = parse_status(json.dumps(FAILED | {"figures": None, "first": None}).encode())
    assert status is not None
    assert status.figures is None
    assert status.first is None


def test_columns_of_unequal_length_are_no_figures():
    figures = {"ranks": [[0, 3]], "throughput": [1.0, 2.0], "epoch_time": [1.0, 2.0, 3.0]}
    status = parse_status(json.dumps(FAILED | {"figures": figures}))
    assert status is not None
    assert status.figures is None


def test_codes_that_are_only_counted_leave_every_rank_open():
    status = parse_status(json.dumps(FAILED | {"codes": None, "counts": [[0, 3], [17, 1]]}))
    assert status is not None
    assert status.exit_code(0) is None
