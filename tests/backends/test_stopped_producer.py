"""A producer that hangs, or that was restarted: deadlines hold, and what is stale is not taken for new."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from kvbridge.abc import Key
from kvbridge.control import outbound
from kvbridge.errors import KeyUnknownError, KVBridgeError, PeerLostError, StaleGenerationError, TransferTimeoutError
from tests.nodes import MIB, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import Peer

PEER_TIMEOUT = 1.0
"""Seconds without heartbeats after which a peer counts as lost, shortened from 6."""

HEARD_WITHIN = 5.0
"""Seconds: that, the time for a peer that is busy with something else, and some for a busy machine."""


def test_the_deadline_of_a_claim_holds_while_its_producer_is_stopped(
    peer: Callable[..., Peer], node: Callable[..., Node]
) -> None:
    producer, consumer = peer(), node(peer_timeout=PEER_TIMEOUT)
    producer.do("insert", "k", 1, MIB)
    consumer.connect(producer.address)
    producer.stop()
    start = time.monotonic()
    with pytest.raises(TransferTimeoutError):
        consumer.take(Key("k", producer.address), 1, MIB, timeout=0.3)
    assert time.monotonic() - start < 3
    consumer.begin("long", "drop_select", Key("other", producer.address), 1, MIB, timeout=60)
    with pytest.raises(PeerLostError):
        consumer.end("long", 15)
    assert time.monotonic() - start < HEARD_WITHIN
    producer.signal(signal.SIGCONT)
    producer.do("flush")
    # The question that was given up late may have taken it; a new value is served over a new link.
    producer.do("insert", "new", 2, MIB)
    consumer.take(Key("new", producer.address), 2, MIB)


def test_handshake_and_transfer_with_a_stopped_producer_end_by_their_own_deadlines(
    peer: Callable[..., Peer], node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "HANDSHAKE_TIMEOUT", 0.5)
    producer, consumer = peer(), node(timeout=0.5)
    producer.do("gate", "gather", 1)
    producer.do("begin_insert", "i", "k", 1, 8 * MIB)
    consumer.claim("c", Key("k", producer.address))
    producer.do("await_gate", "gather")
    consumer.begin_fill("t", "c", 1, 8 * MIB)
    producer.stop()
    start = time.monotonic()
    with pytest.raises(KVBridgeError, match=r"0\.5 s"):
        consumer.end("t")
    assert time.monotonic() - start < HEARD_WITHIN
    with pytest.raises(PeerLostError, match="nothing answered"):
        node(peer_timeout=0.4).take(Key("k", producer.address), 1, MIB, timeout=60)
    assert time.monotonic() - start < 2 * HEARD_WITHIN


def test_a_key_of_a_producer_that_was_restarted_on_the_same_port_is_stale(
    peer: Callable[..., Peer], node: Callable[..., Node]
) -> None:
    first, consumer = peer(), node()
    first.do("insert", "k", 1, MIB)
    consumer.take(Key("k", first.address, first.generation), 1, MIB, verb="select")
    first.kill()
    second = peer(port=int(first.address.rpartition(":")[2]))
    assert second.address == first.address
    assert second.generation != first.generation
    second.do("insert", "k", 2, MIB)
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(StaleGenerationError, match="restarted"):
            consumer.take(Key("k", first.address, first.generation), 1, MIB)
    assert time.monotonic() - start < HEARD_WITHIN
    consumer.take(Key("k", second.address, second.generation), 2, MIB, verb="select")
    consumer.take(Key("k", second.address), 2, MIB)
    with pytest.raises(KeyUnknownError):
        consumer.take(Key("old", second.address), 1, MIB, timeout=0.1)
