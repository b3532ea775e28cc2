"""The rows of the fault suite that are quick and stand for a kind each; `make faults` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.faults.row import Row
from tests.faults.rows import ROWS
from tests.faults.runner import run_row, start_world
from tests.faults.world import World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield start_world(stack)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name.replace(" ", "-")) for row in ROWS if row.fast])
def test_fault_is_named_in_time(world: World, row: Row) -> None:
    outcome = run_row(row, world)
    assert not outcome.wrong, f"expected {outcome.expected}, got {outcome.got}: {'; '.join(outcome.wrong)}"


def test_rows_are_told_apart_by_their_names() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
