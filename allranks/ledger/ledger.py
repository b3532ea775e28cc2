"""The ledger: who said what. It concludes nothing; that is the checks' part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from allranks.ledger.account import Account
from allranks.ledger.formats import Format, all_formats, readers
from allranks.ledger.lines import Line, LineScanner
from allranks.ledger.origin import Origin, origin_of
from allranks.ledger.others import Others, Settled
from allranks.ledger.placing import Speaker
from allranks.ledger.record import EVENTS, FACT, FAILURE, FIGURES, SUMMARY, Record, Remark, Where
from allranks.ledger.series import Series
from allranks.ledger.speech import Listener, Prefix, prefix_of
from allranks.plan import Plan
from allranks.text import printable

_NOTES = 8
_RUNS = 16
_FOREIGN = 1024


@dataclass(frozen=True, slots=True)
class Progress:
    """For the live line: ranks heard of, ranks whose final record was read, and the newest record's Unix time."""

    heard: int
    finished: int
    last_record: float | None


@dataclass(slots=True)
class Source:
    """A stream or a file, by its name; what is known of where it comes from."""

    name: str
    pod_index: int | None
    pod: str | None
    node: str | None
    origin: Origin
    lines: int = 0
    """Complete lines read so far."""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """Something read that did not count, and where."""

    kind: str
    """malformed, quoted, other-run, unknown-event, overflow."""
    message: str
    where: Where


class SourceReader:
    """Takes one stream's bytes, in chunks of any size."""

    def __init__(self, ledger: Ledger, source: Source, formats: tuple[Format, ...]) -> None:
        self._ledger = ledger
        self._source = source
        everything = any(not form.markers for form in formats)
        markers = [] if everything else [marker for form in formats for marker in form.markers]
        self._scanner = LineScanner(markers, first_line=source.lines + 1)
        self._listener = Listener()
        self._read = readers(formats)

    def feed(self, chunk: bytes) -> None:
        """Raises FormatError when a pattern of the user's takes too long."""
        self._source.bytes += len(chunk)
        for line in self._scanner.feed(chunk):
            self._take(line)

    def close(self) -> None:
        """Read the unfinished last line. A further reader of the same source goes on counting lines."""
        for line in self._scanner.close():
            self._take(line)
        self._source.lines = self._scanner.number - 1

    def _take(self, line: Line) -> None:
        line = line.without_escapes()
        self._listener.hear(line)
        for form, said in self._read(line):
            self._ledger._enter(form, said, self._source, line, self._listener)
        if self._listener.attentive:
            self._scanner.attend(1)


_Run = dict[int, dict[int, Account]]
"""rank → attempt → account."""


