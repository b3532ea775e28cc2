"""Our own records, found wherever they stand, and only where a rank said them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.ledger import Ledger
from allranks.plan import Plan
from tests.ledger.speech import RUN, contents, ledger_of, log, plan_of, rank_lines, record, world_lines

GOOD = contents(ledger_of(log(*world_lines())))


def test_a_good_run_is_entered_whole():
    assert sorted(GOOD) == [0, 1, 2, 3]
    assert GOOD[3]["final"]["throughput"] == 49.97
    assert GOOD[3]["seen"] == [[0, 5]]
    assert GOOD[3]["losses"] == [(1, 9.5), (2, 8.0), (3, 7.5), (4, 7.0)]


@pytest.mark.parametrize(
    "decorate",
    [
        pytest.param(lambda line: b"[default1]:" + line, id="torchrun"),
        pytest.param(lambda line: b"[1,3]<stdout>:" + line, id="mpirun"),
        pytest.param(lambda line: b"Mon Nov 30 10:00:00 2026[1,3]<stdout>:" + line, id="mpirun-timestamp"),
        pytest.param(lambda line: b"3: " + line, id="srun"),
        pytest.param(lambda line: b"[pod/bert-0-x2x/main] " + line, id="kubectl"),
        pytest.param(lambda line: b"2026-11-30T10:00:00.123456789Z " + line, id="timestamps"),
        pytest.param(lambda line: b"\x1b[32m" + line + b"\x1b[0m", id="coloured"),
        pytest.param(lambda line: line + b"\r", id="crlf"),
        pytest.param(lambda line: b" 50%|####     | 5/10\r 60%|#####" + line, id="progress-bar"),
        pytest.param(lambda line: b"\0\0\0" + line + b"\0", id="nul"),
        pytest.param(lambda line: b"\xff\xfe\xc3" + line + b"\xe2\x82", id="damaged-utf8"),
        pytest.param(lambda line: b"it's half a message of another ra" + line, id="merged-with-text"),
        pytest.param(lambda line: line[:25] + line, id="merged-with-a-cut-record"),
    ],
)
def test_records_are_found_behind_any_prefix(decorate):
    lines = [decorate(line) for rank in world_lines() for line in rank]
    assert contents(ledger_of(log(lines))) == GOOD


def test_lines_of_several_ranks_merged_into_one_are_all_read():
    merged = b"".join(line for rank in world_lines() for line in rank) + b"\n"
    assert contents(ledger_of(merged)) == GOOD


def test_lines_of_ranks_in_any_order_between_ranks():
    together = [line for group in zip(*world_lines(), strict=True) for line in group]
    assert contents(ledger_of(log(together))) == GOOD


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_interleaving_merging_prefixing_and_chunks_change_nothing(data: st.DataObject):
    queues = [list(lines) for lines in world_lines()]
    stream = b""
    while any(queues):
        line = data.draw(st.sampled_from([queue for queue in queues if queue])).pop(0)
        before = data.draw(st.sampled_from([b"", b"[default0]:", b"\x1b[1m", b"50%|##\r", b"noise\n", b"\xff\0"]))
        after = data.draw(st.sampled_from([b"\n", b"\r\n", b"", b" ", b"\x1b[0m\n"]))
        stream += before + line + after
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    ledger = Ledger(plan_of())
    reader = ledger.source("stream")
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[begin:end])
    reader.close()
    assert contents(ledger) == GOOD
    assert not ledger.note_counts


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_split_of_any_bytes_gives_the_same_ledger(data: st.DataObject):
    parts = [
        b"ALLRANKS {",
        b'"',
        b"'",
        b"\n",
        b"\\",
        b"[Rank 1] - local_throughput=",
        b"Process 1 - Throughput: 1 samples/s",
    ]
    parts += [line for rank in world_lines(2) for line in rank[:2]]
    stream = b"".join(data.draw(st.lists(st.one_of(st.sampled_from(parts), st.binary(max_size=6)), max_size=20)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    split = Ledger(Plan.of_world(4))
    reader = split.source("log-0")
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[begin:end])
    reader.close()
    whole = ledger_of(stream, plan=Plan.of_world(4))
    assert contents(split) == contents(whole)
    assert split.note_counts == whole.note_counts
    assert split.notes == whole.notes


def test_a_stream_cut_mid_line_and_resumed_loses_nothing_and_counts_nothing_twice():
    data = log(*world_lines())
    cut = data.index(b'"seq":3', len(data) // 2) + 3
    ledger = Ledger(plan_of())
    first = ledger.source("pod-0")
    first.feed(data[:cut])
    first.close()
    again = ledger.source("pod-0")
    again.feed(data[data.rindex(b"\n", 0, cut - 400) + 1 :])
    again.close()
    assert {rank: said | {"repeated": 0} for rank, said in contents(ledger).items()} == GOOD
    assert ledger.note_counts["malformed"] == 1, "the half record is remarked on"
    assert sum(said["repeated"] for said in contents(ledger).values()) > 0


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"+ echo '" + rank_lines(0)[-1] + b"'", id="xtrace"),
        pytest.param(b"+ echo " + rank_lines(0)[-1], id="echo"),
        pytest.param(b"sh -c 'sleep 1; printf " + rank_lines(0)[-1] + b"\\n'", id="inside-quotes"),
        pytest.param(b"{'line': '" + rank_lines(0)[-1] + b"\\n'}", id="python-repr"),
        pytest.param(b'{"log":"' + rank_lines(0)[-1].replace(b'"', b'\\"') + b'"}', id="json-string"),
        pytest.param(b"`" + rank_lines(0)[-1] + b"`", id="markdown"),
    ],
)
def test_a_quoted_record_is_not_speech(line: bytes):
    ledger = ledger_of(log(line))
    assert not ledger.accounts()
    assert sum(ledger.note_counts.values()) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"ALLRANKS {}",
        b"ALLRANKS {not json}",
        b'ALLRANKS {"v":1',
        b'ALLRANKS {"v":2' + record(0, 0, "start")[15:],
        record(0, 0, "start").replace(b'"rank":0', b'"rank":true'),
        record(0, 0, "start").replace(b'"rank":0', b'"rank":-1'),
        record(0, 0, "start").replace(b'"rank":0', b'"rank":"0"'),
        record(0, 0, "start").replace(b'"world":4', b'"world":0'),
        record(0, 0, "start").replace(b'"seq":0,', b""),
        record(0, 0, "start").replace(b'"run":"' + RUN.encode() + b'"', b'"run":7'),
        b'ALLRANKS {"v":' + b"[" * 5000,
        record(0, 0, "start").replace(b'"rank":0', b'"rank":\0\0\0'),
    ],
)
def test_what_is_not_whole_is_a_remark_and_never_a_report(line: bytes):
    ledger = ledger_of(log(line))
    assert not ledger.accounts()
    assert ledger.note_counts == {"malformed": 1}


def test_a_record_quoted_in_another_ranks_error_message_is_not_speech():
    inner = rank_lines(1)[-1].decode()
    ledger = ledger_of(log(record(0, 0, "error", type="ValueError", message=f"bad line: {inner}")))
    assert sorted(ledger.accounts()) == [0]


def test_a_hosts_name_before_a_record_is_no_key_of_a_configuration():
    """As pdsh and clush write it."""
    hosts = zip((b"alpha: ", b"beta: ", b"gamma: ", b"delta: "), world_lines(), strict=True)
    ledger = ledger_of(log(*([host + line for line in lines] for host, lines in hosts)))
    assert sorted(ledger.ranks_finished) == [0, 1, 2, 3]
    assert not ledger.notes


@pytest.mark.parametrize("key", [b"last_line: ", b"  record: ", b"record="])
def test_a_record_in_a_configuration_dump_is_not_speech(key: bytes):
    assert not ledger_of(log(key + rank_lines(0)[-1])).accounts()


def test_records_of_another_run_do_not_count():
    ledger = ledger_of(log(*world_lines(run="someone-else")))
    assert ledger.progress.heard == 0
    assert ledger.note_counts["other-run"] == 24


@pytest.mark.parametrize(("text", "value"), [("nan", math.nan), ("inf", math.inf), ("-inf", -math.inf)])
def test_numbers_that_json_lacks_are_read_from_strings(text: str, value: float):
    final = ledger_of(log(rank_lines(0, throughput=text))).accounts()[0].final
    assert final is not None
    assert final.throughput is not None
    assert repr(final.throughput) == repr(value)


def test_an_exponent_is_read():
    final = ledger_of(log(rank_lines(0)[-1].replace(b"49.97", b"5.8e7"))).accounts()[0].final
    assert final is not None
    assert final.throughput == 5.8e7


def test_an_error_before_the_process_group_stood_has_no_world_size():
    account = ledger_of(log(record(0, 0, "error", world=None, type="ImportError", message="x"))).accounts()[0]
    assert account.worlds == {}
    assert account.errors[0][0] == "ImportError: x"
    assert not ledger_of(log(record(0, 0, "start", world=None))).accounts()


def test_a_stream_read_again_from_its_beginning_repeats_even_what_is_long_past():
    lines = [record(0, seq, "step", world=1, step=seq, loss=1.0) for seq in range(1500)]
    ledger = Ledger(Plan.of_world(1))
    for part in (lines[700:], lines[:700], lines):
        reader = ledger.source("log")
        reader.feed(log(part))
        reader.close()
    account = ledger.accounts()[0]
    assert (account.records, account.repeated, account.conflict_count) == (1500, 1500, 0)


def test_progress_counts_ranks_not_records():
    ledger = Ledger(plan_of())
    reader = ledger.source("pod-0")
    reader.feed(log(rank_lines(0), rank_lines(1)[:2], record(9, 0, "start")))
    assert (ledger.progress.heard, ledger.progress.finished) == (2, 1)
    assert ledger.ranks_heard == {0, 1}
    assert ledger.progress.last_record == 1764497330.0


def test_a_restarted_rank_is_not_finished_until_it_ends_again():
    ledger = Ledger(plan_of())
    reader = ledger.source("pod-0")
    reader.feed(log(rank_lines(0), rank_lines(0, attempt=1)[:2]))
    assert ledger.progress.finished == 0
    assert ledger.attempt == 1
    reader.feed(log(rank_lines(0, attempt=1)[2:]))
    assert ledger.progress.finished == 1


def test_memory_is_bounded_by_ranks_not_by_records():
    ledger = Ledger(Plan.of_world(1))
    reader = ledger.source("log")
    for seq in range(5000):
        reader.feed(record(0, seq, "step", world=1, step=seq, loss=10 - seq / 1000) + b"\n")
    account = ledger.accounts()[0]
    assert account.seen().runs == [[0, 4999]]
    points = account.losses.points()
    assert len(points) <= 130
    assert (points[0], points[-1]) == ((0, 10.0), (4999, 10 - 4.999))


def test_many_ranks_outside_the_plan_are_bounded():
    ledger = Ledger(Plan.of_world(1))
    reader = ledger.source("log")
    for rank in range(3000):
        reader.feed(record(rank, 0, "start", world=1) + b"\n")
    assert len(ledger.accounts()) < 1100
    assert ledger.note_counts["overflow"] > 0


def test_two_pods_with_streams_of_one_name_are_not_one_voice():
    ledger = Ledger(plan_of())
    for pod in ("bert-0", "bert-0b"):
        reader = ledger.source("main", pod=pod)
        reader.feed(log(rank_lines(0)))
        reader.close()
    account = ledger.accounts()[0]
    assert account.duplicated
    assert account.repeated == 0


def test_line_numbers_go_on_when_a_source_is_read_on():
    ledger = Ledger(plan_of())
    for part in (b"one\ntwo\n", log(rank_lines(0))):
        reader = ledger.source("pod-0")
        reader.feed(part)
        reader.close()
    assert str(ledger.accounts()[0].first_where) == "pod-0:3"
