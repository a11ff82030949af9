"""`Dial`: one attempt to reach a peer, from the first packet to the end of the link that came of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvbridge.control.handshake import opinion, refused_error
from kvbridge.control.link import Link, closed, lost
from kvbridge.control.messages import PROTOCOL, Bye, Hello, Message, Pong, Refused, Welcome, encode
from kvbridge.errors import HandshakeError, KVBridgeError, PeerLostError, StaleGenerationError

if TYPE_CHECKING:
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.sockets import Outbound, Sockets
    from kvbridge.transfer import Transfer

GONE_GRACE = 0.05
"""Seconds between the loss of a connection and that of its link: the peer's last words may not have been read yet."""


class Dial:
    """Handshake with the peer at an address, then the owner of the link's socket.

    Args:
        endpoint: The endpoint that dials.
        sockets: Its sockets.
        address: The peer's address.
        generation: The incarnation that is meant; 0 for any.
        timeout: Seconds within which the peer has to answer.

    Raises:
        ConfigError: The address is not one.
    """

    def __init__(self, endpoint: Endpoint, sockets: Sockets, address: str, generation: int, timeout: float) -> None:
        self.address = address
        self.link: Link | None = None
        self.error: KVBridgeError | None = None
        self._endpoint = endpoint
        self.generation = generation
        self._waiting: list[Transfer[Link]] = []
        self._socket: Outbound = sockets.connect(address, self)
        self._socket.send(encode(Hello(PROTOCOL, endpoint.here)))
        self._connected = False
        self._mistrusted = False
        endpoint.after(timeout, self._expire)

    @property
    def over(self) -> bool:
        """Whether this attempt or its link has ended."""
        return self.error is not None

    def ask(self, transfer: Transfer[Link]) -> None:
        """Resolve `transfer` with the link once it is up, or fail it."""
        if self.error is not None:
            transfer.fail(self.error)
        elif self.link is not None:
            transfer.resolve(self.link)
        else:
            self._waiting.append(transfer)

    def received(self, message: Message) -> Link | None:
        """Take a message from the peer; return the link if the message is for its routes."""
        if self.link is None:
            if isinstance(message, Welcome):
                self._welcomed(message)
            elif isinstance(message, Refused):
                self.end(refused_error(message, self.address))
            elif isinstance(message, Bye):
                self.end(closed(self.address, message))
            return None
        if isinstance(message, Bye):
            self.end(closed(self.link.peer.name, message))
            return None
        if isinstance(message, Pong):
            self.link.heard = time.monotonic()
            return None
        return self.link

    def connected(self) -> None:
        """Take note that the peer's host accepted the connection."""
        self._connected = True

    def mistrusted(self) -> None:
        """Take note that the connection could not be secured, or that the other side wants it to be."""
        self._mistrusted = True

    def disconnected(self) -> None:
        """Take note that the peer's socket is gone or refused the connection."""
        if self.link is None and self._mistrusted:
            self.end(
                HandshakeError(
                    f"the connection to {self.address} could not be secured: both sides need the same secret, see "
                    "`secret_file`, or neither has one"
                )
            )
        elif self.link is None:
            secret = ", or has another secret (see `secret_file`)" if self._connected else ""
            self.end(PeerLostError(f"nobody listens at {self.address}: the peer is not there, has died{secret}"))
        else:
            error = lost(self.link.peer.name, "its process closed the connection")
            self._endpoint.after(GONE_GRACE, lambda: self.end(error))

    def end(self, error: KVBridgeError, *, tell: bool = False) -> None:
        """End the attempt or the link. Idempotent."""
        if self.error is not None:
            return
        self.error = error
        if self.link is not None:
            self.link.down(error, tell=tell)
        self._socket.close()
        waiting, self._waiting = self._waiting, []
        for transfer in waiting:
            transfer.fail(error)

    def _welcomed(self, welcome: Welcome) -> None:
        peer = welcome.identity
        if self.generation and peer.generation != self.generation:
            self._socket.send(encode(Bye(StaleGenerationError.code)))
            self.end(StaleGenerationError(f"{peer.name} at {self.address} was restarted: what it held before is gone"))
            return
        reason = opinion(self._endpoint.backend.accepts, peer.card)
        if reason is not None:
            self._socket.send(encode(Bye(HandshakeError.code, reason)))
            self.end(HandshakeError(f"cannot work with {peer.name}: {reason}"))
            return
        self.link = Link(peer, self._endpoint, self._socket.send, time.monotonic())
        self._endpoint.came_up(self.link)
        waiting, self._waiting = self._waiting, []
        for transfer in waiting:
            transfer.resolve(self.link)

    def _expire(self) -> None:
        if self.link is not None or self.over:
            return
        if self._connected:
            # Its process is there. An engine that compiles, or a machine whose every core spins, keeps it busy.
            self._connected = False
            self._endpoint.after(self._endpoint.hung_after, self._expire)
            return
        self.end(PeerLostError(f"nothing answered the handshake at {self.address}: the peer is not there, or hangs"))
