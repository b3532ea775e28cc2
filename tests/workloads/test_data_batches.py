"""Mission row L9: the global batch is the unit, whatever the sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.data import GlobalBatches

SIZES = st.integers(1, 70)
BATCHES = st.integers(1, 40)
SEEDS = st.integers(0, 5)


@given(SIZES, BATCHES, SEEDS, st.integers(0, 30))
def test_every_global_batch_is_full_and_in_range(size: int, batch: int, seed: int, n: int) -> None:
    samples = GlobalBatches(size, batch, seed).batch(n)
    assert len(samples) == batch
    assert all(0 <= sample < size for sample in samples)


@given(SIZES, BATCHES, SEEDS, st.integers(0, 30), st.integers(1, 50))
def test_slices_of_any_world_are_the_batch(size: int, batch: int, seed: int, n: int, world: int) -> None:
    batches = GlobalBatches(size, batch, seed)
    slices = [batches.slice(n, rank, world) for rank in range(world)]
    assert [sample for part in slices for sample in part] == batches.batch(n)
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


@given(SIZES, BATCHES, SEEDS, st.integers(1, 3))
def test_each_epoch_has_each_sample_once(size: int, batch: int, seed: int, epochs: int) -> None:
    batches = GlobalBatches(size, batch, seed)
    needed = -(-size * epochs // batch)
    flat = [sample for n in range(needed) for sample in batches.batch(n)]
    for epoch in range(epochs):
        assert sorted(flat[epoch * size : (epoch + 1) * size]) == list(range(size))


@given(SIZES, st.integers(1, 10), SEEDS, st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_resuming_at_other_world_sizes_continues_the_same_sequence(
    size: int, batch: int, seed: int, worlds: list[int]
) -> None:
    """Each element of `worlds` is one life of the training, for two steps; only the count of batches is carried on."""
    consumed, seen = 0, []
    for world in worlds:
        for _ in range(2):
            batches = GlobalBatches(size, batch, seed)
            seen.append([s for rank in range(world) for s in batches.slice(consumed, rank, world)])
            consumed += 1
    assert seen == [GlobalBatches(size, batch, seed).batch(n) for n in range(consumed)]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    epochs = [GlobalBatches(64, 64, 0).batch(n) for n in range(3)]
    assert len({tuple(order) for order in epochs}) == 3
    assert GlobalBatches(64, 64, 1).batch(0) != epochs[0]


@pytest.mark.parametrize(("size", "batch"), [(0, 1), (1, 0)])
def test_no_batches_of_nothing(size: int, batch: int) -> None:
    with pytest.raises(ValueError, match="no batches"):
        GlobalBatches(size, batch)


@pytest.mark.parametrize(("n", "rank", "world"), [(-1, 0, 1), (0, 1, 1), (0, -1, 2)])
def test_ranks_and_batches_that_cannot_be_are_refused(n: int, rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="no global batch"):
        GlobalBatches(4, 2).slice(n, rank, world)
