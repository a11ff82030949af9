"""Axes: where a value stands, and which values are written beside the axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STEPS = (1.0, 2.0, 5.0)
_MOST = 12
"""Values that are written beside an axis at most."""
_FEW = 6
"""The same, of an axis that begins at 0, without that."""
_SLACK = 1 + 1e-9
"""What rounding may do to a step."""


class Axis:
    """A logarithmic axis over all of some values, from one step (1, 2 or 5 times a power of ten) to another.

    Args:
        values: What has to find a place, all above 0, one at least.
        start: Where the lowest step stands in the picture.
        end: Where the highest step stands.
    """

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        known = list(values)
        steps = _steps(min(known), max(known))
        self._low, self._high = steps[0], steps[-1]
        self._start, self._end = start, end
        self.ticks = _thinned(steps)

    def at(self, value: float) -> float:
        """Say where a value stands."""
        return between(value, (self._low, self._high), (self._start, self._end))


class Linear:
    """An axis from 0 to the first step that a value does not exceed.

    Args:
        highest: The highest value, above 0.
        start: Where 0 stands in the picture.
        end: Where the end stands.

    Attributes:
        highest: What stands at the end.
    """

    def __init__(self, highest: float, start: float, end: float) -> None:
        step = next(step for step in _steps(highest / _FEW / 10, highest) if step * _FEW * _SLACK >= highest)
        count = math.ceil(highest / step / _SLACK)
        self.highest = count * step
        self._start, self._end = start, end
        self.ticks = [step * index for index in range(count + 1)]

    def at(self, value: float) -> float:
        """Say where a value stands."""
        return self._start + (self._end - self._start) * value / self.highest


def between(value: float, values: tuple[float, float], places: tuple[float, float]) -> float:
    """Say where a value stands between two others, by its logarithm; in the middle where those two are the same."""
    low, high = values
    share = math.log(value / low) / math.log(high / low) if high > low else 0.5
    return places[0] + (places[1] - places[0]) * share


def _steps(low: float, high: float) -> list[float]:
    """Return the steps from the last one below the lowest value to the first one above the highest: two at least."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [step * 10.0**decade for decade in decades for step in _STEPS]
    first = max(at for at, step in enumerate(steps) if step <= low * _SLACK)
    last = min(at for at, step in enumerate(steps) if step * _SLACK >= high)
    return steps[first : max(last, first + 1) + 1]


def _thinned(steps: Sequence[float]) -> list[float]:
    """Leave out steps until what is left can be read: 2 and 5 first, then powers of ten."""
    if len(steps) <= _MOST:
        return list(steps)
    tens = [step for step in steps if math.isclose(round(math.log10(step)), math.log10(step), abs_tol=1e-6)]
    return tens[:: -(-len(tens) // _MOST)]


def apart(places: Sequence[float], least: float) -> list[int]:
    """Choose which of some ascending places are labelled, so that no two labels are nearer than this."""
    chosen: list[int] = []
    for index, place in enumerate(places):
        if not chosen or place - places[chosen[-1]] >= least:
            chosen.append(index)
    return chosen
