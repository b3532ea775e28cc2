"""Are the records whole? And what was read that did not count."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.checks.evidence import Evidence, finding_about
from allranks.ledger import Account
from allranks.plan import format_ranks
from allranks.result import SAMPLES, Finding, Verdict

_SHOWN = 6
_NOTES = {
    "malformed": "records that are cut or not as they should be, not counted",
    "quoted": "records in quotes (an echoed command, a JSON string), not said by a rank",
    "other-run": "records of another run, not counted",
    "unknown-event": "records of an event that this version does not know",
    "overflow": "records beyond what a ledger keeps",
}


def records_whole(evidence: Evidence) -> Iterator[Finding]:
    """Every record that a rank says it wrote was read. Ranks without an end record are the roll call's part."""
    lines: dict[int, str] = {}
    for rank, account in evidence.accounts.items():
        lost = _lost(account) if account.numbered else None
        if lost:
            lines[rank] = f"rank {rank}: {lost}"
    if lines:
        message = f"{evidence.ranks_text(lines)}: records lost between the process and this log"
        yield finding_about(evidence, lines, "records-lost", message, lines=list(lines.values())[:_SHOWN])


def _lost(account: Account) -> str | None:
    final = account.final
    if final is None:
        return None
    if final.records is None or final.seq is None or final.records != final.seq + 1:
        return f"its end record is number {final.seq} and says that there are {final.records}"
    seen = account.seen()
    gaps = list(seen.gaps(final.records))
    if gaps:
        missing = sum(last - first + 1 for first, last in gaps)
        runs = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in gaps[:_SHOWN])
        return f"{missing} of {final.records} records are missing (number {runs})"
    beyond = seen.runs[-1][1]
    return f"record {beyond} came after its end record, number {final.seq}" if beyond > final.seq else None


def figures_whole(evidence: Evidence) -> Iterator[Finding]:
    """Our own end records carry throughput and epoch time; one without is evidence that is absent."""
    for name, what in (("throughput", "throughput"), ("epoch_time", "epoch time")):
        ranks = [
            rank
            for rank, account in evidence.accounts.items()
            if account.numbered and account.final and getattr(account.final, name) is None
        ]
        if ranks:
            message = f"{evidence.ranks_text(ranks)} ended without a figure for {what}"
            yield finding_about(evidence, ranks, "figure-missing", message)


def one_run(evidence: Evidence) -> Iterator[Finding]:
    """Logs of several runs cannot be judged as one."""
    runs = evidence.ledger.runs
    if len(runs) > 1:
        message = (
            f"the logs hold records of {len(runs)} runs ({', '.join(runs[:_SHOWN])}); the last, {runs[-1]}, is shown: "
            "give the logs of one run, or name it with --run-id"
        )
        yield Finding("several-runs", message, Verdict.INCOMPLETE)


def restarts(evidence: Evidence) -> Iterator[Finding]:
    """A later attempt is the one that counts; that there was an earlier one is said."""
    last = evidence.ledger.attempt
    others = [attempt for attempt in evidence.ledger.attempts if attempt != last]
    if not others:
        if evidence.ledger.proven and last > 0:
            message = f"the records are of attempt {last + 1}; of those before it nothing was read"
            yield Finding("restarted", message, Verdict.FLAKY)
        return
    lines = []
    for attempt in others:
        accounts = evidence.ledger.accounts(attempt)
        finished = sum(account.finished for account in accounts.values())
        lines.append(f"attempt {attempt + 1}: {len(accounts)} ranks heard, {finished} finished")
        lines += [
            f"attempt {attempt + 1}: rank {a.rank}: {text}" for a in accounts.values() for text, *_ in a.errors[:1]
        ]
    if max(others) > last:
        ended = {rank for rank, account in evidence.ledger.accounts(max(others)).items() if account.finished}
        lacking = format_ranks(rank for rank in evidence.plan.ranks if rank not in ended)
        message = (
            f"attempt {max(others) + 1} began and did not come to its end (no final record of ranks {lacking}); "
            f"attempt {last + 1} is shown"
        )
        yield Finding("attempt-unfinished", message, Verdict.INCOMPLETE, evidence=tuple(lines[: 4 * _SHOWN]))
        return
    message = f"the processes were restarted: attempt {last + 1} is judged"
    yield Finding("restarted", message, Verdict.FLAKY, evidence=tuple(lines[: 4 * _SHOWN]))


def notes(evidence: Evidence) -> Iterator[Finding]:
    """Worth knowing, of no consequence by themselves: a record that did not count leaves a gap that does."""
    ledger = evidence.ledger
    for kind, count in sorted(ledger.note_counts.items()):
        lines = tuple(f"{note.where}: {note.message}" for note in ledger.notes if note.kind == kind)[:_SHOWN]
        yield Finding(f"note-{kind}", f"{_NOTES.get(kind, kind)}: {count}", Verdict.PASSED, evidence=lines)
    repeated = {rank: account.repeated for rank, account in evidence.accounts.items() if _reread(account)}
    if repeated:
        message = f"a stream was read twice in part: {sum(repeated.values())} repeated records of ranks "
        yield Finding("note-repeated", message + format_ranks(repeated), Verdict.PASSED, ranks=tuple(repeated))
    if (evidence.accounts or evidence.unplaced) and not ledger.proven:
        message = "completeness: unproven – this format does not count its own records, so a lost one would not show"
        yield Finding("completeness-unproven", message, Verdict.PASSED)
    for record, where in ledger.summaries:
        average = record.number("throughput_average")
        if average is None:
            continue
        message = f"the log gives an average throughput of {average:g} samples/s, for no rank in particular ({where})"
        yield Finding("note-summary", message, Verdict.PASSED)
        break
    if evidence.throughput_unit != SAMPLES and ledger.others.form is not None:
        message = f"throughput is in {evidence.throughput_unit}, as {ledger.others.form.name} gives it"
        yield Finding("note-unit", message, Verdict.PASSED)


def _reread(account: Account) -> bool:
    return account.repeated > 0 and not account.duplicated
