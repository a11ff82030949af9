"""`Crowd`: a thousand peers of one engine, played by one socket and one thread.

They speak the protocol (`kvbridge.control.messages`): each has a connection and a handshake of its own, sends a
heartbeat as often as an endpoint does, and answers those that it gets. What it costs to be a peer is so taken out of
what is measured, which is the engine on the other side.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import zmq

from kvbridge.bench.buffer.engine import BATCH, DEADLINE, PATIENCE, VALUE, more_files, name_of
from kvbridge.bench.buffer.still import Still
from kvbridge.bench.remote import Served
from kvbridge.buffers.over_pipes import CHANNEL
from kvbridge.control.link import PING_INTERVAL
from kvbridge.control.messages import (
    PROTOCOL,
    Answer,
    Ask,
    Done,
    Hello,
    Identity,
    Miss,
    Offer,
    Ping,
    Pong,
    Select,
    Welcome,
    decode,
    encode,
)
from kvbridge.errors import KVBridgeError
from kvbridge.memory.payload import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from kvbridge.control.messages import Message

VALID = PATIENCE
"""Seconds for which an offer stands."""

AT_ONCE = 50
"""Handshakes that are under way at one time at most."""

_PING, _PONG = encode(Ping()), encode(Pong())


class Crowd(Served):
    """Peers that dial an engine and take its values (`join`), or listen and have values (`listen`)."""

    def __init__(self) -> None:
        more_files()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._peers: list[bytes] = []
        self._welcomed: set[bytes] = set()
        self._offers: dict[bytes, int] = {}
        self._keys: set[str] = set()
        self._spec = spec_of(VALUE)
        self._beaten = time.monotonic()
        self._hushed = False
        self._open: dict[int, str] = {}
        self._refused = 0
        self._answers = 0

    # -- consumers --------------------------------------------------------------------------------------------

    def join(self, address: str, count: int) -> None:
        """Dial an engine, as so many peers.

        Raises:
            KVBridgeError: It did not welcome all of them.
        """
        for start in range(0, count, AT_ONCE):
            for index in range(start, min(count, start + AT_ONCE)):
                origin = b"peer%d" % index
                self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, origin)
                self._socket.connect(address)
                self._peers.append(origin)
                self._say(origin, Hello(PROTOCOL, self._identity(index)))
            self._until(lambda: len(self._welcomed) == len(self._peers), "a handshake was not answered")

    def take(self, tag: str, count: int, flight: int) -> float:
        """Take the first keys, each for a random peer, so many at a time; return the seconds.

        Raises:
            KVBridgeError: A key was refused.
        """
        chooser = random.Random(0)  # noqa: S311 - the same every time
        started = time.monotonic()
        for start in range(0, count, flight):
            for index in range(start, min(count, start + flight)):
                self._open[index] = name_of(tag, index)
                select = Select(CHANNEL, index, self._open[index], b"", take=True, wait=DEADLINE)
                self._say(chooser.choice(self._peers), select)
            self._until(lambda: not self._open, "a key was not offered")
        return time.monotonic() - started

    def ask(self, tag: str, held: int, count: int) -> float:
        """Ask for keys that are held, many in each question, each by a random peer; return the seconds."""
        chooser = random.Random(0)  # noqa: S311 - likewise
        started = time.monotonic()
        for start in range(0, count, BATCH):
            names = tuple(name_of(tag, chooser.randrange(held)) for _ in range(min(BATCH, count - start)))
            self._answers = 1
            self._say(chooser.choice(self._peers), Ask(CHANNEL, start, names))
            self._until(lambda: not self._answers, "a question was not answered")
        return time.monotonic() - started

    # -- producers --------------------------------------------------------------------------------------------

    def listen(self, count: int) -> list[str]:
        """Listen, as so many peers; return their addresses."""
        addresses = []
        for _ in range(count):
            self._socket.bind("tcp://127.0.0.1:*")
            addresses.append(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))
        return addresses

    def hold(self, tags: list[str], count: int) -> None:
        """Have so many more keys of each tag."""
        for tag in tags:
            self._keys.update(name_of(tag, index) for index in range(count))
            self._read()  # a million names take a while, in which the links are to stay
            self._beat()

    def held(self) -> int:
        """Return how many keys there are."""
        return len(self._keys)

    def hush(self) -> None:
        """Send no heartbeats from now on. An engine does without them for more than a minute."""
        self._hushed = True

    def speak(self) -> None:
        """Send them again."""
        self._hushed = False

    # -- what all do ------------------------------------------------------------------------------------------

    def wait(self, orders: Connection) -> None:
        """Keep the links alive until an order comes."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(orders.fileno(), zmq.POLLIN)
        while not orders.poll(0):
            poller.poll(int(1000 * PING_INTERVAL / 2))
            self._read()
            self._beat()

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while not holds():
            if self._refused or time.monotonic() > deadline:
                raise KVBridgeError(otherwise)
            self._socket.poll(100)
            self._read()
            self._beat()

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= PING_INTERVAL and not self._hushed:
            self._beaten = now
            for origin in self._peers:
                self._socket.send_multipart([origin, _PING])

    def _read(self) -> None:
        for _ in range(1000):
            try:
                origin, frame = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._received(origin, decode(frame))

    def _received(self, origin: bytes, message: Message) -> None:
        if isinstance(message, Ping):
            self._socket.send_multipart([origin, _PONG])
        elif isinstance(message, Offer):
            self._open.pop(message.tag, None)
            self._say(origin, Done(CHANNEL, message.seq, taken=True))
        elif isinstance(message, Select):
            self._select(origin, message)
        elif isinstance(message, Ask):
            self._say(origin, Answer(CHANNEL, message.xid, tuple(key in self._keys for key in message.keys)))
        elif isinstance(message, Answer):
            self._answers -= 1
            self._refused += not all(message.present)
        elif isinstance(message, Miss):
            self._refused += 1
        elif isinstance(message, Welcome):
            self._welcomed.add(origin)
        elif isinstance(message, Hello):
            self._offers[origin] = 0
            self._say(origin, Welcome(self._identity(len(self._offers))))

    def _select(self, origin: bytes, select: Select) -> None:
        if select.key not in self._keys:
            self._say(origin, Miss(CHANNEL, select.xid, KVBridgeError.code, "it is not here"))
            return
        self._keys.remove(select.key)
        seq = self._offers[origin]
        self._offers[origin] += 1
        self._say(origin, Offer(CHANNEL, seq, select.xid, self._spec, b"", VALID))

    def _say(self, origin: bytes, message: Message) -> None:
        self._socket.send_multipart([origin, encode(message)])

    def _identity(self, index: int) -> Identity:
        return Identity(f"peer {index}", index + 1, Still.name, {}, b"")

    def close(self) -> None:
        """Close all connections."""
        self._socket.close(linger=0)
        self._context.term()
