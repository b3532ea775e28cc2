"""Quantiles of a series of any length in bounded memory, whatever the order and however the stream was cut.

Up to 96 values are kept as they are. Beyond that they are counted in bins whose bounds grow by 2 %, so that a quantile
is within 1 % of the value that stands at its place (the idea of DDSketch: C. Masson, J. E. Rim, H. K. Lee, VLDB 2019).
What is held depends on the values alone, not on their order.
"""

from __future__ import annotations

import math
from array import array

EXACT = 96
_GROWTH = math.log(1.02)
_LEAST, _MOST = 1e-7, 1e7
"""Values outside count as these: a step takes neither less than 100 ns nor more than 100 days."""


class Quantiles:
    """Of values above 0, in any unit (the ledger's are seconds)."""

    __slots__ = ("_bins", "_first", "_values", "count", "greatest", "least")

    def __init__(self) -> None:
        self.count = 0
        self.least = math.inf
        self.greatest = -math.inf
        self._values: array[float] | None = array("d")
        """None once the values are in bins."""
        self._bins = array("L")
        """Counts; the first belongs to bin number `_first`."""
        self._first = 0

    def add(self, value: float) -> None:
        """Raises ValueError for a value that is not finite or not above 0."""
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"a finite value above 0 is expected, not {value}")
        self.count += 1
        self.least, self.greatest = min(self.least, value), max(self.greatest, value)
        if self._values is None:
            self._enter(value)
            return
        self._values.append(value)
        if len(self._values) > EXACT:
            values, self._values = self._values, None
            for kept in values:
                self._enter(kept)

    def _enter(self, value: float) -> None:
        number = math.floor(math.log(min(max(value, _LEAST), _MOST)) / _GROWTH)
        if not self._bins:
            self._first = number
        if number < self._first:
            self._bins = array("L", bytes((self._first - number) * self._bins.itemsize)) + self._bins
            self._first = number
        missing = number - self._first + 1 - len(self._bins)
        if missing > 0:
            self._bins.frombytes(bytes(missing * self._bins.itemsize))
        self._bins[number - self._first] += 1

    def quantile(self, fraction: float) -> float | None:
        """The least value that `fraction` of all values do not exceed (nearest rank); None without values."""
        if not self.count:
            return None
        wanted = max(1, math.ceil(fraction * self.count))
        if self._values is not None:
            return sorted(self._values)[wanted - 1]
        if wanted >= self.count:
            return self.greatest
        for number, count in enumerate(self._bins, start=self._first):
            wanted -= count
            if wanted <= 0:
                middle = math.exp((number + 0.5) * _GROWTH)
                return min(max(middle, self.least), self.greatest)
        raise AssertionError("fewer values in the bins than were counted")
