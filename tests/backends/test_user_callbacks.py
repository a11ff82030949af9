"""A callback of a user that raises is his own affair: no other transfer, peer or heartbeat notices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.abc import Key
from kvbridge.control import endpoint as endpoint_module
from kvbridge.control import inbound
from kvbridge.control.messages import Ask
from kvbridge.errors import KeyDroppedError, PeerLostError
from tests.fake_peer import FakePeer
from tests.nodes import Node, eventually

if TYPE_CHECKING:
    from kvbridge.transfer import Transfer


class UserError(Exception):
    """What a user's code raises."""


def raising(_: Transfer[Any]) -> None:
    raise UserError


@pytest.fixture
def fast(pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast heartbeats, and little patience with who does not answer them."""
    for module in (endpoint_module, inbound):
        monkeypatch.setattr(module, "PING_INTERVAL", 0.2)
    for one in pair:
        one.endpoint.hung_after = 0.7


@pytest.mark.usefixtures("fast")
def test_heartbeats_go_on_after_a_callback_raised_while_a_silent_peer_was_buried(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    link = consumer.dial(producer.endpoint.address)
    with FakePeer(producer) as fake:
        question = consumer.buffer.contains([Key("k", fake.address)], timeout=20)
        question.on_done(raising)
        fake.await_message(Ask)
        with pytest.raises(PeerLostError):
            question.wait(4)  # nobody answers heartbeats any more
    time.sleep(1.5)
    assert link.up
    assert producer.link().up
    producer.insert("k", 1, 1000)
    consumer.take(Key("k", producer.endpoint.address), 1, 1000)


def test_all_questions_to_a_lost_peer_end_although_the_callback_of_the_first_raises(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    consumer.dial(producer.endpoint.address)
    questions = [consumer.buffer.claim(Key(f"{n}", producer.endpoint.address)) for n in range(5)]
    for question in questions:
        question.on_done(raising)
    consumer.flush()
    producer.endpoint.close()
    for question in questions:
        with pytest.raises((PeerLostError, KeyDroppedError)):
            question.wait(3)


def test_a_value_goes_to_all_who_wait_although_the_callback_of_the_first_raises(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    for number in range(3):
        consumer.begin(f"{number}", "select", Key("k", producer.endpoint.address), 1, 1000)
        consumer.transfers[f"{number}"][0].on_done(raising)
    consumer.flush()
    inserted = producer.buffer.insert(Key("other"), b"")
    inserted.on_done(raising)
    producer.insert("k", 1, 1000)
    for number in range(3):
        consumer.end(f"{number}")
    eventually(lambda: not producer.buffer._shelf._entries["k"].offers, 3.0, lambda: "an offer did not end")


def test_a_question_that_cannot_be_sent_does_not_keep_others_from_the_same_peer(pair: tuple[Node, Node]) -> None:
    """All of them wait for one handshake, and are told one after the other that it is done."""
    producer, consumer = pair
    producer.insert("k", 1, 1000)
    consumer.endpoint.call_soon(lambda: time.sleep(0.1))
    for number in range(3):
        dialled = consumer.endpoint.dial(producer.endpoint.address)
        dialled.on_done(raising)
        consumer.begin(f"{number}", "select", Key("k", producer.endpoint.address), 1, 1000, timeout=2)
    for number in range(3):
        consumer.end(f"{number}")


def test_an_on_link_callback_that_raises_does_not_spoil_the_link(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair

    def refuse(_: object) -> None:
        raise UserError

    for one in pair:
        one.endpoint._on_link.insert(0, refuse)
    producer.insert("k", 1, 1000)
    consumer.take(Key("k", producer.endpoint.address), 1, 1000, timeout=3)
    assert producer.link(1.0).up
