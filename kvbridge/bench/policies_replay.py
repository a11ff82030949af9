"""Replaying a trace against a tier that holds so many blocks: how much of what was asked is found in it."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from kvbridge.errors import BackendConflictError

if TYPE_CHECKING:
    from kvbridge.abc.policy import Policy
    from kvbridge.bench.traces import Trace

NEVER = 1 << 60
"""The next use of a block that is not used again."""


def leading(request: list[bytes], inside: set[bytes] | dict[bytes, int]) -> int:
    """Count the leading blocks of a request that are in the tier: the KV that need not be computed."""
    for count, key in enumerate(request):
        if key not in inside:
            return count
    return len(request)


def replay(trace: Trace, policy: Policy, capacity: int) -> float:
    """Replay a trace with a policy.

    A request's blocks are pinned while it is served. The policy hears of them from the last to the first: the first
    block is used by whoever uses a later one, and has to be given up after it. Of a request that is longer than the
    tier, the first blocks are kept.

    Args:
        trace: The requests.
        policy: A new one.
        capacity: Blocks that the tier holds.

    Returns:
        Leading blocks found, of all that were asked for; 0 to 1.

    Raises:
        BackendConflictError: The policy gave up a block that is pinned or not in the tier, or none where it could.
    """
    inside: set[bytes] = set()
    found = asked = 0
    for request in trace:
        asked += len(request)
        found += leading(request, inside)
        kept = request[:capacity]
        pinned = frozenset(kept)
        for key in reversed(kept):
            if key in inside:
                policy.touch(key)
                continue
            if len(inside) >= capacity:
                victim = policy.evict(pinned)
                if victim is None or victim in pinned or victim not in inside:
                    raise BackendConflictError(f"the policy {policy.name!r} gave up {_fault(victim, pinned)}")
                inside.remove(victim)
            policy.insert(key)
            inside.add(key)
    return found / asked


def _fault(victim: bytes | None, pinned: frozenset[bytes]) -> str:
    if victim is None:
        return "nothing, and not all keys of the tier are pinned"
    return f"{victim!r}, which is {'pinned' if victim in pinned else 'not in the tier'}"


def next_uses(trace: Trace) -> list[list[int]]:
    """For each block of each request, say which request uses it next, by number; `NEVER` where none does."""
    latest: dict[bytes, int] = {}
    found = []
    for number in range(len(trace) - 1, -1, -1):
        request = trace[number]
        found.append([latest.get(key, NEVER) for key in request])
        latest.update(dict.fromkeys(request, number))
    return found[::-1]


def replay_clairvoyant(trace: Trace, uses: list[list[int]], capacity: int) -> float:
    """Replay a trace with knowledge of the future: the most that any policy can find.

    After each request it keeps, of the blocks that were inside and the request's own, those whose next use is soonest
    (Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966); unlike a
    policy, it need not keep a block that comes in. Whoever uses a block uses those before it, so a block's next use is
    never sooner than that of one before it; of equals the later block goes.

    Args:
        trace: The requests.
        uses: Of `next_uses`.
        capacity: Blocks that the tier holds.

    Returns:
        As `replay`.
    """
    inside: dict[bytes, int] = {}  # to the next use
    latest_first: list[tuple[int, int, bytes]] = []
    found = asked = 0
    for request, following in zip(trace, uses, strict=True):
        asked += len(request)
        found += leading(request, inside)
        for depth, (key, use) in enumerate(zip(request, following, strict=True)):
            if use == NEVER:
                inside.pop(key, None)
                continue
            inside[key] = use
            heapq.heappush(latest_first, (-use, -depth, key))
        while len(inside) > capacity:  # entries that are out of date name the past, so they come after all others
            del inside[heapq.heappop(latest_first)[-1]]
    return found / asked
