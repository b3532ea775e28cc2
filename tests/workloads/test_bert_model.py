from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from workloads.bert import parse, schedule
from workloads.bert_model import SIZES, Bert, BertConfig
from workloads.data import Corpus, Slice
from workloads.runtime import fingerprint, seeded

SMALL = BertConfig(vocabulary=100, hidden=32, layers=1, heads=2)


def model(config: BertConfig = SMALL, seed: int = 0) -> Bert:
    with seeded(seed):
        return Bert(config)


def test_shapes_and_the_padded_vocabulary() -> None:
    batch = Corpus(20).batch(Slice((0, 1, 2), 3), 0, 3)
    bert = model()
    encoded = bert.encode(batch.tokens, batch.segments)
    words, follows = bert.heads(encoded, batch.positions)
    assert encoded.shape == (3, 20, 32)
    assert words.shape == (3, batch.positions.shape[1], 128)
    assert follows.shape == (3, 2)
    assert bert(*batch).shape == ()


def test_base_is_bert_base() -> None:
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Bert(SIZES["base"]).parameters())
    assert SIZES["base"].padded_vocabulary == 30528
    assert 109e6 < parameters < 112e6


def test_the_parts_of_a_global_batch_add_up_to_its_loss_and_gradient() -> None:
    """Also where the division is uneven: three samples on one rank, one on another, filled up to three."""
    corpus, bert = Corpus(16), model()
    whole = bert(*corpus.batch(Slice((0, 1, 2, 3), 4), 0, 4))
    whole.backward()
    expected = [p.grad.clone() for p in bert.parameters()]
    bert.zero_grad()
    parts = [bert(*corpus.batch(Slice(indices, 4), 0, 3)) for indices in ((0, 1, 2), (3,), ())]
    for part in parts:
        part.backward()
    assert sum(part.item() for part in parts) == pytest.approx(whole.item(), abs=1e-5)
    for parameter, gradient in zip(bert.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)


def test_every_parameter_takes_part() -> None:
    bert = model()
    bert(*Corpus(16).batch(Slice((0, 1), 2), 0, 2)).backward()
    assert [name for name, p in bert.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_dropout_acts_in_training_only() -> None:
    bert, batch = model(replace(SMALL, dropout=0.5)), Corpus(16).batch(Slice((0, 1), 2), 0, 2)
    assert bert(*batch) != bert(*batch)
    bert.eval()
    assert bert(*batch) == bert(*batch)


def test_the_fingerprint_tells_one_bit_and_ignores_how_values_are_stored() -> None:
    bert = model()
    print_ = fingerprint(bert)
    assert print_ == fingerprint(model())
    assert print_ != fingerprint(model(seed=1))
    half = fingerprint(bert.bfloat16())
    assert half == fingerprint(bert.float())
    assert half != print_
    with torch.no_grad():
        bert.word_bias[3] = torch.nextafter(bert.word_bias[3], torch.tensor(1.0))
    assert fingerprint(bert) != half


def test_the_learning_rate_rises_then_falls_and_never_is_zero() -> None:
    for steps in (1, 2, 9, 10, 60):
        rates = [schedule(step, steps) for step in range(1, steps + 1)]
        assert max(rates) == 1.0
        assert min(rates) > 0
        top = rates.index(1.0)
        assert rates[:top] == sorted(rates[:top])
        assert rates[top:] == sorted(rates[top:], reverse=True)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--seq-len", "7"], "--seq-len must be from 8 to 512"),
        (["--seq-len", "513"], "--seq-len must be from 8 to 512"),
        (["--epochs", "0"], "0 is not positive"),
        (["--warmup-steps", "-1"], "-1 is negative"),
        (["--dropout", "1"], "--dropout must be"),
        (["--samples", "8", "--steps-per-epoch", "2"], "not allowed with"),
        (["--device", "tpu"], "invalid choice"),
        (["--nthread_per_process", "2", "--dropout", "0.1", "--device", "cpu"], "needs --dropout 0"),
        (["--nthread-per-process=2", "--device", "xla"], "one XLA device"),
        (["--unknown"], "unrecognized arguments"),
    ],
)
def test_what_cannot_be_exits_2_with_a_sentence(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALLRANKS_STANDIN_DEVICE", raising=False)
    with pytest.raises(SystemExit) as exit_:
        parse(argv)
    assert exit_.value.code == 2
    assert sentence in capsys.readouterr().err


def test_an_unknown_standin_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLRANKS_STANDIN_DEVICE", "abacus")
    with pytest.raises(SystemExit):
        parse([])
    assert "only the cpu stands in" in capsys.readouterr().err


def test_size_auto_is_tiny_where_the_cpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLRANKS_STANDIN_DEVICE", "cpu")
    assert parse(["--device", "cuda"]).size == "tiny"
    monkeypatch.delenv("ALLRANKS_STANDIN_DEVICE")
    assert parse(["--device", "cuda"]).size == "base"
    assert parse(["--device", "cpu"]).size == "tiny"
