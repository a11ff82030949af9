"""What arrives at the control port that is no message: dropped, counted, and real peers never notice."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import msgspec
import pytest
import zmq

from kvbridge.abc import Key
from kvbridge.control.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Bye,
    Done,
    Hello,
    Identity,
    Ping,
    Select,
    decode,
    encode,
)
from tests.nodes import MIB, Node, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def dealer(pair: tuple[Node, Node]) -> Iterator[zmq.Socket[bytes]]:
    """A raw socket to the producer's port."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.RCVTIMEO, 3000)
    sock.setsockopt(zmq.SNDTIMEO, 3000)
    sock.connect(pair[0].endpoint.address)
    yield sock
    sock.close()
    context.destroy()


def host_port(node: Node) -> tuple[str, int]:
    host, _, port = node.endpoint.address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def serves(pair: tuple[Node, Node]) -> None:
    """Real peers work, and nothing went wrong inside."""
    producer, consumer = pair
    producer.insert("real", 1, MIB)
    consumer.take(Key("real", *producer.where()), 1, MIB)
    assert producer.counters().get("internal_errors", 0) == 0
    producer.await_used(0)


NOISE = [
    b"",
    b"\0",
    os.urandom(100),
    b"\xc1" * 1000,
    b"\x91" * 100_000,  # nested arrays
    b"\x81\xa4type\xa4Ping" * 3,
    b"\xdf\xff\xff\xff\xff",  # a map that claims four billion entries
    b"\xc6\xff\xff\xff\xff",  # bytes that claim 4 GiB
    msgspec.msgpack.encode({"type": "Select"}),
    msgspec.msgpack.encode({"type": "Unknown"}),
    msgspec.msgpack.encode({"type": "Done", "channel": "buffer", "seq": -1, "taken": True}),
    msgspec.msgpack.encode({"type": "Done", "channel": "x" * 65, "seq": 1, "taken": True}),
    msgspec.msgpack.encode({"type": "Done", "channel": "buffer", "seq": "1", "taken": True}),
    msgspec.msgpack.encode(["Ping"]),
    b"GET / HTTP/1.1\r\n\r\n",
]


def test_frames_that_are_no_messages_are_dropped_and_counted(
    pair: tuple[Node, Node], dealer: zmq.Socket[bytes]
) -> None:
    producer, _ = pair
    for frame in NOISE:
        dealer.send(frame)
    eventually(lambda: producer.counters().get("malformed_messages", 0) == len(NOISE), 3.0, lambda: str(NOISE))
    serves(pair)


def test_messages_of_several_frames_are_dropped_and_counted(pair: tuple[Node, Node], dealer: zmq.Socket[bytes]) -> None:
    producer, _ = pair
    dealer.send_multipart([encode(Ping()), encode(Ping())])
    dealer.send_multipart([b"", encode(Ping())])
    eventually(lambda: producer.counters().get("malformed_messages", 0) == 2, 3.0, lambda: "not counted")
    serves(pair)


def test_an_oversized_frame_ends_its_connection_and_nothing_else(
    pair: tuple[Node, Node], dealer: zmq.Socket[bytes]
) -> None:
    dealer.send(b"x" * (MAX_MESSAGE_BYTES + 1))

    def answered() -> bool:
        dealer.send(encode(Ping()))
        return bool(dealer.poll(100))

    eventually(answered, 5.0, lambda: "no connection could be made after an oversized frame")
    assert pair[0].counters().get("malformed_messages", 0) == 0, "the frame was read into memory"
    serves(pair)


def test_a_frame_of_the_largest_size_is_read(pair: tuple[Node, Node], dealer: zmq.Socket[bytes]) -> None:
    dealer.send(b"x" * MAX_MESSAGE_BYTES)
    eventually(lambda: pair[0].counters().get("malformed_messages", 0) == 1, 3.0, lambda: "not counted")
    serves(pair)


def test_messages_without_a_handshake_are_answered_with_goodbye(
    pair: tuple[Node, Node], dealer: zmq.Socket[bytes]
) -> None:
    for message in (Ping(), Select("buffer", 1, "real", b"", True, 1.0), Done("buffer", 1, taken=True)):
        dealer.send(encode(message))
        answer = decode(dealer.recv())
        assert isinstance(answer, Bye)
        assert answer.code == "unknown-link"
    dealer.send(encode(Bye("x")))  # is not answered: two endpoints never say goodbye to each other for ever
    dealer.send(encode(Ping()))
    assert isinstance(decode(dealer.recv()), Bye)
    assert dealer.poll(100) == 0
    serves(pair)


@pytest.mark.parametrize(
    "greeting",
    [b"", b"\0" * 64, os.urandom(4096), b"GET / HTTP/1.0\r\n\r\n", b"\xff" + b"\0" * 8 + b"\x7f" + b"\xff" * 99],
    ids=["silence", "zeros", "noise", "http", "half a zmtp greeting"],
)
def test_raw_connections_that_speak_something_else_do_no_harm(pair: tuple[Node, Node], greeting: bytes) -> None:
    socks = [socket.create_connection(host_port(pair[0]), timeout=3) for _ in range(5)]
    for sock in socks:
        sock.sendall(greeting)
    serves(pair)
    for sock in socks:
        sock.close()
    serves(pair)


def test_a_peer_that_greets_twice_on_one_connection_leaves_no_link_behind(
    pair: tuple[Node, Node], dealer: zmq.Socket[bytes]
) -> None:
    producer, consumer = pair
    there = consumer.endpoint.here
    for generation in (1, 2, 3):
        identity = Identity(there.name, generation, there.backend, there.fingerprint, there.card)
        dealer.send(encode(Hello(PROTOCOL, identity)))
        dealer.recv()
    eventually(lambda: len(producer.links) >= 3, 3.0, lambda: f"{producer.links}")
    dealer.close()
    eventually(lambda: not any(link.up for link in producer.links), 5.0, lambda: f"{producer.links}")
    serves(pair)
