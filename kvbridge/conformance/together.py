"""Run calls at the same time, each on a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.conformance.checks import RequirementError
from kvbridge.threads import call_all_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def together(calls: Sequence[Callable[[], None]], seconds: float) -> None:
    """Run calls at the same time and wait for all.

    Raises:
        RequirementError: Some have not returned after `seconds`.
        BaseException: What the first of them raised.
    """
    late = call_all_within("conformance-user", calls, seconds)
    if late:
        raise RequirementError(f"{late} of {len(calls)} users at the same time had not ended after {seconds:g} s")
