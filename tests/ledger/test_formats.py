"""Other people's lines."""

import importlib
import math
import re
from pathlib import Path

import pytest

from allranks.ledger import Account, Record, all_formats
from allranks.ledger.formats.custom import custom
from allranks.ledger.lines import Line
from allranks.ledger.record import Remark
from allranks.plan import Plan
from tests.ledger.speech import ledger_of, log, rank_lines

NEURON = (
    b"[Rank 3] - local_samples=78.1, total_time=1.56s, local_throughput=49.97 samples/s, local_avg_epoch_time=0.31s"
)


def read(*lines: bytes) -> dict[int, Account]:
    return ledger_of(log(lines), plan=Plan.of_world(4)).accounts()


def test_the_neuron_suites_line_gives_all_figures():
    final = read(NEURON)[3].final
    assert final is not None
    assert (final.samples, final.total_time, final.throughput, final.epoch_time) == (78.1, 1.56, 49.97, 0.31)


def test_merged_neuron_lines_give_every_rank():
    assert sorted(read(b"".join(NEURON.replace(b"Rank 3", b"Rank %d" % rank) for rank in range(4)))) == [0, 1, 2, 3]


def test_the_nvidia_suites_lines_give_throughput_and_time():
    accounts = read(
        b"Process 3 - Training time: 1.23 seconds",
        b"Process 3 - Throughput: 49.97 samples/second",
        b"Average Throughput: 49.97 samples/second",
    )
    final = accounts[3].final
    assert final is not None
    assert (final.throughput, final.total_time, final.epoch_time) == (49.97, 1.23, None)
    assert not accounts[3].duplicated


@pytest.mark.parametrize(
    ("text", "value"),
    [(b"5.8e7", 5.8e7), (b"1,234.5", 1234.5), (b"nan", math.nan), (b"inf", math.inf), (b".5", 0.5), (b"12", 12.0)],
)
def test_numbers_as_programs_print_them(text: bytes, value: float):
    final = read(b"Process 0 - Throughput: " + text + b" samples/second")[0].final
    assert final is not None
    assert repr(final.throughput) == repr(value)


@pytest.mark.parametrize(
    "line",
    [
        NEURON[:-8],
        NEURON.replace(b"49.97", b"4[r0]:9.97"),
        NEURON.replace(b"49.97 samples/s", b"4"),
        NEURON.replace(b"local_throughput=49", b"local_throughput=\0\0"),
        b"Process 3 - Throughput: 49.9",
        b"Process - Throughput: 49.97 samples/second",
    ],
)
def test_a_line_that_is_not_whole_is_no_report(line: bytes):
    ledger = ledger_of(log(line), plan=Plan.of_world(4))
    assert not ledger.accounts()
    assert ledger.note_counts["malformed"] == 1


def test_a_cut_line_of_one_rank_does_not_lend_its_number_to_the_next():
    accounts = read(NEURON[:30] + NEURON.replace(b"Rank 3", b"Rank 1"))
    assert sorted(accounts) == [1]


def test_a_quoted_line_is_not_speech():
    assert not read(b'{"msg": "' + NEURON + b'"}', b"+ echo '" + NEURON + b"'", b"echo " + NEURON)


def test_coloured_lines_are_read():
    assert sorted(read(b"\x1b[32m[Rank 3]\x1b[0m - " + NEURON[11:])) == [3]


def test_peoples_lines_beside_our_records_are_not_second_reports():
    account = read(*rank_lines(3), NEURON)[3]
    assert account.numbered
    assert not account.duplicated


def test_a_figure_given_twice_is_a_conflict():
    assert read(NEURON, NEURON)[3].duplicated


def test_launchers_words_are_kept():
    ledger = ledger_of(
        log(
            b"allranks: FAILED: rank 3 exited with code 17 (local rank 1), node 1, pod bert-1, on node-1",
            b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            b"    raise ChildFailedError(",
        ),
        plan=Plan.of_world(4),
    )
    assert ledger.failure_counts == {"node 1": 1, "torchrun": 1}
    assert ledger.failures[0][0].rank == 3


def test_every_format_is_documented_with_its_example():
    text = Path("docs/formats.md").read_text()
    for form in [*all_formats(), custom("(?P<loss>x)")]:
        if form.name not in ("launchers", "topology"):
            assert f"| `{form.name}` |" in text


@pytest.mark.parametrize(
    "name", ["step_lines", "torchtitan", "megatron", "nemo", "hf_trainer", "nanogpt", "deepspeed", "lightning", "mllog"]
)
def test_the_examples_in_the_modules_are_read(name: str):
    """They stand between backticks; an ellipsis stands for fields that vary."""
    module = importlib.import_module(f"allranks.ledger.formats.{name}")
    examples = re.findall(r"^`+([^`\n]{40,})`", module.__doc__ or "", re.MULTILINE)
    assert examples
    said = [
        said
        for example in examples
        for line in [example.replace(" …,", "").replace(" … |", "").encode()]
        for said in module.FORMAT.reader()(Line(1, line, 0, len(line)))
    ]
    assert any(isinstance(one, Record) for one in said)
    assert not [one for one in said if isinstance(one, Remark)]
