"""`Server`: the producer's port. One thread answers all peers and waits for none of them.

Whoever connects is a stranger until his request has the token of our card. Until then he gets a buffer of one
request, no answer, and `PATIENCE` seconds.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import selectors
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

from kvbridge.errors import BackendUnavailableError
from kvbridge.threads import Loop

from kvbridge_example_tcp.card import ID_BYTES, Card, family
from kvbridge_example_tcp.moves import REPLY, REQUEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvbridge_example_tcp.moves import ExampleTcpHeld

logger = logging.getLogger(__name__)

UNKNOWN = memoryview(REPLY.pack(False, 0))  # noqa: FBT003

MAX_PEERS = 512

PATIENCE = 5.0
"""Seconds that a connection may stay without a request, or without a value that is still held."""

SWEEP = 0.25
"""Seconds between two looks for connections that have outstayed."""

STOP_TIMEOUT = 2.0


class _Peer:
    """One connection."""

    def __init__(self, sock: socket.socket, talk: Callable[[_Peer], Iterator[int]]) -> None:
        self.sock = sock
        self.held: ExampleTcpHeld | None = None
        self.talk = talk(self)
        self._deadline = time.monotonic() + PATIENCE

    def overdue(self) -> bool:
        """Whether it has outstayed. While its value is held it may take its time: the core's lease decides."""
        now = time.monotonic()
        if self.held is not None and not self.held.released:
            self._deadline = now + PATIENCE
        return now > self._deadline


class Server:
    """A listening socket, and the values that can be fetched from it.

    Args:
        host: IP address to listen on.
        port: 0 for an ephemeral one.

    Raises:
        BackendUnavailableError: The port cannot be had.
    """

    def __init__(self, host: str, port: int) -> None:
        self.values: dict[bytes, ExampleTcpHeld] = {}
        self._peers: set[_Peer] = set()
        try:
            self._listener = socket.create_server((host, port), family=family(host), backlog=128)
        except OSError as error:
            raise BackendUnavailableError(
                f"cannot listen on {host}:{port} ({error}): choose a free options.port, or 0 for an ephemeral one"
            ) from error
        self._listener.settimeout(0)
        self.card = Card(host, self._listener.getsockname()[1], secrets.token_bytes(ID_BYTES))
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, partial(self._woken.recv, 64))
        self._loop = Loop(f"example-tcp-{self.card.port}", self._step, partial(self._waker.sendall, b"\0"))

    def check(self) -> None:
        """Raise what ended the thread, if something did: a bug has to reach a caller."""
        self._loop.check()

    def close(self) -> None:
        """Stop the thread, then close what it used. Idempotent, bounded."""
        if self._listener.fileno() < 0:
            return
        if not self._loop.stop(STOP_TIMEOUT):
            logger.error("the thread of port %d did not stop within %g s", self.card.port, STOP_TIMEOUT)
            return
        for sock in (self._listener, self._waker, self._woken, *(peer.sock for peer in self._peers)):
            sock.close()
        self._selector.close()
        self._peers.clear()

    # -- for the thread ---------------------------------------------------------------------------------------

    def _step(self) -> None:
        for key, _ in self._selector.select(SWEEP):
            key.data()
        for peer in [peer for peer in self._peers if peer.overdue()]:
            self._drop(peer)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # such as no file left to open: the peer waits in the backlog
            logger.warning("cannot accept a peer: %s", error)
            time.sleep(SWEEP)
            return
        if len(self._peers) >= MAX_PEERS:
            sock.close()
            return
        sock.settimeout(0)
        peer = _Peer(sock, self._converse)
        self._peers.add(peer)
        self._selector.register(sock, next(peer.talk), partial(self._advance, peer))

    def _advance(self, peer: _Peer) -> None:
        try:
            self._selector.modify(peer.sock, next(peer.talk), partial(self._advance, peer))
        except (StopIteration, OSError):  # all is said; or it is gone, or never was one of ours
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        self._peers.discard(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()

    def _converse(self, peer: _Peer) -> Iterator[int]:
        """Talk to one peer. Every `yield` waits until its socket can be read from or written to."""
        request = b""
        while len(request) < REQUEST.size:
            yield selectors.EVENT_READ
            came = peer.sock.recv(REQUEST.size - len(request))
            if not came:
                return
            request += came
        token, name, skip = REQUEST.unpack(request)
        if not hmac.compare_digest(token, self.card.token):
            logger.warning("dropped a connection that did not know our token")
            return
        peer.held = self.values.get(name)
        for chunk in (UNKNOWN,) if peer.held is None else peer.held.read(skip):
            rest = chunk
            while rest:
                yield selectors.EVENT_WRITE
                rest = rest[peer.sock.send(rest) :]
