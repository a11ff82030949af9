"""A consumer that says what it should not: it harms itself at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import zmq

from kvbridge.abc import Key
from kvbridge.buffers import producer as producer_module
from kvbridge.buffers import questions as questions_module
from kvbridge.control.messages import (
    PROTOCOL,
    Abort,
    Accept,
    Answer,
    Ask,
    Cancel,
    Done,
    Drop,
    End,
    Hello,
    Identity,
    Landed,
    Message,
    Miss,
    Offer,
    Pong,
    Refused,
    Renew,
    Renewed,
    Routed,
    Select,
    Welcome,
    Withdrawn,
    decode,
    encode,
)
from tests.fake_peer import SPEC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.nodes import Node


class Rogue:
    """A raw socket that made a right handshake with a producer."""

    def __init__(self, producer: Node, consumer: Node) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sock = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.RCVTIMEO, 3000), (zmq.SNDTIMEO, 3000)):
            self._sock.setsockopt(option, value)
        self._sock.connect(producer.endpoint.address)
        there = consumer.endpoint.here
        self.say(Hello(PROTOCOL, Identity("rogue", 9, there.backend, there.fingerprint, there.card)))
        assert isinstance(self.hear(), Welcome)

    def say(self, *messages: Message) -> None:
        for message in messages:
            self._sock.send(encode(message))

    def hear(self) -> Message:
        return decode(self._sock.recv())

    def close(self) -> None:
        self._sock.close()
        self._context.destroy()


@pytest.fixture
def rogue(pair: tuple[Node, Node]) -> Iterator[Rogue]:
    rogue = Rogue(*pair)
    yield rogue
    rogue.close()


def test_no_message_of_any_kind_at_any_time_breaks_a_producer(pair: tuple[Node, Node], rogue: Rogue) -> None:
    producer, consumer = pair
    producer.insert("k", 1, 1000)
    kinds: list[Routed] = [
        Offer("buffer", 0, 0, SPEC, b"", 1.0),
        Accept("buffer", 0, b"\xff"),
        Landed("buffer", 0),
        Landed("buffer", 0, "transport", "x"),
        Withdrawn("buffer", 0, "x", "y"),
        Abort("buffer", 0),
        Renew("buffer", 0),
        Renewed("buffer", 0, 5.0),
        End("buffer"),
        Miss("buffer", 0, "x", "y"),
        Cancel("buffer", 0),
        Answer("buffer", 0, (True,)),
        Drop("buffer", 0, ("unknown",)),
        Done("buffer", 0, taken=False),
        Done("buffer", 0, taken=True),
    ]
    rogue.say(*kinds)
    rogue.say(Select("buffer", 1, "k", b"", False, 1.0))
    assert isinstance(rogue.hear(), Offer)
    rogue.say(*kinds, *kinds)
    rogue.say(Welcome(consumer.endpoint.here), Refused("x", "y"), Pong())
    for channel in ("nobody", "pipe:nobody", ""):
        rogue.say(Renew(channel, 0), End(channel))
    rogue.say(Ask("buffer", 7, ("k",)))
    while not isinstance(heard := rogue.hear(), Answer):
        pass
    assert heard == Answer("buffer", 7, (True,))
    consumer.take(Key("k", *producer.where()), 1, 1000)
    producer.await_used(0)
    assert producer.counters().get("internal_errors", 0) == 0


def test_a_consumer_cannot_end_the_claim_of_another(pair: tuple[Node, Node], rogue: Rogue) -> None:
    producer, consumer = pair
    producer.insert("k", 1, 1000)
    consumer.claim("c", Key("k", *producer.where()))
    for seq in range(5):
        rogue.say(Done("buffer", seq, taken=True), Abort("buffer", seq), Cancel("buffer", seq))
    rogue.say(Ask("buffer", 7, ("k",)))
    assert rogue.hear() == Answer("buffer", 7, (True,))
    consumer.begin_fill("f", "c", 1, 1000)
    consumer.end("f")
    producer.await_stats(taken=1, not_taken=0)


def test_a_flood_of_questions_for_keys_that_never_come_is_bounded(
    pair: tuple[Node, Node], rogue: Rogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = pair
    monkeypatch.setattr(questions_module, "MAX_WAITING", 50)
    for xid in range(60):
        rogue.say(Select("buffer", xid, f"never {xid % 7}", b"", True, 60.0))
    refused = [rogue.hear() for _ in range(10)]
    assert [(miss.xid, miss.code) for miss in refused if isinstance(miss, Miss)] == [
        (xid, "unknown-key") for xid in range(50, 60)
    ]
    producer.insert("k", 1, 1000)
    consumer.take(Key("k", *producer.where()), 1, 1000)
    rogue.say(*(Cancel("buffer", xid) for xid in range(60)), Ask("buffer", 99, ("k",)))
    assert isinstance(rogue.hear(), Answer)
    assert not len(producer.buffer._shelf._questions)


def test_a_question_that_is_put_again_waits_once(pair: tuple[Node, Node], rogue: Rogue) -> None:
    producer, _ = pair
    rogue.say(*(Select("buffer", 5, f"never {index % 3}", b"", True, 60.0) for index in range(100)))
    rogue.say(Ask("buffer", 99, ("k",)))
    assert isinstance(rogue.hear(), Answer)
    assert len(producer.buffer._shelf._questions) == 1


def test_questions_that_are_over_make_room_for_others(
    pair: tuple[Node, Node], rogue: Rogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, _ = pair
    monkeypatch.setattr(questions_module, "MAX_WAITING", 2)
    for xid in range(6):  # in its time, by a cancel, by its value
        key = f"k{xid}"
        rogue.say(Select("buffer", xid, key, b"", False, 0.05 if xid % 3 == 0 else 60.0))
        if xid % 3 == 0:
            assert isinstance(rogue.hear(), Miss)
        elif xid % 3 == 1:
            rogue.say(Cancel("buffer", xid))
        else:
            producer.insert(key, 1, 1000)
            assert isinstance(rogue.hear(), Offer)
    assert not len(producer.buffer._shelf._questions)


def test_a_value_that_a_consumer_says_it_took_twice_is_taken_once(pair: tuple[Node, Node], rogue: Rogue) -> None:
    producer, _ = pair
    producer.insert("k", 1, 1000)
    rogue.say(Select("buffer", 1, "k", b"", True, 1.0))
    offer = rogue.hear()
    assert isinstance(offer, Offer)
    rogue.say(*(Done("buffer", offer.seq, taken=taken) for taken in (True, True, False)))
    producer.await_stats(taken=1, not_taken=0, entries=0)
    producer.await_used(0)


def test_a_consumer_that_takes_and_never_answers_loses_its_claim(
    pair: tuple[Node, Node], rogue: Rogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "VALID", 0.3)
    producer, _ = pair
    producer.insert("k", 1, 1000)
    rogue.say(Select("buffer", 1, "k", b"", True, 1.0))
    assert isinstance(rogue.hear(), Offer)
    producer.await_used(0, 3.0)
    assert isinstance(rogue.hear(), Withdrawn)
    assert producer.stats()["not_taken"] == 1
