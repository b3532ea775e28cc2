"""Said or only shown; crashes and launchers' words by their place in the log; attempts told apart."""

# ruff: noqa: E501

import pytest

from allranks.checks import judge
from allranks.ledger import Ledger
from allranks.plan import Plan
from allranks.result import Judgement, Verdict
from tests.ledger import samples as s
from tests.ledger.speech import ledger_of, log, rank_lines, world_lines

GOOD = "".join(map(s.nvidia, range(4)))
STEPS = s.mpirun(dict.fromkeys(range(4), s.seed(4)))
PART = s.mpirun(dict.fromkeys(range(4), s.seed(4, 4)))
TRACEBACK = (
    'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\n    f()\nRuntimeError: NCCL error\n'
)
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"

WORDS = [
    TRACEBACK,
    CHILD,
    "srun: error: node-1: task 3: Exited with exit code 1\n",
    "srun: error: node-1: tasks 4-7: Killed\n",
    "slurmstepd: error: *** STEP 123.0 ON n1 CANCELLED AT 2025-01-01T10:00:00 DUE TO TIME LIMIT ***\n",
    "mpirun noticed that process rank 3 with PID 0 on node x exited on signal 9 (Killed).\n",
    "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n",
    "Primary job  terminated normally, but 1 process returned\n",
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n",
    "[2024-01-01 10:00:00,1] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', 'x.py'] exits with return code = -9\n",
    "subprocess.CalledProcessError: Command '['python', 'x.py']' returned non-zero exit status 1.\n",
    "command terminated with exit code 137\n",
    "Segmentation fault (core dumped)\n",
    "train.sh: line 12: 12345 Killed                  python train.py\n",
    "Killed\n",
    "Aborted (core dumped)\n",
    "Fatal Python error: Aborted\n",
    "terminate called after throwing an instance of 'c10::DistBackendError'\n",
    "[node-1:1234] *** Process received signal ***\n",
    "[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)\n",
    "E0115 api.py:826] failed (exitcode: -11) local_rank: 3 (pid: 17) of binary: /usr/bin/python\n",
    "W0115 api.py:897] Sending process 17 closing signal SIGTERM\n",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    "RuntimeError: CUDA error: an illegal memory access was encountered\n",
    "2025-Jan-15 10:00:00.1 17:17 ERROR NRT:nrt_init  init failed: NRT_FAILURE\n",
    "python: ../src/comm.cc:12: void run(): Assertion `peers > 0' failed.\n",
    "double free or corruption (!prev)\n",
    "free(): invalid pointer\n",
    "*** stack smashing detected ***: terminated\n",
    "allranks: FAILED: rank 3 exited with code 17 (local rank 1), node 1, pod bert-1, on node-1\n",
]


def judged(text: str, world: int = 4) -> Judgement:
    plan = Plan.of_world(world)
    return judge(plan, ledger_of(text.encode(), plan=plan))


def codes(judgement: Judgement) -> list[str]:
    return [finding.code for finding in judgement.findings if finding.verdict is not Verdict.PASSED]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[:30])
@pytest.mark.parametrize("figures", [GOOD, STEPS], ids=["figures", "steps"])
def test_a_failure_after_the_figures_is_a_failure(figures: str, words: str):
    judgement = judged(figures + s.NOISE + words + s.NOISE)
    assert judgement.verdict is Verdict.FAILED
    assert set(codes(judgement)) <= {"crash", "launcher"}
    assert judgement.missing == ()


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[:30])
def test_a_failure_explains_ranks_that_are_missing(words: str):
    judgement = judged(words + "".join(map(s.nvidia, range(3))))
    assert judgement.verdict is Verdict.FAILED
    assert [f.code for f in judgement.findings if f.consequence and f.ranks] == ["missing-rank"]


@pytest.mark.parametrize(
    "lead",
    [
        "example: ",
        "  banner=",
        "- ",
        "# ",
        "RuntimeError: ",
        "$ echo ",
        "+ printf ",
        "x.py --format ",
        "--format=",
        "cmd = x ",
    ],
)
def test_our_own_records_are_held_to_the_same_rules(lead: str):
    shown = [lead.encode() + line for line in rank_lines(3)]
    judgement = judge(Plan.of_world(4), ledger_of(log(*world_lines()[:3], shown), plan=Plan.of_world(4)))
    assert (judgement.verdict, judgement.missing) == (Verdict.INCOMPLETE, (3,))


@pytest.mark.parametrize(
    "lead", ["[default3]:", "INFO train.py: ", "node-1: ", "localhost: ", "INFO:root:", "worker | ", "\r 9%|x| "]
)
def test_our_own_records_are_found_behind_programs_prefixes(lead: str):
    said = [lead.encode() + line for line in rank_lines(3)]
    judgement = judge(Plan.of_world(4), ledger_of(log(*world_lines()[:3], said), plan=Plan.of_world(4)))
    assert judgement.verdict is Verdict.PASSED


