"""A reader that stalls until its lease is over gets an error, never a mix of two values."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.buffers import producer as producer_module
from kvbridge.errors import LeaseExpiredError, TransferTimeoutError
from kvbridge_cpu import moves
from tests.nodes import MIB, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import Peer

VALID = 0.5
"""Seconds of a promise, shortened from 10."""

NBYTES = 8 * MIB


@pytest.fixture
def producer(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> Node:
    """A producer of short promises with room for one value and a bit."""
    monkeypatch.setattr(producer_module, "VALID", VALID)
    monkeypatch.setattr(moves, "SLICE_BYTES", MIB)
    return node(capacity=NBYTES + MIB, name="producer")


def fill_with(producer: Node, key: str, value: float) -> None:
    producer.buffer.insert(Key(key), np.full(NBYTES // 8, value)).wait(5)


@pytest.mark.parametrize("slices", [7])
def test_a_reader_whose_thread_stalls_beyond_the_lease_never_gets_a_mix(
    producer: Node, node: Callable[..., Node], slices: int
) -> None:
    consumer = node(name="consumer")
    fill_with(producer, "one", 1.0)
    out = np.zeros(NBYTES // 8)
    consumer.gate("scatter", slices)
    transfer = consumer.buffer.drop_select(Key("one", producer.endpoint.address), out)
    consumer.await_gate("scatter")
    # The thread is stuck from here on: it reads nothing and renews nothing, until the producer gave the room to
    # another value.
    consumer.endpoint.call_soon(lambda: time.sleep(3 * VALID))
    consumer.gate("scatter", None)
    producer.await_used(0, timeout=10 * VALID)
    fill_with(producer, "two", 2.0)
    with pytest.raises(LeaseExpiredError):
        transfer.wait(5)
    assert not (out == 2.0).any()


def test_a_reader_that_is_slow_but_alive_gets_its_value(producer: Node, node: Callable[..., Node]) -> None:
    consumer = node(name="consumer")
    fill_with(producer, "one", 1.0)
    out = np.zeros(NBYTES // 8)
    consumer.gate("scatter", 3)
    transfer = consumer.buffer.drop_select(Key("one", producer.endpoint.address), out)
    consumer.await_gate("scatter")
    with pytest.raises(TransferTimeoutError):
        transfer.wait(4 * VALID)
    consumer.gate("scatter", None)
    transfer.wait(5)
    assert (out == 1.0).all()


def test_a_process_that_is_stopped_in_mid_transfer_beyond_its_lease_gets_an_error(
    producer: Node, peer: Callable[..., Peer], node: Callable[..., Node]
) -> None:
    consumer = peer({"kvbridge_cpu.moves:SLICE_BYTES": MIB})
    producer.insert("one", 1, NBYTES)
    consumer.do("gate", "scatter", 2)
    consumer.do("begin", "t", "drop_select", Key("one", producer.endpoint.address), 1, NBYTES)
    consumer.do("await_gate", "scatter")
    consumer.stop()
    producer.await_used(0, timeout=10 * VALID)
    producer.insert("two", 2, NBYTES)
    consumer.signal(signal.SIGCONT)
    consumer.do("gate", "scatter", None)
    with pytest.raises(LeaseExpiredError):
        consumer.do("end", "t")
    consumer.do("take", Key("two", producer.endpoint.address), 2, NBYTES)


def test_a_value_whose_bytes_look_like_a_header_does_not_pass_for_another(
    producer: Node, node: Callable[..., Node]
) -> None:
    """The memory of a header becomes data of another value: the reader's own mark, and complete progress.

    The last slice is read before the news of the expiry is: only the clock can tell that it does not count.
    """
    consumer = node(name="consumer")
    producer.insert("pad", 0, 10)
    fill_with(producer, "one", 1.0)
    out = np.zeros(NBYTES // 8)
    consumer.gate("scatter", 7)
    transfer = consumer.buffer.drop_select(Key("one", producer.endpoint.address), out)
    consumer.await_gate("scatter")
    consumer.endpoint.call_soon(lambda: time.sleep(3 * VALID))
    consumer.gate("scatter", None)
    producer.buffer.drop([Key("pad")])
    producer.await_used(0, timeout=10 * VALID)
    mark_of_one = 2
    forged = np.tile(np.array([mark_of_one, NBYTES], dtype=np.uint64), NBYTES // 16)
    producer.buffer.insert(Key("two"), forged).wait(5)
    with pytest.raises(LeaseExpiredError):
        transfer.wait(5)
