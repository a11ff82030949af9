"""The two sides of a transfer: a held value is read by the server's thread, a landing fetches on the endpoint's.

On the wire: a request (token, id, blocks to skip), then a reply (whether the id is known, bytes to come), the packed
bytes, and a verdict: whether these are the value's bytes, or the producer gave it up while they were being sent.
"""

from __future__ import annotations

import errno
import secrets
import socket
import struct
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from kvbridge.abc import Held, Landing, MoveState
from kvbridge.errors import KVBridgeError, LeaseExpiredError, PeerLostError, ProtocolError, TransportError
from kvbridge.memory import Pages, Payload, spec_of
from kvbridge.memory.copying import slices
from kvbridge.transfer import cancelled

from kvbridge_example_tcp.card import ID_BYTES, family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge_example_tcp.card import Card

REQUEST = struct.Struct("!16s16sI")
REPLY = struct.Struct("!?Q")
GOOD, GIVEN_UP = b"\0", b"\1"

SLICE_BYTES = 1 << 20
"""Bytes of one slice: far below a millisecond of work, so that heartbeats go on and `release` need not wait."""


class ExampleTcpHeld(Held):
    """A payload that stays where it is. Its id is random: nobody can ask for what he was not offered.

    Args:
        payload: Bytes or `Pages` in host memory.
        values: Where the server finds it.
    """

    def __init__(self, payload: Payload, values: dict[bytes, ExampleTcpHeld]) -> None:
        self.descriptor = secrets.token_bytes(ID_BYTES)
        self.released = False
        self._payload = payload
        self._values = values
        self._reading = threading.Lock()
        values[self.descriptor] = self

    def step(self) -> MoveState:
        """Nothing has to be prepared."""
        return MoveState.DONE

    def release(self) -> None:
        """Give the payload back. The lock is a barrier: from here on the server's thread reads nothing of it."""
        self._values.pop(self.descriptor, None)
        with self._reading:  # waits for one slice at most
            self.released = True

    def read(self, skip: int) -> Iterator[memoryview]:
        """Yield what answers a request, copied slice by slice. Called by the server's thread."""
        payload = self._payload
        if isinstance(payload, Pages):
            payload = Pages(payload.regions, tuple(ids[skip:] for ids in payload.block_ids))
        yield memoryview(REPLY.pack(True, spec_of(payload).nbytes))  # noqa: FBT003
        verdict = GOOD
        for part in slices(payload, SLICE_BYTES):
            packed = np.zeros(part.nbytes, dtype=np.uint8)
            with self._reading:
                if self.released:
                    verdict = GIVEN_UP  # zeros fill what the reader still expects
                else:
                    replace(part, start=0).gather(packed)
            yield packed.data
        yield memoryview(verdict)


class ExampleTcpLanding(Landing):
    """A value on its way into the consumer's memory. All happens in `step`, on one thread: so an abort is simple.

    Args:
        card: The producer's.
        descriptor: The value's id.
        out: Bytes or `Pages` in host memory.
        skip: Blocks that the producer shall leave out.

    Raises:
        PeerLostError: The producer cannot be connected to.
        ProtocolError: The descriptor is none of ours.
        TransportError: There is no socket to be had.
    """

    def __init__(self, card: Card, descriptor: bytes, out: Payload, skip: int) -> None:
        if len(descriptor) != ID_BYTES:
            raise ProtocolError(f"the producer's descriptor has {len(descriptor)} bytes, expected {ID_BYTES}")
        self._aborted = False
        self._sock = _connect(card)
        self._talk = self._fetch(REQUEST.pack(card.token, descriptor, skip), out)

    def step(self) -> MoveState:
        """Read what has come, at most a slice. Never waits."""
        if self._aborted:
            raise cancelled("the fetch")
        try:
            state = next(self._talk, MoveState.DONE)
        except KVBridgeError:
            self._sock.close()
            raise
        except OSError as error:  # the one place where the system's errors become kvbridge's
            self._sock.close()
            raise PeerLostError(f"lost the producer's data connection: {error}") from error
        if state is MoveState.DONE:
            self._sock.close()
        return state

    def abort(self) -> None:
        """End the fetch. Only `step` writes to the destination, so the next `step` can say at once that it is over."""
        self._aborted = True
        self._sock.close()

    def _fetch(self, request: bytes, out: Payload) -> Iterator[MoveState]:
        """Talk to the server. Every `yield` is the end of a `step`."""
        rest = memoryview(request)
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except BlockingIOError:  # the connection is not there yet
                yield MoveState.WAIT
        head = np.empty(REPLY.size, dtype=np.uint8)
        yield from self._read(head.data)
        known, nbytes = REPLY.unpack(head.data)
        if not known:
            raise LeaseExpiredError("the producer does not hold the value any more")
        if nbytes != spec_of(out).nbytes:
            raise ProtocolError(f"the producer has {nbytes} bytes for us, expected {spec_of(out).nbytes}")
        for part in slices(out, SLICE_BYTES):
            if part.flat is not None:
                yield from self._read(part.flat.data)  # straight to where they belong
            else:
                packed = np.empty(part.nbytes, dtype=np.uint8)
                yield from self._read(packed.data)
                replace(part, start=0).scatter(packed)  # a batch of pages, not one by one
        verdict = np.empty(len(GOOD), dtype=np.uint8)
        yield from self._read(verdict.data)
        if verdict.tobytes() != GOOD:
            raise LeaseExpiredError("the producer gave the value up while it was being fetched: it was too slow")

    def _read(self, rest: memoryview) -> Iterator[MoveState]:
        while rest:
            try:
                count = self._sock.recv_into(rest[:SLICE_BYTES])
            except BlockingIOError:
                yield MoveState.WAIT
                continue
            if not count:
                raise PeerLostError("the producer closed the connection in mid-transfer: it died, or restarted")
            rest = rest[count:]
            yield MoveState.AGAIN


def _connect(card: Card) -> socket.socket:
    """Begin to connect. The card has an address, not a name: a look-up could block the endpoint's thread."""
    try:
        sock = socket.socket(family(card.host))
    except OSError as error:
        raise TransportError(f"cannot open a socket: {error}") from error
    sock.settimeout(0)
    code = sock.connect_ex((card.host, card.port))
    if code not in (0, errno.EINPROGRESS):
        sock.close()
        raise PeerLostError(f"cannot connect to {card.host}:{card.port}: {errno.errorcode.get(code, code)}")
    return sock
