"""`kill -9` of either side in the middle of a transfer, again and again: the other side lives and goes on.

The survivor is one process throughout. Its peers are made while others die, and are killed at another place each time:
before a certain chunk, or at a moment that a seed chooses, which may be inside of the library.
"""

from __future__ import annotations

import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kvbridge.abc import Key
from kvbridge.conformance.checks import RequirementError
from kvbridge.conformance.values import Geometry, PagesValue
from tests.nixl.load import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nixl.load import Used
    from tests.nixl.zygote import Early

CACHE = Geometry(page_bytes=(16 << 10,), num_blocks=600)
BLOCKS = random.Random(1).sample(range(600), 512)
LARGE = PagesValue(seed=1, ids=tuple(BLOCKS), geometry=CACHE)
"""8 MiB: eight chunks."""

SMALL = PagesValue(seed=2, ids=tuple(sorted(set(range(600)) - set(BLOCKS))[:4]), geometry=CACHE)

SLICES = 9
"""Slices of a transfer of the large value that do something."""

SLOW, QUICK = 0.06, 0.005
"""Seconds over which moments to die are spread: about what a transfer takes with delays, and without."""

NOTICED = 10.0
WARM = 5
"""Turns after which memory has the size that it keeps."""

AHEAD = 3
"""Peers that are being made while another one is at work."""

CASES: list[tuple[dict[str, Any], int]] = [
    ({}, scaled(50)),
    ({"transports": "tcp"}, scaled(50)),
    ({"direction": "read"}, scaled(30)),
]
"""Options, and how many are killed. All at a time, each with a survivor of its own: they wait most of the time."""


class Victims:
    """Peers that will be killed: by themselves before a slice, or at a moment by us."""

    def __init__(self, peer: Callable[..., Early], options: dict[str, Any], where: str, count: int) -> None:
        self._make = lambda turn: peer(options, name=f"victim {turn}", faults=_faults(where, turn))
        self._count = count
        self._coming = [self._make(turn) for turn in range(AHEAD)]

    def __iter__(self) -> Any:
        for turn in range(self._count):
            victim = self._coming.pop(0).ready()
            if turn + AHEAD < self._count:
                self._coming.append(self._make(turn + AHEAD))
            yield turn, victim


def _faults(where: str, turn: int) -> dict[str, Any]:
    """What befalls one that moves bytes: death before a slice, delays, or nothing."""
    if not where or turn % 3 == 2:
        return {}
    if turn % 3 == 1:  # the small value has two slices
        return {where: [("kill", 2 + turn // 3 % SLICES)]}
    return {where: {"seed": turn, "rates": {"delay": 0.5}}}


def _die(victim: Early, turn: int, *, moves: bool) -> None:
    if moves and turn % 3 == 1:
        victim.host.await_death()
    else:
        time.sleep(random.Random(turn).random() * (QUICK if moves and turn % 3 == 2 else SLOW))
        victim.kill()


def _in_all_cases(kill: Callable[[Callable[..., Early], dict[str, Any], int], str], peer: Callable[..., Early]) -> None:
    with ThreadPoolExecutor(len(CASES)) as pool:
        running = [pool.submit(kill, peer, options, count) for options, count in CASES]
        for (options, count), one in zip(CASES, running, strict=True):
            print(f"{options or 'default'}: {count} killed, {one.result()}")


def test_a_producer_survives_the_death_of_its_consumers(peer: Callable[..., Early]) -> None:
    _in_all_cases(_kill_consumers, peer)


def test_a_consumer_survives_the_death_of_its_producers(peer: Callable[..., Early]) -> None:
    _in_all_cases(_kill_producers, peer)


def _kill_consumers(peer: Callable[..., Early], options: dict[str, Any], count: int) -> str:
    reads = "direction" in options
    slow = {} if reads else {"write": {"seed": 1, "rates": {"delay": 0.5}}}
    producer = peer(options, name="producer", faults=slow).ready()
    home = producer.where()
    before = producer.used()
    for turn, consumer in Victims(peer, options, "land" if reads else "", count):
        producer.begin_insert(f"small{turn}", f"small{turn}", SMALL)
        consumer.take(Key(f"small{turn}", *home), SMALL)
        producer.begin_insert(f"large{turn}", f"large{turn}", LARGE, lease=0.5)
        with contextlib.suppress(RequirementError):  # it may be dead before it answers
            consumer.begin("large", "drop_select", Key(f"large{turn}", *home), LARGE)
        _die(consumer, turn, moves=reads)
        before = producer.used() if turn == WARM else before
    for turn in range(count):
        producer.await_over(f"small{turn}", NOTICED)
        producer.await_over(f"large{turn}", NOTICED)
    producer.await_stats(NOTICED, entries=0, bytes=0)
    died_early = 2 * count - int(producer.stats()["taken"])
    assert died_early > count / 3, f"{died_early} of {count} died before they had everything"
    _works(producer, peer(options, name="after").ready(), "after")
    return _not_more(died_early, before, producer.used())


def _kill_producers(peer: Callable[..., Early], options: dict[str, Any], count: int) -> str:
    reads = "direction" in options
    slow = {"land": {"seed": 1, "rates": {"delay": 0.5}}} if reads else {}
    consumer = peer(options, name="consumer", faults=slow).ready()
    died_early = 0
    before = consumer.used()
    for turn, producer in Victims(peer, options, "" if reads else "write", count):
        _works(producer, consumer, f"small{turn}")
        if turn:
            consumer.require_marked("large")
        producer.begin_insert("large", "large", LARGE)
        consumer.begin("large", "select", Key("large", *producer.where()), LARGE)
        _die(producer, turn, moves=not reads)
        if consumer.await_over("large", NOTICED):
            died_early += 1
        else:
            consumer.end("large")
        consumer.mark("large")
        assert consumer.counters().get("quarantined", 0) == 0
        before = consumer.used() if turn == WARM else before
    assert died_early > count / 3, f"{died_early} of {count} died before everything was there"
    _works(peer(options, name="after").ready(), consumer, "after")
    consumer.require_marked("large")
    return _not_more(died_early, before, consumer.used())


def _not_more(died_early: int, before: Used, after: Used) -> str:
    more = after.more_than(before)
    found = f"{died_early} of them in mid-transfer; more: {more}"
    assert more.descriptors <= 4, found
    assert more.tasks == 0, found
    assert more.heap < 6 << 20, found
    return found


def _works(producer: Early, consumer: Early, name: str) -> None:
    producer.begin_insert(name, name, SMALL)
    consumer.take(Key(name, *producer.where()), SMALL)
