"""`Endpoint`: the one control-plane presence of a process. It owns the sockets and the links, and one thread.

All protocol state is touched by that thread only (`call_soon` gets work there), so nothing above needs a lock.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.control.fences import Fences
from kvbridge.control.handshake import check_sendable
from kvbridge.control.inbound import Inbound
from kvbridge.control.link import PING_INTERVAL
from kvbridge.control.messages import (
    Fence,
    Fenced,
    Identity,
    Message,
    Routed,
    decode,
)
from kvbridge.control.outbound import Dial, Outbound
from kvbridge.control.reactor import BUSY_POLL, Reactor
from kvbridge.control.sockets import Sockets
from kvbridge.errors import ClosedError, KVBridgeError
from kvbridge.transfer import Transfer, run_callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Backend
    from kvbridge.control.link import Link

logger = logging.getLogger(__name__)

PEER_TIMEOUT = 6.0
"""Seconds without the sockets' heartbeats after which a peer counts as lost: its process is stopped, or the network
gone. Above the pauses of a busy machine. A process that died is noticed at once, without this."""

HUNG_FACTOR = 2.5
"""A peer whose sockets answer but who says nothing himself counts as hung after this many `peer_timeout`."""

STILL_TIMEOUT = 0.5
"""Seconds that closing waits for moves to end before the peers are told."""


class Endpoint:
    """A bound control address with its links.

    Args:
        backend: The data plane whose card is exchanged and whose `accepts` is asked.
        name: Who this is, for messages and logs: engine id and rank.
        fingerprint: Everything that makes KV mean something else.
        host: Address to bind and advertise. Loopback by default: exposing it is a decision.
        port: 0 for an ephemeral port.
        peer_timeout: Seconds after which a peer that is stopped or cut off counts as lost.
        secret: What every peer has to know, too: connections are encrypted then. Empty for none.

    Raises:
        ConfigError: The address cannot be bound, or the secret is none; the message says which and what to do.
    """

    def __init__(
        self,
        backend: Backend[Any],
        *,
        name: str = "",
        fingerprint: dict[str, str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        peer_timeout: float = PEER_TIMEOUT,
        secret: str = "",
    ) -> None:
        self.backend = backend
        self.hung_after = HUNG_FACTOR * peer_timeout
        self.here = Identity(
            name=name or f"pid {os.getpid()}",
            generation=random.SystemRandom().getrandbits(62) + 1,
            backend=backend.name,
            fingerprint=dict(fingerprint or {}),
            card=backend.card(),
        )
        self.counters: Counter[str] = Counter()
        check_sendable(self.here)
        self._sockets = Sockets(host, port, peer_timeout, secret)
        self.address = self._sockets.address
        self.here = msgspec.structs.replace(self.here, address=self.address)
        self.fences = Fences(self)
        self._services: dict[str, Callable[[Link, Routed], None]] = {}
        self._on_close: list[Callable[[KVBridgeError], None]] = []
        self._on_link: list[Callable[[Link], None]] = []
        self._inbound = Inbound(self, self._sockets)
        self._outbound = Outbound(self, self._sockets)
        self._closed = False
        self._closing = threading.Lock()
        self._reactor = Reactor(self._sockets, self._received, self.here.name, self.counters)
        self.after = self._reactor.after
        self.move = self._reactor.move
        self.after(PING_INTERVAL, self._beat)
        self._reactor.start(f"endpoint-{self.address.rpartition(':')[2]}")

    # -- for any thread ---------------------------------------------------------------------------------------

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call()` on the endpoint's thread. Any thread may ask.

        Raises:
            ClosedError: The endpoint is closed.
            KVBridgeError: The endpoint's thread died earlier.
        """
        if self._closed:
            raise ClosedError(f"the endpoint {self.address} is closed")
        self._reactor.call_soon(call)

    def call_now(self, call: Callable[[], None]) -> None:
        """Run `call()` at once where this is the endpoint's thread, else as `call_soon` does.

        Raises:
            ClosedError: The endpoint is closed.
            KVBridgeError: The endpoint's thread died earlier.
        """
        if self._reactor.current:
            call()
        else:
            self.call_soon(call)

    def dial(self, address: str, generation: int = 0) -> Transfer[Link]:
        """Get a link to the peer at `address`, an existing one or by a new handshake.

        Args:
            address: The peer's advertised address, `tcp://host:port`.
            generation: The incarnation that is meant; 0 for whichever is there.

        Returns:
            A transfer that resolves to the link, or fails with `HandshakeError`, `PeerLostError` or
            `StaleGenerationError` within the handshake's deadline.
        """
        transfer: Transfer[Link] = Transfer(f"the handshake with {address}")
        self.call_soon(lambda: self._dial(address, generation, transfer))
        return transfer

    def close(self, timeout: float = 1.0) -> None:
        """Say goodbye to all peers, stop the thread and close the sockets. Idempotent, bounded by `timeout` seconds.

        Any thread may close; the first one does it, others return at once.
        """
        if not self._closing.acquire(blocking=False):  # kept for good: sockets are closed by one thread, once
            return
        done: Transfer[None] = Transfer("closing the endpoint")
        with contextlib.suppress(KVBridgeError):
            self.call_soon(lambda: self._say_goodbye(done))
            self._closed = True
            done.wait(timeout)
        self._closed = True
        if self._reactor.stop(timeout):
            for pending in (self._outbound, self._inbound, self._services):
                pending.clear()
        else:
            logger.error(
                "the endpoint %s did not stop within %g s: its sockets close when what its thread is in returns",
                self.address,
                timeout,
            )

    # -- for the endpoint's thread ----------------------------------------------------------------------------

    def serve(self, channel: str, handler: Callable[[Link, Routed], None]) -> None:
        """Give messages of a channel for which a link has no route to `handler`."""
        self._services[channel] = handler
        for link in self._inbound.links():
            for message in link.take_early(channel):
                handler(link, message)

    def on_link(self, callback: Callable[[Link], None]) -> None:
        """Call `callback(link)` for every link that comes up from now on, dialled by either side."""
        self._on_link.append(callback)

    def on_close(self, callback: Callable[[KVBridgeError], None]) -> None:
        """Call `callback(error)` first thing when the endpoint closes: to finish what needs the links."""
        self._on_close.append(callback)

    # -- frames -----------------------------------------------------------------------------------------------

    def _received(self, origin: bytes | Dial, frame: bytes | None) -> None:
        if isinstance(origin, Dial) and frame is None:
            origin.disconnected()
            return
        try:
            message = decode(frame or b"")
        except (msgspec.DecodeError, RecursionError) as error:
            self.counters["malformed_messages"] += 1
            logger.warning("dropped %d bytes that are no message: %s", len(frame or b""), error)
            return
        link = origin.received(message) if isinstance(origin, Dial) else self._inbound.received(origin, message)
        if link is not None:
            link.heard = time.monotonic()
            self._route(link, message)

    def _route(self, link: Link, message: Message) -> None:
        if isinstance(message, Fence):
            self.fences.asked(link, message.xid)
        elif isinstance(message, Fenced):
            self.fences.fenced(link, message.xid)
        elif isinstance(message, Routed):
            handler = link.handler(message.channel)
            if handler is not None:
                handler(message)
                return
            service = self._services.get(message.channel)
            if service is not None:
                service(link, message)
                return
            if not link.keep(message):
                self.counters["unroutable_messages"] += 1

    def came_up(self, link: Link) -> None:
        """Tell everybody who asked that a link is up."""
        for callback in self._on_link:
            run_callback(lambda: callback(link))  # noqa: B023 - run at once

    # -- peers ------------------------------------------------------------------------------------------------

    def _dial(self, address: str, generation: int, transfer: Transfer[Link]) -> None:
        if self._closed:
            transfer.fail(ClosedError(f"the endpoint {self.address} is closed"))
        else:
            self._outbound.ask(address, generation, transfer)

    def links(self) -> list[Link]:
        """Return every link that is up, dialled by either side."""
        return self._outbound.links() + self._inbound.links()

    def drop(self, link: Link, error: KVBridgeError) -> None:
        """Take a link down, without a word to its peer."""
        self._outbound.drop(link, error)
        self._inbound.drop(link, error)

    def _beat(self) -> None:
        self.after(PING_INTERVAL, self._beat)  # first, so that it goes on whatever happens below
        now = time.monotonic()
        self._outbound.beat(now)
        self._inbound.beat(now)

    def _say_goodbye(self, done: Transfer[None]) -> None:
        """Finish everything, wait until nothing moves any more, then tell the peers."""
        self._closed = True
        error = ClosedError(f"the endpoint {self.address} was closed")
        for callback in self._on_close:
            run_callback(lambda: callback(error))  # noqa: B023 - run at once
        self._when_still(time.monotonic() + STILL_TIMEOUT, lambda: self._leave(error, done))

    def _leave(self, error: KVBridgeError, done: Transfer[None]) -> None:
        self._outbound.close(error)
        self._inbound.close(error)
        self.fences.close()
        self._when_still(math.inf, lambda: done.resolve(None))

    def _when_still(self, deadline: float, call: Callable[[], None]) -> None:
        """Make a call once nothing is in motion any more: aborted moves need a few more slices."""
        if self._reactor.moving and time.monotonic() < deadline:
            self.after(BUSY_POLL, lambda: self._when_still(deadline, call))
        else:
            call()
