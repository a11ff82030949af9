"""Two producers and three consumers, each a process, with random traffic; some are killed and replaced."""

from __future__ import annotations

import itertools
import os
import random
import time
from typing import TYPE_CHECKING, Any

from kvbridge.abc import Key
from kvbridge.conformance.resources import growth
from kvbridge.conformance.values import Geometry, PagesValue
from kvbridge.errors import KVBridgeError
from tests.nccl.values import MIB, SOON

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 120 if os.environ.get("KVBRIDGE_LONG") else 12
AT_ONCE = 4
"""Values that are under way between one producer and one consumer."""


class Traffic:
    """Five nodes, by name. Who is killed is replaced under the same name."""

    def __init__(self, peer: Callable[..., Any]) -> None:
        self._peer = peer
        self._chooser = random.Random(1)
        self._numbers = itertools.count()
        self.nodes = {name: self._start(name) for name in ("p0", "p1", "c0", "c1", "c2")}
        self.right = 0
        self.failed = 0
        self.replaced = 0

    def _start(self, name: str) -> Any:
        return self._peer({"stall_timeout": 3}, name=name, lease=3, timeout=8)

    def round(self) -> None:
        """Hand some values over between two nodes, all at one time."""
        producer, consumer = (self.nodes[self._chooser.choice(names)] for names in (("p0", "p1"), ("c0", "c1", "c2")))
        values = {f"k{next(self._numbers)}": self._value(slot) for slot in range(AT_ONCE)}
        home = producer.where()
        for key, value in values.items():
            producer.begin_insert(key, key, value)
            consumer.begin(key, "drop_select", Key(key, *home), value)
        for key in values:
            consumer.end(key, SOON)  # checks every byte
            self.right += 1

    def _value(self, slot: int) -> PagesValue:
        cache = Geometry(page_bytes=(16 << 10,), num_blocks=64 + slot)  # one for each: they are looked at as a whole
        ids = tuple(self._chooser.sample(range(64), self._chooser.choice((1, 4, 60))))
        return PagesValue(seed=next(self._numbers), ids=ids, geometry=cache)

    def strike(self) -> None:
        """Kill a node while values are under way, and put another one in its place."""
        victim = self._chooser.choice(list(self.nodes))
        other = self._chooser.choice([name for name in self.nodes if name[0] != victim[0]])
        producer, consumer = sorted((victim, other), key=lambda name: name[0] != "p")
        values = {f"k{next(self._numbers)}": self._value(slot) for slot in range(AT_ONCE)}
        home = self.nodes[producer].where()
        for key, value in values.items():
            self.nodes[producer].begin_insert(key, key, value)
            self.nodes[consumer].begin(key, "drop_select", Key(key, *home), value)
        self.nodes[victim].kill()
        for key in values:
            self._await(self.nodes[other], key)
        self.nodes[victim] = self._start(victim)
        self.replaced += 1

    def _await(self, node: Any, key: str) -> None:
        try:
            node.end(key, SOON)
        except KVBridgeError:
            self.failed += 1  # said, in time, by name


def test_random_traffic_with_deaths_is_right_or_said_to_have_failed(peer: Callable[..., Any]) -> None:
    traffic = Traffic(peer)
    for _ in range(20):
        traffic.round()
    before = {name: node.host.call("resources", (), {}, SOON) for name, node in traffic.nodes.items()}
    started = dict(traffic.nodes)
    end = time.monotonic() + SECONDS
    strikes = 0
    while time.monotonic() < end or strikes < 2:
        for _ in range(15):
            traffic.round()
        traffic.strike()
        strikes += 1
    for name, node in traffic.nodes.items():
        node.await_stats(SOON, entries=0, bytes=0)
        if node is started[name]:
            after = node.host.call("resources", (), {}, SOON)
            slack = {"descriptors": 60, "tasks": 30, "resident": 24 * MIB}  # groups with new peers, until they idle
            found = growth(before[name], after, slack=slack)
            found.pop("threads", None)
            assert not found, name
    assert traffic.right > 100
    print(f"{traffic.right} right, {traffic.failed} failed with a reason, {traffic.replaced} killed")
