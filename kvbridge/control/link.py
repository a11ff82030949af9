"""`Link`: the control channel between this endpoint and one incarnation of one peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.control.messages import MAX_MESSAGE_BYTES, Bye, encode, text
from kvbridge.errors import KVBridgeError, PeerClosedError, PeerLostError, ProtocolError
from kvbridge.transfer import run_callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.messages import Identity, Message, Routed


PING_INTERVAL = 0.5
"""Seconds between heartbeats to a peer. They cost one small message a peer."""

GONE_GRACE = 0.05
"""Seconds between the loss of a connection and that of its link: the peer's last words may not have been read yet."""

MAX_EARLY = 256
"""Messages that may wait on a link for their channel to be opened."""


class Link:
    """One peer, from the handshake until the link goes down. All methods belong to the endpoint's thread.

    A link that is down stays down; a new handshake makes a new link. Whoever needs the peer registers a route for
    his channel and a callback for the end.

    Args:
        peer: The peer's identity, as agreed in the handshake.
        endpoint: The endpoint that this link belongs to.
        transmit: Sends one frame to the peer; never blocks.
        now: Time of the handshake, by the endpoint's clock.
    """

    def __init__(self, peer: Identity, endpoint: Endpoint, transmit: Callable[[bytes], None], now: float) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.heard = now
        self.error: KVBridgeError | None = None
        self._transmit = transmit
        self._early: dict[str, list[Routed]] = {}
        self._routes: dict[str, Callable[[Routed], None]] = {}
        self._on_down: dict[Callable[[KVBridgeError], None], None] = {}
        self._moving = 0
        self._on_still: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Link to {self.peer.name}: {self.error or 'up'}>"

    @property
    def up(self) -> bool:
        """Whether messages can be exchanged."""
        return self.error is None

    def send(self, message: Message) -> None:
        """Send a message. On a link that is down it is dropped: `on_down` has told already.

        Raises:
            ProtocolError: It is larger than a peer would take.
        """
        if not self.up:
            return
        frame = encode(message)
        if len(frame) > MAX_MESSAGE_BYTES:
            raise ProtocolError(
                f"a {type(message).__name__} of {len(frame)} bytes: at most {MAX_MESSAGE_BYTES} can be sent"
            )
        self._transmit(frame)

    def route(self, channel: str, handler: Callable[[Routed], None] | None) -> None:
        """Give the messages of a channel to `handler`; None ends that."""
        if handler is None:
            self._routes.pop(channel, None)
            return
        self._routes[channel] = handler
        for message in self.take_early(channel):
            handler(message)

    def take_early(self, channel: str) -> list[Routed]:
        """Return and forget what came before the channel was open."""
        return self._early.pop(channel, [])

    def keep(self, message: Routed) -> bool:
        """Keep a message for a channel that is not open yet: the two ends of a pipe are not opened at one time.

        Returns:
            Whether there was room for it.
        """
        if sum(map(len, self._early.values())) >= MAX_EARLY:
            return False
        self._early.setdefault(message.channel, []).append(message)
        return True

    def handler(self, channel: str) -> Callable[[Routed], None] | None:
        """Return the handler of a channel."""
        return self._routes.get(channel)

    def on_down(self, callback: Callable[[KVBridgeError], None]) -> None:
        """Call `callback(error)` once when the link goes down; at once if it is down."""
        if self.error is not None:
            callback(self.error)
        else:
            self._on_down[callback] = None

    def forget(self, callback: Callable[[KVBridgeError], None]) -> None:
        """Take back an `on_down`."""
        self._on_down.pop(callback, None)

    def move_began(self) -> None:
        """Take note that bytes begin to move from here to the peer."""
        self._moving += 1

    def move_ended(self) -> None:
        """Take note that a move has ended."""
        self._moving -= 1
        if not self._moving:
            callbacks, self._on_still = self._on_still, []
            for callback in callbacks:
                run_callback(callback)

    def on_still(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once when no bytes move to the peer; at once if none do."""
        if self._moving:
            self._on_still.append(callback)
        else:
            callback()

    def down(self, error: KVBridgeError, *, tell: bool = False) -> None:
        """Take the link down. Idempotent. With `tell` the peer hears of it."""
        if not self.up:
            return
        if tell:
            self.send(Bye(code=error.code, message=text(error)))
        self.error = error
        if self._moving:
            self.endpoint.fences.went_down(self)
        self._routes.clear()
        self._early.clear()
        callbacks, self._on_down = self._on_down, {}
        for callback in callbacks:
            run_callback(lambda: callback(error))  # noqa: B023 - run at once


def lost(name: str, why: str) -> PeerLostError:
    """Make the error for a peer that is gone."""
    return PeerLostError(f"lost the peer {name}: {why}")


def closed(name: str, bye: Bye) -> PeerClosedError:
    """Make the error for a peer that said goodbye."""
    return PeerClosedError(f"the peer {name} closed the link: {bye.message or bye.code}")


def silent(link: Link) -> PeerLostError:
    """Make the error for a peer whose sockets answer and who says nothing himself."""
    return lost(link.peer.name, f"silent for more than {link.endpoint.hung_after:g} s")
