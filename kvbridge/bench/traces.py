"""Request traces made up from a seed, in the style of public ones, for comparing eviction policies.

A trace is a list of requests in order of time. A request is the list of its prompt's block keys, first block first. A
key stands for a block and for all before it, as the hashes in the traces of Mooncake do (Qin et al., "Mooncake: trading
more storage for less computation", FAST 2025), so two prompts share keys exactly as far as they begin alike.

The shapes are ours: they follow what such traces are known for, and no distribution was fitted to one.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.random import Generator

Request = list[bytes]
Trace = list[Request]

BLOCKS = 120_000
"""Blocks that a trace asks for, about: four traces, four capacities and four policies in half a minute."""


class Source:
    """What all kinds of trace draw from: random numbers of a seed, and keys that nobody has had before.

    Args:
        seed: Equal seeds give equal traces.
        space: First byte of all keys, so that traces can be mixed.
    """

    def __init__(self, seed: int, space: int = 0) -> None:
        self.random: Generator = np.random.default_rng([seed, space])
        self._next = space << 56

    def blocks(self, count: int) -> Request:
        """Make keys for blocks that nobody has asked for."""
        first, self._next = self._next, self._next + count
        return [number.to_bytes(8, "big") for number in range(first, self._next)]

    def around(self, mean: float) -> int:
        """Draw a number of blocks, at least 1, with a long tail (geometric)."""
        return int(self.random.geometric(1 / mean))

    def ranks(self, size: int, exponent: float) -> Iterator[int]:
        """Draw ranks from 0 to below `size` without end, rank `r` with a weight of `1 / (r + 1) ** exponent` (Zipf)."""
        weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
        while True:
            yield from self.random.choice(size, 4096, p=weights / weights.sum()).tolist()


def make_chat(seed: int, blocks: int = BLOCKS) -> Trace:
    """Make conversations whose prompts grow turn by turn.

    Users are Zipf-popular. All conversations of a user begin with the same few blocks; a turn's prompt is the prompt
    before it with the answer and the new question behind it. Between turns the user thinks: mostly for a little while,
    sometimes for very long (log-normal), and meanwhile others talk.
    """
    source, users = Source(seed, 1), 400
    profiles = [source.blocks(source.around(4)) for _ in range(users)]
    popular = source.ranks(users, 0.9)
    trace: Trace = []
    asked, clock = 0, 0.0
    waiting: list[tuple[float, Request, int]] = []  # when the next turn comes, what was said before it, turns left
    while asked < blocks:
        clock += source.random.exponential(1.0)
        heapq.heappush(waiting, (clock, profiles[next(popular)], source.around(5)))
        while waiting and waiting[0][0] <= clock:
            when, said, turns = heapq.heappop(waiting)
            prompt = said + source.blocks(source.around(4))
            trace.append(prompt)
            asked += len(prompt)
            if turns > 1:
                heapq.heappush(waiting, (when + source.random.lognormal(3.0, 1.5), prompt, turns - 1))
    return trace


def make_shared(seed: int, blocks: int = BLOCKS) -> Trace:
    """Make many short questions behind a few long system prompts, which are Zipf-popular; no question comes twice."""
    source, prompts = Source(seed, 2), 120
    prefixes = [source.blocks(20 + source.around(40)) for _ in range(prompts)]
    popular = source.ranks(prompts, 1.0)
    trace: Trace = []
    asked = 0
    while asked < blocks:
        trace.append(prefixes[next(popular)] + source.blocks(source.around(8)))
        asked += len(trace[-1])
    return trace


def make_scans(seed: int, blocks: int = BLOCKS) -> Trace:
    """Make a hot set of prompts that are asked again and again, and long documents between them that are read once."""
    source, hot = Source(seed, 3), 150
    prompts = [source.blocks(source.around(20)) for _ in range(hot)]
    popular = source.ranks(hot, 0.6)
    trace: Trace = []
    asked = 0
    while asked < blocks:
        reads = source.random.random() < 0.05  # noqa: PLR2004 - at that, two blocks of three are a document's
        trace.append(source.blocks(200 + source.around(600)) if reads else prompts[next(popular)])
        asked += len(trace[-1])
    return trace


def make_mix(seed: int, blocks: int = BLOCKS) -> Trace:
    """Mix the other three, each in its own order, a third of the blocks each."""
    source = Source(seed, 4)
    parts = [make(seed, blocks // 3) for make in (make_chat, make_shared, make_scans)]
    places = np.concatenate([source.random.permutation(np.linspace(0, 1, len(part))) for part in parts])
    turns = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[np.argsort(places)]
    rest = [iter(part) for part in parts]
    return [next(rest[turn]) for turn in turns.tolist()]


TRACES: dict[str, Callable[[int], Trace]] = {
    "chat": make_chat,
    "shared prompt": make_shared,
    "scans": make_scans,
    "mix": make_mix,
}