class Ledger:
    """Everything the ranks of a plan said, per rank and attempt. Its size is bounded by ranks, not by bytes."""

    def __init__(self, plan: Plan, formats: Iterable[Format] | None = None, *, shaped: bool | None = None) -> None:
        """`shaped` says whether the plan's nodes and processes per node are known, and not only their product: then
        a node's number and a local rank make a global rank.
        """
        self.plan = plan
        self._planned = plan.ranks
        self._formats = tuple(formats) if formats is not None else all_formats()
        self._sources: dict[tuple[str, str | None], Source] = {}
        self._named: dict[str, Source] = {}
        """The same, by the names that they are shown with."""
        self._runs: dict[str, _Run] = {}
        """Our own records, by run id."""
        self._run_times: dict[str, float] = {}
        shaped = plan.nodes > 1 or plan.run_id is not None if shaped is None else shaped
        self._others = Others(plan, shaped=shaped)
        self._heard: set[int] = set()
        self._finished: set[int] = set()
        self._last_record: float | None = None
        self.notes: list[Note] = []
        """The first few of each kind; `note_counts` has all."""
        self.note_counts: Counter[str] = Counter()
        self.summaries: list[tuple[Record, Where]] = []
        """The first few figures that were given for no rank in particular."""
        self.failures: list[tuple[Record, Where]] = []
        """The first few words of launchers that their job failed; `failure_counts` has all, by launcher."""
        self.failure_counts: Counter[str] = Counter()

    # Writing ---------------------------------------------------------------------------------------------------------

    def source(
        self, name: str, *, pod_index: int | None = None, pod: str | None = None, node: str | None = None
    ) -> SourceReader:
        """A reader for a stream. Asked again with the same name and pod, it reads on in the same source:

        records that come a second time, byte for byte, are then a repetition and not a second speaker.
        """
        source = self._sources.get((name, pod))
        if source is None:
            # Two pods may have streams of one name; what they say must never be taken for one voice.
            taken = any(known == name for known, _ in self._sources)
            shown = f"{pod}/{name}" if taken else name
            source = self._sources[name, pod] = Source(shown, pod_index, pod, node, origin_of(name))
            self._named.setdefault(shown, source)
        return SourceReader(self, source, self._formats)

    def _enter(self, form: Format, said: Record | Remark, source: Source, line: Line, listener: Listener) -> None:
        where = Where(source.name, line.number)
        if isinstance(said, Remark):
            self._note(said.kind, f"{said.reason}: {said.excerpt}", where)
            return
        who = prefix_of(line, said.span[0]) if said.span else Prefix()
        why_not = None
        if said.span and said.event != FACT:
            why_not = listener.why_not_said(line, *said.span, who, numbered=said.seq is not None)
        if said.event == FAILURE:
            if (why_not is None or "traceback" in why_not) and not listener.ignored(line):
                self._fail(said, where)
        elif why_not:
            begin, end = said.span or (0, 0)
            self._note("quoted", f"{why_not}, not said by a rank: {printable(line.text[begin:end], 120)}", where)
        elif said.event == SUMMARY:
            if len(self.summaries) < _NOTES:
                self.summaries.append((said, where))
        elif said.run is not None:
            book = self._book(said, where)
            if book is not None and said.rank is not None:
                self._enter_rank(book, said.rank, said, source, where)
        else:
            self._enter_other(form, said, source, who, where)

    def _fail(self, said: Record, where: Where) -> None:
        self.failure_counts[said.text("launcher") or "torchrun"] += 1
        self._others.interrupt(where)
        # The last ones matter as much as the first: what comes after the figures makes a job that failed.
        self.failures.append((said, where))
        if len(self.failures) > 2 * _RUNS:
            del self.failures[_RUNS]

    def _enter_other(self, form: Format, said: Record, source: Source, prefix: Prefix, where: Where) -> None:
        who = self._speaker(said, source, prefix)
        if not self._others.enter(form, who, said, where, source.pod, source.origin.attempt or 0):
            self._note("overflow", f"too many speakers; {who} is not read", where)
        elif who.rank is not None and who.rank in self._planned and said.event != FACT:
            self._heard.add(who.rank)
            if said.event == FIGURES and "throughput" in said.fields:
                self._finished.add(who.rank)

    def _speaker(self, said: Record, source: Source, prefix: Prefix) -> Speaker:
        """From the record, else from launchers' prefixes, else from the log's name."""
        if said.rank is not None and said.event != FACT:
            return Speaker(rank=said.rank)
        origin = source.origin
        node = next((n for n in (prefix.node, prefix.pod_index, source.pod_index) if n is not None), None)
        if node is None and origin.node is not None and origin.node < self.plan.world_size:
            node = origin.node
        task, local = prefix.task, prefix.local if prefix.local is not None else origin.local
        if prefix.rank is not None:
            task, local = prefix.rank, None
        elif task is None and origin.rank is not None:
            task, local = origin.rank, None
        return Speaker(origin.place, prefix.pod, None, task, local, node)

    def _book(self, record: Record, where: Where) -> _Run | None:
        """The run that the record belongs to; None when it is not to be counted."""
        assert record.run is not None
        wanted = self.plan.run_id
        if wanted is not None and record.run != wanted:
            self._note("other-run", f"a record of run {printable(record.run, 60)}", where)
            return None
        if record.run not in self._runs and len(self._runs) >= _RUNS:
            self._note("overflow", f"more than {_RUNS} runs; run {printable(record.run, 60)} is not read", where)
            return None
        if record.event not in EVENTS:
            self._note("unknown-event", f"event {printable(record.event, 40)} is not known", where)
        time = record.time if record.time is not None and math.isfinite(record.time) else 0.0
        self._run_times[record.run] = max(time, self._run_times.get(record.run, 0.0))
        return self._runs.setdefault(record.run, {})

    def _enter_rank(self, book: _Run, rank: int, record: Record, source: Source, where: Where) -> None:
        attempts = book.get(rank)
        if attempts is None:
            if rank not in self._planned and len(book) >= self.plan.world_size + _FOREIGN:
                self._note("overflow", f"too many ranks outside the plan; rank {rank} is not read", where)
                return
            attempts = book[rank] = {}
        account = attempts.get(record.attempt)
        if account is None:
            if len(attempts) >= _RUNS:
                self._note("overflow", f"rank {rank} has more than {_RUNS} attempts", where)
                return
            if record.attempt > max(attempts, default=-1):
                self._finished.discard(rank)
            account = attempts[record.attempt] = Account(rank, record.attempt, record.seq is not None, where)
        if not account.enter(record, where, source.pod) or rank not in self._planned:
            return
        self._heard.add(rank)
        if account.finished and record.attempt == max(attempts):
            self._finished.add(rank)
        if account.last_time is not None:
            self._last_record = max(account.last_time, self._last_record or account.last_time)

    def _note(self, kind: str, message: str, where: Where) -> None:
        self.note_counts[kind] += 1
        if self.note_counts[kind] <= _NOTES:
            self.notes.append(Note(kind, message, where))

    # Reading ---------------------------------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        return Progress(len(self._heard), len(self._finished), self._last_record)

    @property
    def ranks_heard(self) -> set[int]:
        """Planned ranks of which anything was read, in any attempt."""
        return set(self._heard)

    @property
    def ranks_finished(self) -> set[int]:
        """Planned ranks whose final record was read in their last attempt."""
        return set(self._finished)

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(self._sources.values())

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of the runs whose records were read, the latest last."""
        return tuple(sorted(self._runs, key=lambda run: (self._run_times[run], run)))

    @property
    def proven(self) -> bool:
        """Whether the speech that counts is numbered, so that a lost record shows."""
        return bool(self._runs) or self._of_another_run

    @property
    def _of_another_run(self) -> bool:
        """Whether the only records are of another run than the plan's: lines beside them are then copies of those."""
        return not self._runs and self.note_counts["other-run"] > 0

    @property
    def attempts(self) -> tuple[int, ...]:
        """The attempts that any rank was heard in, in order."""
        if not self.proven:
            return tuple(range(len(self.others.attempts)))
        return tuple(sorted({attempt for attempts in self._judged().values() for attempt in attempts}))

    @property
    def attempt(self) -> int:
        """The attempt that counts: the last in which every planned rank reported, else the last."""
        if not self.proven:
            return self.others.judged
        attempts = self.attempts
        whole = (attempt for attempt in reversed(attempts) if len(attempts) > 1 and self._whole(attempt))
        return next(whole, max(attempts, default=0))

    def _whole(self, attempt: int) -> bool:
        judged = self._judged()
        told = (judged.get(rank, {}).get(attempt) for rank in self._planned)
        return all(account is not None and account.finished for account in told)

    @property
    def others(self) -> Settled:
        """What was said in the format of other programs that most ranks speak."""
        return self._others.settled()

    @property
    def beside(self) -> list[tuple[str, Series]]:
        """What was said in formats other than the one that counts, where the log holds no records of ours."""
        return [] if self.proven else self.others.beside

    @property
    def worlds(self) -> dict[int, Where]:
        """World sizes that the log gives for no rank in particular, where it holds no records of ours."""
        return {} if self.proven else self._others.worlds

    def accounts(self, attempt: int | None = None) -> dict[int, Account]:
        """rank → what it said in the given attempt (or the one that counts), ranks outside the plan included.

        Where our own records are read, other formats' figures are people's copies of them and are left out.
        """
        wanted = self.attempt if attempt is None else attempt
        if not self.proven:
            attempts = self.others.attempts
            return dict(sorted(attempts[wanted].items())) if 0 <= wanted < len(attempts) else {}
        return {rank: attempts[wanted] for rank, attempts in sorted(self._judged().items()) if wanted in attempts}

    def source_of(self, account: Account) -> Source | None:
        """The first source that the rank was heard in."""
        name = account.first_where.source
        return self._named.get(name)

    def _judged(self) -> _Run:
        return self._runs[self.runs[-1]] if self._runs else {}
