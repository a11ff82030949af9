"""`Inbox`: the offers of one channel from one peer, in the order in which they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.control.incoming import Incoming
from kvbridge.control.messages import Done, End, Landed, Offer, Renewed, Routed, Withdrawn
from kvbridge.errors import ClosedError, EndOfPipeError, KVBridgeError, PeerClosedError, PipeBrokenError, from_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Transport
    from kvbridge.control.link import Link


class Inbox:
    """Offers of one channel on one link. All methods belong to the endpoint's thread."""

    def __init__(
        self,
        backend: Transport[Any],
        link: Link,
        channel: str,
        arrived: Callable[[Incoming], None],
        ended: Callable[[KVBridgeError], None],
    ) -> None:
        self.backend = backend
        self.link = link
        self.channel = channel
        self.mover = backend.capabilities.mover
        self.asked: dict[int, float] = {}
        self._arrived = arrived
        self._ended = ended
        self._open: dict[int, Incoming] = {}
        self._closed = False
        self._next_seq = 0
        link.on_down(self._lost)

    def received(self, message: Routed) -> None:
        """Take a message of the sender."""
        if isinstance(message, Offer):
            if self._closed:
                self.link.send(Done(self.channel, message.seq, taken=False))
                return
            if message.seq < self._next_seq:
                return  # it came before: the first one stands
            if message.seq != self._next_seq:
                self._ended(
                    PipeBrokenError(f"{self.channel}: offer {message.seq} came, {self._next_seq} was to come: lost")
                )
            self._next_seq = message.seq + 1
            incoming = Incoming(self, message, self.asked.pop(message.tag, None))
            self._open[message.seq] = incoming
            incoming.keep()
            self._arrived(incoming)
            return
        if isinstance(message, End):
            self._ended(EndOfPipeError(f"the peer closed {self.channel} and everything was delivered"))
            return
        known = self._open.get(getattr(message, "seq", -1))
        if known is None:
            return
        if isinstance(message, Landed):
            known.landed(message)
        elif isinstance(message, Renewed):
            known.renewed(message.valid)
        elif isinstance(message, Withdrawn):
            error = from_code(message.code, message.message)
            known.void(PeerClosedError(message.message) if isinstance(error, ClosedError) else error)

    def gone(self, incoming: Incoming) -> bool:
        """Whether an offer has ended or its link is down."""
        return not self.link.up or self._open.get(incoming.offered.seq) is not incoming

    def forget(self, incoming: Incoming, *, taken: bool) -> None:
        """End an offer and tell the sender."""
        if self._open.get(incoming.offered.seq) is incoming:
            del self._open[incoming.offered.seq]
            self.link.send(Done(self.channel, incoming.offered.seq, taken))

    def close(self, error: KVBridgeError) -> None:
        """Decline or stop everything, and decline what is still to come."""
        self._closed = True
        for incoming in list(self._open.values()):
            incoming.void(error)
        self._ended(error)

    def _lost(self, error: KVBridgeError) -> None:
        for incoming in list(self._open.values()):
            incoming.lost(error)
