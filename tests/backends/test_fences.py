"""A producer that writes is lost in mid-write: the destination is its owner's when nothing can land there any more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from kvbridge.abc import Key
from kvbridge.control.link import Link, lost
from kvbridge.errors import ClosedError, PeerLostError, TransferTimeoutError
from tests.backends.test_movers import NBYTES, Side, sides, start
from tests.direct import fresh
from tests.nodes import eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["sides"]


def stopped_in_mid_write(pair: tuple[Side, Side], *, stubborn: bool) -> tuple[Any, Any, Any, Link]:
    producer, consumer = pair
    producer.backend.stubborn = stubborn
    producer.backend.gate.shut_after(3)
    out = fresh(NBYTES)
    inserted, taken = start(producer, consumer, pattern(1, NBYTES), out)
    assert producer.backend.gate.reached.wait(5)
    link = consumer.endpoint.dial(producer.endpoint.address).wait(5)
    return inserted, taken, out, link


def cut(consumer: Side, link: Link) -> None:
    consumer.endpoint.call_soon(lambda: consumer.endpoint.drop(link, lost("the producer", "the network went away")))


def test_a_transfer_whose_writer_was_lost_ends_when_the_writer_says_that_it_stopped(
    sides: Callable[[str], tuple[Side, Side]],
) -> None:
    producer, consumer = pair = sides("producer")
    inserted, taken, out, link = stopped_in_mid_write(pair, stubborn=True)
    cut(consumer, link)
    with pytest.raises(TransferTimeoutError):
        taken.wait(1.0)
    assert consumer.endpoint.counters["quarantined"] == 1
    assert producer.backend.moves[0].aborted, "the producer was not asked to stop"
    producer.backend.gate.open()
    with pytest.raises(PeerLostError):
        taken.wait(5)
    assert producer.backend.moves[0].over
    assert consumer.endpoint.counters["quarantined"] == 0
    out[:] = 7
    inserted.wait(5)
    time.sleep(0.1)
    assert (out == 7).all()


def test_a_writer_that_can_stop_is_not_waited_for_long(sides: Callable[[str], tuple[Side, Side]]) -> None:
    producer, consumer = pair = sides("producer")
    inserted, taken, _, link = stopped_in_mid_write(pair, stubborn=False)
    cut(consumer, link)
    with pytest.raises(PeerLostError):
        taken.wait(3)
    inserted.wait(5)
    producer.backend.gate.open()
    value, out = pattern(2, NBYTES), fresh(NBYTES)
    producer.buffer.insert(Key("again"), value)
    consumer.buffer.select(Key("again", producer.endpoint.address), out).wait(5)
    assert (out == value).all()


@pytest.mark.parametrize("now", ["nobody", "another incarnation"])
def test_a_writer_that_is_dead_is_not_waited_for(sides: Callable[[str], tuple[Side, Side]], now: str) -> None:
    pair = sides("producer")
    _, consumer = pair
    _, taken, _, link = stopped_in_mid_write(pair, stubborn=True)
    other = sides("producer")[0]
    address = other.endpoint.address
    if now == "nobody":
        other.close()
    link.peer = msgspec.structs.replace(link.peer, address=address)
    cut(consumer, link)
    with pytest.raises(PeerLostError):
        taken.wait(4)


def test_closing_does_not_wait_for_a_writer_that_is_silent(sides: Callable[[str], tuple[Side, Side]]) -> None:
    pair = sides("producer")
    _, consumer = pair
    _, taken, _, link = stopped_in_mid_write(pair, stubborn=True)
    cut(consumer, link)
    eventually(lambda: consumer.endpoint.counters["quarantined"] == 1, 5, lambda: "not in quarantine")
    began = time.monotonic()
    consumer.endpoint.close()
    assert time.monotonic() - began < 3
    with pytest.raises((PeerLostError, ClosedError)):
        taken.wait(1)
