"""How long a requirement may take: less once several have hung, so that a backend that hangs does not take an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.conformance.results import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbridge.conformance.results import Result

HANGS = 3
"""Requirements that have to hang before the others get less time."""

SHORTEST = 15.0
"""Seconds that a requirement gets at least, unless fewer were asked for: some need eleven when all is well."""


def shortened(timeout: float) -> float:
    """Return the seconds for a requirement after some have hung: a quarter."""
    return min(timeout, max(SHORTEST, timeout / 4))


def patience(timeout: float, results: Iterable[Result]) -> float:
    """Return the seconds for the next requirement.

    Args:
        timeout: Seconds for a requirement while all is well.
        results: Those so far. One that failed and took longer than the shorter deadline has hung.
    """
    short, bad = shortened(timeout), (Outcome.FAILED, Outcome.WAIVED)
    hangs = sum(result.outcome in bad and result.seconds >= short for result in results)
    return short if hangs >= HANGS else timeout
