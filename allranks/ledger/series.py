"""What one speaker said in a format that does not number its records: steps, or figures at the end."""

from __future__ import annotations

import math

from allranks.ledger.account import Account, Final
from allranks.ledger.record import DONE, FIGURES, MEMBER, STEP, Record, Where


class Series(Account):
    """One attempt of one speaker, from the first record to the last before it begins anew."""

    __slots__ = (
        "ahead", "last_step", "lasting", "needs_end", "order", "over", "pending", "planned_steps", "rate", "reached",
        "rivals",
    )  # fmt: skip

    def __init__(self, where: Where, order: int, *, attempt: int = 0, lasting: bool = False, needs_end: bool = False):
        super().__init__(-1, attempt, False, where)
        self.order = order
        """Of its first record among all that were read."""
        self.lasting = lasting
        """Whether steps and figures may be told more than once (progress bars, tables): no second speaker then."""
        self.needs_end = needs_end
        """Whether only a word that training is over ends it."""
        self.last_step: float | None = None
        self.reached: Where | None = None
        """Where its last step stands."""
        self.planned_steps: float | None = None
        self.rate: float | None = None
        """The throughput of its last step."""
        self.over: Where | None = None
        """Where it said that its training is over."""
        self.pending: Where | None = None
        """Where it was named as taking part in something whose figures are still to come."""
        self.ahead: float | None = None
        """The last step of the others, where they got further."""
        self.rivals: list[Series] = []
        """Others who claim to be the same rank."""

    @property
    def duplicated(self) -> bool:
        return bool(self.rivals) or super().duplicated

    @property
    def disputes(self) -> list[tuple[Where, str]]:
        return [*self.conflicts, *((other.first_where, "reported again") for other in self.rivals)]

    def begins_anew(self, record: Record) -> bool:
        """Whether this record cannot go on from what was said: a restart, or another process."""
        step = record.number("step")
        if record.event == STEP and step is not None and self.last_step is not None:
            return step < self.last_step or (self.over is not None and step == self.last_step)
        if record.event == DONE:
            return self.over is not None and not self.lasting
        if record.event == FIGURES and self.final is not None and not self.lasting:
            return any(getattr(self.final, name) is not None for name in record.fields)
        return False

    def enter(self, record: Record, where: Where, pod: str | None) -> bool:
        step = record.number("step") if record.event == STEP else None
        if step is not None and step == self.last_step and not self.lasting:
            self._conflict(where, f"step {step:g} again")
            return True
        super().enter(record, where, pod)
        if step is not None:
            self._reach(step, record, where)
        elif record.event == DONE:
            self.over = where
            self.final = self.final or Final(where)
            self._take(record, where)
        elif record.event == MEMBER:
            if record.fields.get("pending") is True:
                self.pending = where
            self._told_twice(record, where)
        elif record.event == FIGURES:
            self.pending = None
        return True

    def _told_twice(self, record: Record, where: Where) -> None:
        if record.text("conflict"):
            self._conflict(where, record.text("conflict") or "")

    def _reach(self, step: float, record: Record, where: Where) -> None:
        planned, rate = record.number("planned"), record.number("throughput")
        self.last_step, self.reached = step, where
        if planned is not None:
            self.planned_steps = planned
        if rate is not None:
            self.rate = rate

    def _take(self, record: Record, where: Where) -> None:
        """The latest figures count, of tables that are told more than once the worst bandwidth."""
        assert self.final is not None
        self.final.where = where
        for name in record.fields:
            value = record.number(name)
            if hasattr(self.final, name) and value is not None:
                setattr(self.final, name, value)

    def _figures(self, record: Record, where: Where) -> None:
        if not self.lasting:
            super()._figures(record, where)
            self.final = self.final or Final(where)
            self.final.reported = self.final.reported or self.final.throughput is not None
            return
        worst = self.final.bus_bandwidth if self.final else None
        self.final = self.final or Final(where)
        self._take(record, where)
        told = self.final.bus_bandwidth
        if worst is not None and told is not None and not (told < worst or math.isnan(told)):
            self.final.bus_bandwidth = worst
        self.final.reported = True

    def close(self, furthest: float | None) -> None:
        """Decide whether it has reported; `furthest` is the last step of those who speak beside it."""
        self.ahead = None
        if self.last_step is None or self.reached is None:
            if self.final is not None and self.over is not None:
                self.final.reported = True
            elif self.final is not None and self.pending is not None:
                self.final.reported = False
            return
        goal = self.planned_steps if self.planned_steps is not None else furthest
        done = self.over is not None or (not self.needs_end and (goal is None or self.last_step >= goal))
        if not done:
            self.ahead = furthest if furthest is not None and furthest > self.last_step else None
            if self.final is not None:
                self.final.reported = False
            return
        self.final = self.final or Final(self.reached)
        if self.over is None:
            self.final.where = self.reached
        if self.over is None or self.final.throughput is None:
            self.final.throughput = self.rate
        if self.last_step.is_integer():
            self.final.steps = int(self.last_step)
        self.final.reported = True

    @property
    def lack(self) -> str | None:
        """How far it got, where that is not to the end."""
        if self.finished:
            return None
        if self.pending is not None:
            return f"named as taking part ({self.pending}), the figures did not come"
        if self.last_step is None:
            return None
        if self.planned_steps is not None and self.last_step < self.planned_steps:
            return f"its last step is {self.last_step:g} of {self.planned_steps:g} ({self.reached})"
        if self.ahead is not None:
            return f"its last step is {self.last_step:g} ({self.reached}), others reached {self.ahead:g}"
        return f"after step {self.last_step:g} ({self.reached}) no word that training is over"
