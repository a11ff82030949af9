"""A peer that is stopped in the middle of a transfer over TCP: the library would wait for it for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.abc import Key
from kvbridge.conformance.values import Geometry, PagesValue, TensorValue
from kvbridge_nixl.agent import STUCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nixl.zygote import Early

TCP: dict[str, Any] = {"transports": "tcp"}

CACHE = Geometry(page_bytes=(64 << 10,), num_blocks=600)
LARGE = PagesValue(seed=1, ids=tuple(range(512)), geometry=CACHE)
"""32 MiB: more than the buffers of a connection take."""

SMALL = PagesValue(seed=2, ids=(520, 530, 522), geometry=CACHE)

LEASE = 1.0
PATIENCE = {"peer_timeout": 1.5}
SOON = 15.0


def _works(producer: Early, consumer: Early, name: str) -> None:
    producer.begin_insert(name, name, SMALL)
    consumer.take(Key(name, *producer.where()), SMALL)
    tensor = TensorValue(seed=3, shape=(9_000_000,))
    producer.begin_insert(f"{name}.t", f"{name}.t", tensor)
    consumer.take(Key(f"{name}.t", *producer.where()), tensor)


@pytest.mark.parametrize("kind", ["pages", "tensor"])
def test_memory_comes_back_by_force_from_a_consumer_that_hangs(peer: Callable[..., Early], kind: str) -> None:
    value = LARGE if kind == "pages" else TensorValue(seed=1, shape=(32 << 20,))
    after_some = {"write": [("pause", 5)]}
    producer = peer(TCP, name="producer", faults=after_some, **PATIENCE)
    hung, other = peer(TCP, name="hung", **PATIENCE), peer(TCP, name="other", **PATIENCE)
    for one in (producer, hung, other):
        one.ready()
    home = producer.where()
    producer.begin_insert("warm", "warm", SMALL)
    hung.take(Key("warm", *home), SMALL)
    before = producer.agents()
    producer.begin_insert("k", "k", value, lease=LEASE)
    hung.begin("k", "drop_select", Key("k", *home), value)
    producer.await_paused("write")
    hung.host.stop()
    producer.resume("write")
    _works(producer, other, "meanwhile")
    start = time.monotonic()
    producer.await_over("k", LEASE + PATIENCE["peer_timeout"] + STUCK + SOON)
    took = time.monotonic() - start
    producer.await_stats(entries=0, bytes=0, timeout=SOON)
    producer.overwrite("k")
    _works(producer, other, "afterwards")
    after = producer.agents()
    assert len(after) == 1
    assert after != before
    hung.host.go_on()
    assert hung.await_over("k", SOON)
    hung.mark("k")
    _works(producer, hung, "again")
    time.sleep(0.5)
    assert hung.whole("k")
    assert hung.counters().get("quarantined", 0) == 0
    _works(producer, other, "both")
    assert producer.agents() == after
    print(f"{kind}: the source was free {took:.1f} s after its consumer had stopped")


def test_closing_does_not_wait_for_a_consumer_that_hangs(peer: Callable[..., Early]) -> None:
    producer = peer(TCP, name="producer", faults={"write": [("pause", 1)]})
    hung = peer(TCP, name="hung").ready()
    producer.ready()
    home = producer.where()
    producer.begin_insert("k", "k", LARGE)
    hung.begin("k", "drop_select", Key("k", *home), LARGE)
    producer.await_paused("write")
    hung.host.stop()
    producer.resume("write")
    time.sleep(0.3)
    assert producer.close() < SOON
    assert producer.still()
    producer.host.end()
    hung.host.go_on()
    assert hung.await_over("k", SOON)
    hung.mark("k")
    _works(peer(TCP, name="after").ready(), hung, "after")
    assert hung.whole("k")
