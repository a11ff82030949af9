"""Ten thousand transfers, hundreds of reconnects, and hours of nothing: what a pair uses stays where it was."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.abc import Key
from kvbridge.conformance.checks import eventually
from kvbridge.conformance.values import Geometry, PagesValue, TensorValue
from tests.nixl.load import scaled
from tests.nixl.zygote import VALID

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nixl.load import Used
    from tests.nixl.zygote import Early

TCP: dict[str, Any] = {"transports": "tcp"}
READ: dict[str, Any] = {"direction": "read"}

CACHE = Geometry(page_bytes=(16 << 10,) * 2, num_blocks=64)
PAGES = PagesValue(seed=1, ids=(9, 3, 4, 60), geometry=CACHE)
TENSOR = TensorValue(seed=2, shape=(30_000,))

PARTS = 4
"""Times that a heap has to grow before that is a leak: now and then it grows anyway, most on a busy machine."""

NOISE = 32 << 10
PER_TRANSFER = 200
"""Bytes by which a heap may grow."""

BATCH = 250
SOON: dict[str, Any] = {"lease": 4.0, "timeout": 4.0}
"""Settings of a node. What its control plane keeps of a transfer, it keeps for so long."""

LONG = 120.0
RECONNECTS = scaled(200)
"""Seconds that a batch may take on a machine that has other things to do."""

LOST = 8

IDLE = 0.05
"""Share of a core that a peer may use that has nothing to do."""


def _hand_over(producer: Early, consumer: Early, what: str, value: Any, count: int) -> None:
    for first in range(0, count, BATCH):
        prefix, batch = f"{what}{first}.", min(BATCH, count - first)
        producer.insert_all(prefix, batch, value, answer_in=LONG)
        consumer.take_all(producer.where(), prefix, batch, value, answer_in=LONG)


@pytest.mark.parametrize(
    ("options", "pages", "tensors"),
    [({}, scaled(10_000), scaled(3000)), (TCP, scaled(5000), scaled(2500))],
    ids=["cma", "tcp"],
)
def test_ten_thousand_transfers_leave_nothing(
    peer: Callable[..., Early], options: dict[str, Any], pages: int, tensors: int
) -> None:
    producer, consumer = peer(options, name="producer", **SOON), peer(options, name="consumer", **SOON)
    producer.ready(), consumer.ready()
    _hand_over(producer, consumer, "warm.page", PAGES, 2 * BATCH)
    _hand_over(producer, consumer, "warm.tensor", TENSOR, BATCH)
    looks = [_at_rest(producer, consumer)]
    for part in range(PARTS):
        _hand_over(producer, consumer, f"page{part}.", PAGES, pages // PARTS)
        _hand_over(producer, consumer, f"tensor{part}.", TENSOR, tensors // PARTS)
        producer.await_stats(entries=0, bytes=0)
        looks.append(_at_rest(producer, consumer))
    assert len(producer.agents()) == 1
    for who, seen in zip(("producer", "consumer"), zip(*looks, strict=True), strict=True):
        more = seen[-1].more_than(seen[0])
        heaps = [after.heap - was.heap for was, after in itertools.pairwise(seen)]
        print(f"{pages} + {tensors} transfers: more at the {who}: {more}, heap by parts {heaps}")
        assert (more.descriptors, more.tasks) == (0, 0)
        assert min(heaps) < NOISE + PER_TRANSFER * (pages + tensors) // PARTS
        # a producer remembers for a while which keys were taken
        assert more.blocks < (12 * (pages + tensors) if who == "producer" else 2000)


def _at_rest(*nodes: Early) -> list[Used]:
    time.sleep(max(VALID, SOON["timeout"]) + 0.5)
    return [node.used() for node in nodes]


def test_two_hundred_reconnects_leave_nothing(peer: Callable[..., Early]) -> None:
    producer, consumers = peer(name="producer"), peer(name="consumers")
    producer.ready(), consumers.ready()
    producer.begin_insert("k", "k", PAGES, lease=600)
    home = producer.where()
    consumers.reconnect(home, "k", 20, PAGES, answer_in=LONG)
    before = producer.used(), consumers.used()
    consumers.reconnect(home, "k", RECONNECTS, PAGES, answer_in=LONG)
    more = [node.used().more_than(was) for node, was in zip((producer, consumers), before, strict=True)]
    print(f"{RECONNECTS} reconnects: more at the producer, at the consumers: {more}")
    for one in more:
        assert one.descriptors <= 2
        assert one.tasks == 0
        assert one.heap < 3 << 20


def test_a_living_peer_that_is_forgotten_costs_one_connection(peer: Callable[..., Early]) -> None:
    producer, consumer = peer(name="producer"), peer(name="consumer")
    producer.ready(), consumer.ready()
    producer.begin_insert("k", "k", PAGES, lease=600)
    before = None
    for turn in range(2 + LOST):
        before = (producer.used(), consumer.used()) if turn == 2 else before
        consumer.take(Key("k", *producer.where()), PAGES, verb="select")
        assert producer.met() == 1
        consumer.lose_links()
        eventually(lambda: producer.met() == 0, SOON["timeout"], lambda: "the peer was not forgotten")
    assert before is not None
    more = [node.used().more_than(was) for node, was in zip((producer, consumer), before, strict=True)]
    print(f"{LOST} links lost: more at the producer, at the consumer: {more}")
    for one in more:
        assert one.descriptors <= LOST + 1  # the library's own doing: it keeps the connection to a peer that lives
        assert one.tasks == 0


def test_an_idle_pair_uses_next_to_nothing(peer: Callable[..., Early]) -> None:
    for options in ({}, TCP, READ):
        pair = peer(options, name="producer"), peer(options, name="consumer")
        producer, consumer = pair[0].ready(), pair[1].ready()
        producer.begin_insert("k", "k", PAGES, lease=600)
        consumer.take(Key("k", *producer.where()), PAGES, verb="select")
        with ThreadPoolExecutor(2) as pool:
            shares = list(pool.map(lambda node: node.cpu(2.0), (producer, consumer)))
        print(f"{options or 'default'}: idle shares of a core: {shares[0]:.2%}, {shares[1]:.2%}")
        assert max(shares) < IDLE
