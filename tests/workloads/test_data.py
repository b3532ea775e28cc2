from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.data import CLS, FIRST_WORD, MASK, SEP, VOCABULARY, Corpus, Sampler, Slice, predictions_per_sequence


def visits(samples: int, batch_size: int, world: int, epoch: int = 0, seed: int = 0) -> list[list[Slice]]:
    return [list(Sampler(samples, batch_size, rank, world, seed).epoch(epoch)) for rank in range(world)]


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 9), st.integers(0, 3))
def test_every_sample_is_visited_once_whatever_the_sizes(samples: int, batch_size: int, world: int, epoch: int) -> None:
    every = visits(samples, batch_size, world, epoch)
    assert sorted(index for rank in every for part in rank for index in part.indices) == list(range(samples))
    for step in zip(*every, strict=True):
        assert {part.global_count for part in step} == {sum(len(part.indices) for part in step)}
        assert all(len(part.indices) <= batch_size for part in step)
        assert max(len(part.indices) for part in step) - min(len(part.indices) for part in step) <= 1
    assert {len(rank) for rank in every} == {Sampler(samples, batch_size, 0, world).steps_per_epoch}


@given(st.integers(1, 100), st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_global_batches_do_not_depend_on_how_many_share_them(samples: int, batch_size: int, world: int) -> None:
    alone = visits(samples, batch_size * world, 1)[0]
    shared = visits(samples, batch_size, world)
    merged = [tuple(index for part in step for index in part.indices) for step in zip(*shared, strict=True)]
    assert merged == [part.indices for part in alone]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(part.indices for part in visits(64, 8, 1, epoch, seed)[0]) for epoch in range(3) for seed in range(3)
    }
    assert len(orders) == 9


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 2**31))
@settings(max_examples=50)
def test_a_sample_is_the_same_in_any_company(indices: list[int], epoch: int, seed: int) -> None:
    corpus = Corpus(24, seed)
    together = corpus.batch(Slice(tuple(indices), 10), epoch, 8)
    for row, index in enumerate(indices):
        alone = corpus.batch(Slice((index,), 10), epoch, 1)
        for whole, single in zip(together, alone, strict=True):
            assert torch.equal(whole[row], single[0])


def test_masking_differs_between_epochs_and_hides_words_only() -> None:
    corpus, part = Corpus(64), Slice(tuple(range(256)), 256)
    first, second = (corpus.batch(part, epoch, 256) for epoch in (0, 1))
    assert not torch.equal(first.positions, second.positions)
    plain, segments, _ = corpus.pairs(torch.arange(256))
    assert torch.equal(plain.gather(1, first.positions), first.labels)
    assert (first.labels >= FIRST_WORD).all()
    assert first.positions.shape == (256, predictions_per_sequence(64))
    assert (first.positions.diff(dim=1) > 0).all()
    untouched = torch.ones_like(plain, dtype=torch.bool).scatter(1, first.positions, False)
    assert torch.equal(first.tokens[untouched], plain[untouched])
    shown = first.tokens.gather(1, first.positions)
    assert 0.75 < (shown == MASK).float().mean() < 0.85
    assert 0.08 < (shown == first.labels).float().mean() < 0.13
    assert (plain[:, 0] == CLS).all()
    assert (plain[:, -1] == SEP).all()
    assert int(plain.max()) < VOCABULARY
    assert torch.equal((plain == SEP).sum(1), torch.full((256,), 2))
    assert torch.equal(segments.sum(1), torch.full((256,), 64 - 2 - 30))


def test_the_language_can_be_learned_from_neighbours_and_topics() -> None:
    plain, _, is_next = Corpus(35).pairs(torch.arange(2000))
    first, second = plain[:, 1:17], plain[:, 18:34]
    after: dict[int, set[int]] = {}
    for sentence in (first, second):
        for word, following in zip(
            sentence[:, :-1].flatten().tolist(), sentence[:, 1:].flatten().tolist(), strict=True
        ):
            after.setdefault(word, set()).add(following)
    assert all(len(following) == 1 for following in after.values())
    assert len(after) == VOCABULARY - FIRST_WORD
    follows = torch.tensor([next(iter(after[word])) for word in first[:, -1].tolist()]) == second[:, 0]
    assert torch.equal(follows.long(), is_next)
    assert 0.45 < is_next.float().mean() < 0.55


def test_a_short_slice_is_filled_up_with_weightless_samples() -> None:
    batch = Corpus(16).batch(Slice((5, 7), 8), 0, 4)
    assert batch.tokens.shape == (4, 16)
    assert batch.weights.tolist() == [0.125, 0.125, 0.0, 0.0]
    empty = Corpus(16).batch(Slice((), 8), 0, 4)
    assert empty.weights.sum() == 0
