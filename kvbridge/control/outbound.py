"""Peers that an endpoint dials. `Dial` is one attempt, from its first packet to the end of the link that came of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvbridge.control.handshake import opinion, refused_error
from kvbridge.control.link import GONE_GRACE, Link, closed, lost, silent
from kvbridge.control.messages import PROTOCOL, Bye, Hello, Message, Ping, Pong, Refused, Welcome, encode
from kvbridge.errors import HandshakeError, KVBridgeError, PeerLostError, StaleGenerationError

if TYPE_CHECKING:
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.sockets import Connection, Sockets
    from kvbridge.transfer import Transfer

HANDSHAKE_TIMEOUT = 4.0
"""Seconds within which a peer has to answer a handshake."""


class Dial:
    """Handshake with the peer at an address, then the owner of the link's socket.

    Args:
        endpoint: The endpoint that dials.
        sockets: Its sockets.
        address: The peer's address.
        generation: The incarnation that is meant; 0 for any.

    Raises:
        ConfigError: The address is not one.
    """

    def __init__(self, endpoint: Endpoint, sockets: Sockets, address: str, generation: int) -> None:
        self.address = address
        self.link: Link | None = None
        self.error: KVBridgeError | None = None
        self._endpoint = endpoint
        self.generation = generation
        self._waiting: list[Transfer[Link]] = []
        self._socket: Connection = sockets.connect(address, self)
        self._socket.send(encode(Hello(PROTOCOL, endpoint.here)))
        self._connected = False
        self._mistrusted = False
        endpoint.after(HANDSHAKE_TIMEOUT, self._expire)

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


class Outbound:
    """The dials of an endpoint. All methods belong to its thread.

    Args:
        endpoint: The endpoint that dials.
        sockets: Its sockets.
    """

    def __init__(self, endpoint: Endpoint, sockets: Sockets) -> None:
        self._endpoint = endpoint
        self._sockets = sockets
        self._dials: dict[str, list[Dial]] = {}

    def links(self) -> list[Link]:
        """Return every link that is up."""
        return [dial.link for dial in self._all() if dial.link is not None and dial.link.up]

    def ask(self, address: str, generation: int, transfer: Transfer[Link]) -> None:
        """Resolve `transfer` with a link to this incarnation at this address, an existing one or a new one."""
        dial = self._find(address, generation)
        if dial is None:
            try:
                dial = Dial(self._endpoint, self._sockets, address, generation)
            except KVBridgeError as error:
                transfer.fail(error)
                return
            self._dials.setdefault(address, []).append(dial)
        dial.ask(transfer)

    def drop(self, link: Link, error: KVBridgeError) -> None:
        """Take a link down, if it is one of these, without a word to its peer."""
        for dial in self._all():
            if dial.link is link:
                dial.end(error)

    def beat(self, now: float) -> None:
        """Let peers hear that this process lives, give up those that are silent, and forget what is over."""
        for dial in self._all():
            if dial.link is not None:
                dial.link.send(Ping())
                if now - dial.link.heard > self._endpoint.hung_after:
                    dial.end(silent(dial.link))
            if dial.over:
                self._forget(dial)

    def close(self, error: KVBridgeError) -> None:
        """End all dials, with a word to the peers."""
        for dial in self._all():
            dial.end(error, tell=True)

    def clear(self) -> None:
        """Forget all dials. For whoever knows that the endpoint's thread has ended."""
        self._dials.clear()

    def _find(self, address: str, generation: int) -> Dial | None:
        for dial in self._dials.get(address, ()):
            known = dial.generation if dial.link is None else dial.link.peer.generation
            if not dial.over and (generation == known or (generation == 0 and dial.link is not None)):
                return dial
        return None

    def _all(self) -> list[Dial]:
        return [dial for dials in self._dials.values() for dial in dials]

    def _forget(self, dial: Dial) -> None:
        self._dials[dial.address].remove(dial)
        if not self._dials[dial.address]:
            del self._dials[dial.address]
