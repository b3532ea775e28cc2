"""Other programs' speech: formats that do not number their records and often do not name their rank.

Speakers are kept apart as they are heard and placed when the ledger is read, since what places them may come later in
the log. Which records belong to which attempt is concluded from what is told again, as such formats do not say it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from allranks.ledger.formats import Format
from allranks.ledger.placing import Places, Speaker
from allranks.ledger.record import FACT, MEMBER, Record, Where
from allranks.ledger.series import Series
from allranks.plan import Plan

_ATTEMPTS = 16
_STRANGERS = 1024


@dataclass(slots=True)
class Settled:
    """The speech of one format, by attempt and rank."""

    form: Format | None = None
    attempts: list[dict[int, Series]] = field(default_factory=list)
    """Oldest first. One only, unless the log shows more."""
    judged: int = 0
    """The last complete attempt, else the last."""
    unplaced: list[tuple[Speaker, Series]] = field(default_factory=list)
    """Speech that no global rank is known for; of each speaker the attempt that counts."""
    unplaced_attempts: int = 1
    beside: list[tuple[str, Series]] = field(default_factory=list)
    """What the same log says in other formats, by their names; of each speaker the attempt that counts."""

    @property
    def counting(self) -> list[Series]:
        """All that counts, of ranks and of speakers whose rank is not known."""
        judged = self.attempts[self.judged] if self.attempts else {}
        return [*judged.values(), *(series for _, series in self.unplaced)]


class Others:
    """All of it, in bounded memory."""

    def __init__(self, plan: Plan, *, shaped: bool) -> None:
        self._plan = plan
        self._books: dict[str, dict[Speaker, list[Series]]] = {}
        self._forms: dict[str, Format] = {}
        self._places = Places(plan, shaped=shaped)
        self._entered = 0
        self._settled: tuple[int, Settled] | None = None
        self.worlds: dict[int, Where] = {}
        """World sizes that are told for no rank in particular, and where first."""
        self.breaks: list[tuple[Where, int]] = []
        """Where a launcher or a process spoke of a failure, and after how many records: attempts may end there."""

    def interrupt(self, where: Where) -> None:
        if len(self.breaks) < _STRANGERS:
            self.breaks.append((where, self._entered))

    def enter(self, form: Format, who: Speaker, record: Record, where: Where, pod: str | None, attempt: int) -> bool:
        """False when there is no room for another speaker."""
        self._entered += 1
        if record.event == FACT:
            self._places.learn(who, record)
            return True
        if record.event == MEMBER and who.rank is None:
            if record.world is not None and len(self.worlds) < _ATTEMPTS:
                self.worlds.setdefault(record.world, where)
            return True
        self._forms[form.name] = form
        book = self._books.setdefault(form.name, {})
        told = book.get(who)
        if told is None:
            if len(book) >= self._plan.world_size + _STRANGERS:
                return False
            told = book[who] = []
        if not told or (len(told) < _ATTEMPTS and told[-1].begins_anew(record)):
            told.append(Series(where, self._entered, attempt=attempt, lasting=form.lasting, needs_end=form.needs_end))
        told[-1].enter(record, where, pod)
        return True

    def settled(self) -> Settled:
        """By rank and attempt, of the format that most ranks finished in (were heard in, spoke)."""
        if self._settled is None or self._settled[0] != self._entered + len(self.breaks):
            options = [self._settle(self._forms[name], book) for name, book in self._books.items()]
            order = {name: number for number, name in enumerate(self._forms)}
            best = max(options, key=lambda option: self._coverage(option, order), default=Settled())
            best.beside = [
                (other.form.name, series)
                for other in options
                if other.form and other is not best
                for series in other.counting
            ]
            self._settled = (self._entered + len(self.breaks), best)
        return self._settled[1]

    def _coverage(self, option: Settled, order: dict[str, int]) -> tuple[int, ...]:
        judged = option.attempts[option.judged] if option.attempts else {}
        ranks = self._plan.ranks
        planned = [series for rank, series in judged.items() if rank in ranks]
        finished = sum(series.finished for series in planned)
        steps = sum(series.losses.count for _, series in option.unplaced)
        return (finished, len(planned), len(judged), steps, -order[option.form.name if option.form else ""])

    def _settle(self, form: Format, book: dict[Speaker, list[Series]]) -> Settled:
        placed = self._places.ranks(book)
        by_rank: dict[int, list[Series]] = {}
        loose: list[tuple[Speaker, list[Series]]] = []
        for who, told in book.items():
            rank = placed[who]
            if rank is None:
                loose.append((who, told))
                continue
            for series in told:
                series.rank = rank
            by_rank.setdefault(rank, []).extend(told)
        settled = Settled(form, *self._attempts(by_rank))
        for who, told in loose:
            for series in told:
                series.close(None)
            whole = [series for series in told if series.finished]
            settled.unplaced.append((who, (whole or told)[-1]))
            settled.unplaced_attempts = max(settled.unplaced_attempts, len(told))
        return settled

    def _attempts(self, by_rank: dict[int, list[Series]]) -> tuple[list[dict[int, Series]], int]:
        """The attempts, and which of them counts."""
        every = sorted((series for told in by_rank.values() for series in _speaking(told)), key=lambda s: s.order)
        numbers = sorted({series.attempt for series in every})
        if len(numbers) > 1:
            parts = [_merged(series for series in every if series.attempt == number) for number in numbers]
        else:
            parts = _aligned(every)
        whole = [self._close(part) for part in parts]
        if len(numbers) <= 1 and len(parts) > 1 and not self._told_apart(parts, whole):
            parts = [_merged(every)]
            whole = [self._close(part) for part in parts]
        judged = max((at for at, complete in enumerate(whole) if complete), default=len(parts) - 1)
        return parts, max(judged, 0)

    def _close(self, part: dict[int, Series]) -> bool:
        """Decide who has reported in an attempt; whether all planned ranks have."""
        furthest = max((series.last_step for series in part.values() if series.last_step is not None), default=None)
        for series in part.values():
            series.close(furthest)
        return all(rank in part and part[rank].finished for rank in self._plan.ranks)

    def _told_apart(self, parts: list[dict[int, Series]], whole: list[bool]) -> bool:
        """Whether what was told again was told by a later attempt, and not by a second process of the same rank.

        Steps that begin anew are a restart when at least half of the ranks do so; figures when a whole attempt follows
        a whole one, or a failure stands between. Whatever comes from two logs is two speakers.
        """
        if _in_two_logs(parts):
            return False
        if all(series.last_step is not None for part in parts for series in part.values()):
            return any(whole[1:]) or all(len(later) * 2 >= len(parts[0]) for later in parts[1:])
        if not any(whole[1:]):
            return False
        return all(self._broken(before, after) for before, after in pairwise(parts)) or (
            self._plan.world_size > 1 and all(whole)
        )

    def _broken(self, before: dict[int, Series], after: dict[int, Series]) -> bool:
        """Whether a failure was told between two attempts."""
        for source in {s.first_where.source for s in before.values()}:
            begin = max(s.order for s in before.values() if s.first_where.source == source)
            end = min((s.order for s in after.values() if s.first_where.source == source), default=0)
            if any(begin <= at < end for _, at in self.breaks):
                return True
        return False


def _aligned(every: list[Series]) -> list[dict[int, Series]]:
    """The attempts over all logs: the first that each tells belong together, the second, and so on.

    Logs are read one after the other, so that only within one is the order that of time. A log that lacks an early
    attempt leaves none whole; one that lacks the last is never completed by what it told of an earlier one.
    """
    by_source: dict[str, list[Series]] = {}
    for series in every:
        by_source.setdefault(series.first_where.source, []).append(series)
    cut = [_segments(told) for told in by_source.values()]
    parts: list[dict[int, Series]] = [{} for _ in range(max(map(len, cut), default=1))]
    for segments in cut:
        for part, segment in zip(parts, segments, strict=False):
            if part.keys() & segment.keys():
                return _segments(every)
            part.update(segment)
    return parts


def _in_two_logs(parts: list[dict[int, Series]]) -> bool:
    """Whether a rank was heard in more than one."""
    last: dict[int, str] = {}
    for part in parts:
        for rank, series in part.items():
            if last.setdefault(rank, series.first_where.source) != series.first_where.source:
                return True
    return False


def _segments(every: list[Series]) -> list[dict[int, Series]]:
    """Cut where a rank is told again."""
    parts: list[dict[int, Series]] = [{}]
    for series in every:
        if series.rank in parts[-1]:
            parts.append({})
        parts[-1][series.rank] = series
    return parts


def _merged(every: Iterable[Series]) -> dict[int, Series]:
    """One series a rank, of several one that came to its end; what else it told is in conflict with it."""
    told: dict[int, list[Series]] = {}
    for series in every:
        told.setdefault(series.rank, []).append(series)
    merged = {rank: next((series for series in of if series.finished), of[0]) for rank, of in told.items()}
    for rank, first in merged.items():
        first.rivals = [series for series in told[rank] if series is not first]
    return merged


def _speaking(told: list[Series]) -> list[Series]:
    """Of one rank those who gave steps or figures, if any did; a word that it takes part is nobody's rival."""
    speaking = [series for series in told if series.last_step is not None or series.final is not None] or told[:1]
    for silent in told:
        for world, where in silent.worlds.items():
            speaking[0].worlds.setdefault(world, where)
    for series in speaking:
        series.rivals = []
    return speaking