def test_our_own_records_do_not_hide_a_crash():
    text = log(*world_lines()) + TRACEBACK.encode()
    assert judge(Plan.of_world(4), ledger_of(text, plan=Plan.of_world(4))).verdict is Verdict.FAILED


def test_a_traceback_that_the_training_lived_with_is_a_note():
    before = judged(TRACEBACK + GOOD)
    within = judged(
        STEPS[: len(STEPS) // 2].rsplit("\n", 1)[0] + "\n" + TRACEBACK + STEPS[len(STEPS) // 2 :].split("\n", 1)[1]
    )
    assert before.verdict is Verdict.PASSED
    assert "note-crash" in [finding.code for finding in before.findings]
    assert "crash" not in [finding.code for finding in within.findings]


def test_an_exception_that_python_ignored_at_exit_is_no_crash():
    assert judged(GOOD + "Exception ignored in: <function F.__del__>\n" + TRACEBACK).verdict is Verdict.PASSED


@pytest.mark.parametrize(
    "harmless",
    [
        "srun: error: node-1: task 3: Exited with exit code 0\n",
        "['/usr/bin/python'] exits with return code = 0\n",
        'echo "Segmentation fault"\n',
        '{"msg": "we once saw a Segmentation fault here"}\n',
        "Killed 3 stale workers of yesterday\n",
        "# Traceback (most recent call last) is what to look for\n",
    ],
)
def test_words_that_are_no_failure(harmless: str):
    assert judged(GOOD + harmless).verdict is Verdict.PASSED


# Shown, not said ------------------------------------------------------------------------------------------------------

SAID = "Process 3 - Throughput: 49.97 samples/second"


@pytest.mark.parametrize(
    "shown",
    [
        f'echo "{SAID}"', f"+ echo {SAID}", f"++ printf {SAID}", f"$ grep {SAID}", f"# {SAID}", f"user@host:~$ echo {SAID}",
        f"Executing: run.sh {SAID}",
        f"  log_format: {SAID}", f"log_format: {SAID}", f"fmt={SAID}", f"  - template: '{SAID}'", f"Namespace(fmt='{SAID}', x=1)",
        f'{{"msg": "{SAID}"}}', f'{{"msg": "at 10: {SAID}, fine", "x": 1}}', f'  "line": "{SAID}",', f"args: ['--say', '{SAID}']",
        f"examples:\n  - {SAID}",
        f"RuntimeError: {SAID}", f"ValueError: could not parse: {SAID}",
        f"Traceback (most recent call last):\n  File \"x\", line 1\n    {SAID}\nE: x",
    ],
)  # fmt: skip
def test_what_is_shown_was_not_said(shown: str):
    judgement = judged("".join(map(s.nvidia, range(3))) + shown + "\n")
    assert judgement.missing == (3,)


@pytest.mark.parametrize(
    "prefix",
    ["node-1: ", "INFO: ", "INFO:root:", "2025-01-01 10:00:00,123 - root - INFO - ", "it's here: don't panic ", "\r 50%|##  | ",
     "[INFO] [train.py:12:main] ", "I0115 10:00:00.123456 12345 main.cc:345] ", "noise without a line break ", "train.py: "],
)  # fmt: skip
def test_what_programs_write_before_it_does_not_unsay_it(prefix: str):
    assert judged("".join(map(s.nvidia, range(3))) + prefix + SAID + "\n").verdict is Verdict.PASSED


def test_a_traceback_of_one_rank_does_not_silence_the_others():
    lines = s.woven(
        "[1,0]<stderr>:" + TRACEBACK.replace("\n", "\n[1,0]<stderr>:", 3), s.mpirun({1: s.seed(2), 0: s.seed(2)})
    )
    assert judged(lines, world=2).missing == ()


def test_a_dumped_history_of_the_trainer_is_no_training():
    items = ", ".join(line.rpartition("it/s]")[2] for line in s.trainer().splitlines())
    assert judged(f"log_history=[{items}]\n{{'log_history': [{items}]}}\n", world=1).missing == (0,)


# Attempts -------------------------------------------------------------------------------------------------------------


def test_steps_that_begin_anew_are_a_later_attempt():
    judgement = judged(PART + TRACEBACK + STEPS)
    assert (judgement.verdict, judgement.attempt) == (Verdict.FLAKY, 1)
    restarted = next(finding for finding in judgement.findings if finding.code == "restarted")
    assert restarted.evidence == ("attempt 1: 4 ranks heard, 0 finished",)


def test_a_resumed_attempt_need_not_begin_at_the_first_step():
    resumed = s.mpirun(dict.fromkeys(range(4), s.seed(4, first=3)))
    assert (judged(PART + resumed).verdict, judged(PART + resumed).missing) == (Verdict.FLAKY, ())


def by_file(**logs: str) -> Judgement:
    """Logs read one after the other, with their names."""
    plan = Plan.of_world(4)
    ledger = Ledger(plan)
    for name, text in logs.items():
        reader = ledger.source(name + ".log")
        reader.feed(text.encode())
        reader.close()
    return judge(plan, ledger)


def test_a_restart_is_told_in_each_log_of_its_own():
    again = by_file(**{f"rank_{rank}": s.seed(4, 4) + s.seed(4) for rank in range(4)})
    assert (again.verdict, again.missing, again.duplicate, again.attempt) == (Verdict.FLAKY, (), (), 1)
    unfinished = by_file(**{f"rank_{rank}": s.seed(4) + s.seed(4, 4) for rank in range(4)})
    assert (unfinished.verdict, unfinished.missing, codes(unfinished)) == (
        Verdict.INCOMPLETE,
        (),
        ["attempt-unfinished"],
    )


def test_one_rank_that_began_anew_and_ended_has_reported_and_is_a_duplicate():
    logs = {f"rank_{rank}": (s.seed(4, 4) if rank == 2 else "") + s.seed(4) for rank in range(4)}
    judgement = by_file(**logs)
    assert (judgement.verdict, judgement.missing, judgement.duplicate) == (Verdict.INCOMPLETE, (), (2,))


def test_a_restart_is_told_in_each_of_two_pods_logs():
    first, second = (("".join(map(s.nvidia, ranks))) for ranks in ((0, 1), (2, 3)))
    judgement = by_file(first=first + CHILD + first, second=second + CHILD + second)
    assert (judgement.verdict, judgement.missing, judgement.duplicate) == (Verdict.FLAKY, (), ())


def test_an_attempt_is_never_completed_from_another_ones_log():
    logs = {f"rank_{rank}": s.seed(4, 4) + s.seed(4) for rank in range(3)}
    assert by_file(**logs, rank_3=s.seed(4, 4)).missing == (3,)
    assert by_file(**logs, rank_3=s.seed(4)).verdict is Verdict.INCOMPLETE, "whole in the first, silent in the second"


def test_a_rank_that_does_not_come_back_is_missing():
    again = s.mpirun({rank: s.seed(4) for rank in range(3)})
    assert judged(PART + again).missing == (3,)


def test_only_the_last_complete_attempt_counts_and_one_that_never_ended_is_told():
    judgement = judged(STEPS + PART)
    assert (judgement.verdict, judgement.missing, judgement.attempt) == (Verdict.INCOMPLETE, (), 0)
    assert codes(judgement) == ["attempt-unfinished"]


def test_figures_of_a_whole_second_attempt_count_in_place_of_the_firsts():
    again = "".join(s.nvidia(rank, "60 samples/s") for rank in range(4))
    judgement = judged(GOOD + again)
    assert judgement.verdict is Verdict.FLAKY
    assert {rank.throughput for rank in judgement.ranks} == {60.0}


def test_a_failed_attempt_in_part_reported_then_a_whole_one():
    judgement = judged("".join(map(s.nvidia, range(2))) + CHILD + GOOD)
    assert (judgement.verdict, judgement.duplicate) == (Verdict.FLAKY, ())


def test_a_launcher_that_failed_before_all_figures_was_an_earlier_attempt():
    assert judged(CHILD + GOOD).verdict is Verdict.FLAKY


@pytest.mark.parametrize("order", [[0, 1, 2, 2, 3], [2, 0, 1, 2, 3], [0, 1, 2, 3, 2], [2, 2, 0, 1, 3]])
def test_two_figures_of_one_rank_are_a_duplicate_in_any_order(order: list[int]):
    judgement = judged("".join(map(s.nvidia, order)))
    assert (judgement.verdict, judgement.duplicate) == (Verdict.INCOMPLETE, (2,))


def test_two_processes_of_one_rank_in_step_formats():
    one = s.mpirun({3: s.seed(4)})
    assert judged(STEPS + one).duplicate == (3,)
    woven = s.mpirun({rank: s.seed(4) for rank in range(3)}) + s.woven(one, one)
    assert judged(woven).duplicate == (3,)


@pytest.mark.parametrize("lead", ["0: ", "[rank0]: ", "INFO:root:"])
def test_the_trainers_dictionaries_are_read_behind_a_prefix(lead: str):
    judgement = judged("".join(lead + line + "\n" for line in s.trainer().replace("\r", "\n").splitlines()), world=1)
    assert judgement.verdict is Verdict.PASSED


@pytest.mark.parametrize("bandwidth", ["nan", "0", "inf"])
def test_a_bus_bandwidth_that_cannot_be_is_a_failure(bandwidth: str):
    judgement = judged(s.nccl(range(4), bandwidth=bandwidth), world=4)
    assert (judgement.verdict, codes(judgement)) == (Verdict.FAILED, ["not-finite"])


def test_one_gpu_alone_has_no_bus_bandwidth():
    assert judged(s.nccl(range(1), bandwidth="0"), world=1).verdict is Verdict.PASSED


def test_an_average_that_is_no_number_is_a_failure():
    assert judged(GOOD + "Average Throughput: nan samples/second\n").verdict is Verdict.FAILED
