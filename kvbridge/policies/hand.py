"""The hand that looks for a victim in keys that stand in line, oldest first, and moves pinned ones on.

A pinned key that the hand meets goes to the young end of its line: it is in use, and the hand does not meet it again
before it has been past all others. One turn over `n` keys, of which `p` are pinned, costs `n` steps and gives `n - p`
victims: `n / (n - p)` steps each, which is two where half of all keys are pinned. Where every key is pinned, the answer
costs a turn or two, seconds with a million keys, and so does the next: do not ask again before one is released.

Lines are `OrderedDict`s: the oldest key of a plain `dict` is found by walking over all that were deleted before it.
Like a `dict`, they are built anew once in about as many insertions as there are keys, and that one call takes 0.1 to
0.4 microseconds for each key: some 10 ms with 50,000 keys, 250 ms with a million.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import OrderedDict

Take = Callable[[Container[bytes], int], "bytes | None"]
"""Takes a victim from one line: given what is pinned, and how many pinned keys in a row it may pass."""

FIRST_LOOK = 8
"""Pinned keys that are passed in the line that should give a victim, before the other line is asked."""
GROWTH = 4
"""By how much that limit grows each time that neither line gave a victim."""


def take_oldest(line: OrderedDict[bytes, Any], pinned: Container[bytes], limit: int) -> bytes | None:
    """Take the oldest key that is not pinned out of a line.

    Args:
        line: The keys, oldest first.
        pinned: Keys that stay.
        limit: Pinned keys that are passed at most.

    Returns:
        The key; None where there was none within the limit.
    """
    for _ in range(min(limit, len(line))):
        key = next(iter(line))
        if key not in pinned:
            del line[key]
            return key
        line.move_to_end(key)
    return None


def take_from_either(first: Take, second: Take, keys: int, pinned: Container[bytes]) -> bytes | None:
    """Take a victim from the first of two lines, or from the second where pinned keys block the first.

    The lines are asked in turns with a limit that grows, so the steps are eight times those of the better line at most,
    or `FIRST_LOOK` more: a line whose keys are all pinned is not walked again for every victim of the other.

    Args:
        first: Takes from the line that should give the victim.
        second: Takes from the other line.
        keys: Keys in both.
        pinned: Keys that stay.

    Returns:
        The key; None where all are pinned.
    """
    limit = FIRST_LOOK
    while True:
        key = first(pinned, limit)
        if key is None:
            key = second(pinned, limit)
        if key is not None or limit >= keys:
            return key
        limit *= GROWTH
