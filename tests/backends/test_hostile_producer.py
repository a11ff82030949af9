"""A producer that answers wrongly: whoever asked gets an error, in time, and nobody else notices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.control.messages import Answer, Ask, End, Miss, Offer, Renew, Select, Withdrawn
from kvbridge.errors import KVBridgeError, ProtocolError, TransferTimeoutError
from kvbridge.memory import Pages, PagesSpec, Region, TensorSpec
from kvbridge_cpu.moves import Place
from tests.fake_peer import SPEC, FakePeer
from tests.nodes import MIB, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge.abc import Claim
    from kvbridge.memory import Spec
    from kvbridge.transfer import Transfer

PLACE = msgspec.msgpack.encode(Place(0, 1000, 1))


@pytest.fixture
def fake(pair: tuple[Node, Node]) -> Iterator[FakePeer]:
    """A fake producer that claims to own the memory of the real one."""
    with FakePeer(pair[0]) as fake:
        yield fake


def asked(fake: FakePeer, consumer: Node, **options: float) -> tuple[Transfer[Claim], Select]:
    claim = consumer.buffer.claim(Key("k", fake.address), **options)
    return claim, fake.await_message(Select)


def offer(tag: int, *, spec: Spec = SPEC, descriptor: bytes = PLACE, valid: float = 10.0, seq: int = 0) -> Offer:
    return Offer("buffer", seq, tag, spec, descriptor, valid)


def serves(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.insert("real", 1, MIB)
    consumer.take(Key("real", *producer.where()), 1, MIB)
    assert consumer.counters().get("internal_errors", 0) == 0


@pytest.mark.parametrize("valid", [0.0, 1e-3])
def test_a_promise_of_no_time_does_not_make_its_receiver_shout(
    pair: tuple[Node, Node], fake: FakePeer, valid: float
) -> None:
    claim, select = asked(fake, pair[1])
    fake.say(offer(select.xid, valid=valid))
    fake.read(0.3)
    assert sum(isinstance(message, Renew) for message in fake.heard) < 100
    assert claim.poll()
    serves(pair)


def test_nobody_answers_for_another(pair: tuple[Node, Node], fake: FakePeer) -> None:
    """Questions are numbered through, so a peer can guess the numbers of questions to others."""
    producer, consumer = pair
    consumer.buffer.contains([Key("k", fake.address)])
    fake.await_message(Ask)
    claim = consumer.buffer.claim(Key("k", producer.endpoint.address))
    consumer.flush()
    for xid in range(20):
        fake.say(offer(xid, seq=xid), Miss("buffer", xid, "consumed", "lies"), Answer("buffer", xid, (True,)))
    fake.read(0.2)
    assert claim.poll() is False
    producer.insert("k", 1, 1000)
    consumer.claims["c"] = claim.wait(5)
    consumer.begin_fill("f", "c", 1, 1000)
    consumer.end("f")
    serves(pair)


@pytest.mark.parametrize("kind", ["answer to a claim", "offer to a question", "too few answers", "too many answers"])
def test_an_answer_of_the_wrong_kind_is_an_error_and_no_hang(
    pair: tuple[Node, Node], fake: FakePeer, kind: str
) -> None:
    _, consumer = pair
    if kind == "answer to a claim":
        transfer, select = asked(fake, consumer, timeout=0.3)
        fake.say(Answer("buffer", select.xid, (True,)))
    else:
        transfer = consumer.buffer.contains([Key("a", fake.address), Key("b", fake.address)], timeout=1.3)
        xid = fake.await_message(Ask).xid
        answers = {"offer to a question": offer(xid), "too few answers": Answer("buffer", xid, (True,))}
        fake.say(answers.get(kind, Answer("buffer", xid, (True,) * 3)))
    fake.read(0.1)
    with pytest.raises(KVBridgeError) as found:
        transfer.wait(4)
    assert "did not finish within 4 s" not in str(found.value)
    serves(pair)


def test_a_miss_of_an_unknown_kind_is_a_protocol_error(pair: tuple[Node, Node], fake: FakePeer) -> None:
    claim, select = asked(fake, pair[1])
    fake.say(Miss("buffer", select.xid, "out-of-cheese", "redo from start"))
    with pytest.raises(ProtocolError, match="out-of-cheese"):
        claim.wait(2)


DESCRIPTORS = [
    b"",
    b"\xff" * 50,
    msgspec.msgpack.encode(Place(0, 999, 1)),
    msgspec.msgpack.encode(Place(-8, 1000, 1)),
    msgspec.msgpack.encode(Place(4, 1000, 1)),
    msgspec.msgpack.encode(Place(1 << 40, 1000, 1)),
    msgspec.msgpack.encode(Place((64 << 20) - 1000, 1000, 1)),
    b"\xc0",
    msgspec.msgpack.encode(Place(0, 1000, 1 << 62)),
]


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=range(len(DESCRIPTORS)))
def test_a_value_that_lies_nowhere_is_refused_before_a_byte_is_read(
    pair: tuple[Node, Node], fake: FakePeer, descriptor: bytes
) -> None:
    claim, select = asked(fake, pair[1])
    fake.say(offer(select.xid, descriptor=descriptor))
    out = np.full(1000, 7, dtype=np.uint8)
    with pytest.raises(KVBridgeError) as found:
        claim.wait(2).fill(out).wait(2)
    assert not isinstance(found.value, TransferTimeoutError)
    assert (out == 7).all()
    serves(pair)


SPECS: list[Spec] = [
    TensorSpec("uint8", (-1,), 1, "numpy"),
    TensorSpec("uint8", (1 << 62, 1 << 62), 1, "numpy"),
    TensorSpec("uint8", (1 << 45,), 1, "numpy"),
    TensorSpec("float32", (10,), 1, "numpy"),
    TensorSpec("object", (10,), 8, "numpy"),
    TensorSpec("nonsense", (10,), 8, "numpy"),
    TensorSpec("O,O", (10,), 8, "numpy"),
    TensorSpec("U9", (10,), 8, "numpy"),
    TensorSpec("uint8", (10,), 1, "jax"),
    PagesSpec((64,), (1, 2)),
    PagesSpec((-64,), (1,)),
    PagesSpec((64,), (-1,)),
]


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_a_receiver_that_allocates_what_was_offered_is_not_led_astray(
    pair: tuple[Node, Node], fake: FakePeer, spec: Spec
) -> None:
    _, consumer = pair
    dialled = consumer.endpoint.dial(fake.address)
    fake.read(0.1)
    link = dialled.wait(5)
    pipe = consumer.backend.open_recv(link, "c")
    fake.say(Offer("pipe:c", 0, 0, spec, PLACE, 10.0))
    with pytest.raises(KVBridgeError):
        pipe.recv_tensor(timeout=0.1)
    pages = Pages.of([Region.over(np.zeros(640, dtype=np.uint8), 64)], [1])
    seen = pipe.peek()
    if seen is not None:
        with pytest.raises(KVBridgeError):
            pipe.accept(seen, pages).wait(1)
    pipe.close()
    serves(pair)


def test_noise_and_messages_for_nobody_do_not_disturb_a_link(pair: tuple[Node, Node], fake: FakePeer) -> None:
    _, consumer = pair
    claim, select = asked(fake, consumer)
    for frame in (b"", b"\xc1", b"\x91" * 5000):
        fake.noise(frame)
    fake.say(End("buffer"), End("nobody"), Withdrawn("buffer", 5, "x", "y"), Withdrawn("nobody", 0, "x", "y"))
    fake.say(Answer("buffer", 999, (True,)), Miss("buffer", 999, "x", "y"), Renew("buffer", 3))
    fake.say(Miss("buffer", select.xid, "consumed", "gone"))
    start = time.monotonic()
    with pytest.raises(KVBridgeError, match="gone"):
        claim.wait(3)
    assert time.monotonic() - start < 2
    assert consumer.counters()["malformed_messages"] == 3
    serves(pair)
