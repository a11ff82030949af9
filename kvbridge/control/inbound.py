"""`Inbound`: the links that peers dialled, from their greeting on."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from kvbridge.control.handshake import refusal
from kvbridge.control.link import GONE_GRACE, PING_INTERVAL, Link, closed, lost, silent
from kvbridge.control.messages import Bye, Hello, Message, Ping, Pong, Welcome

if TYPE_CHECKING:
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.sockets import Sockets
    from kvbridge.errors import KVBridgeError

logger = logging.getLogger(__name__)


class Inbound:
    """All methods belong to the endpoint's thread.

    Args:
        endpoint: The endpoint that is dialled.
        sockets: Its sockets.
    """

    def __init__(self, endpoint: Endpoint, sockets: Sockets) -> None:
        self._endpoint = endpoint
        self._sockets = sockets
        self._links: dict[bytes, Link] = {}

    def links(self) -> list[Link]:
        """Return every link that is up."""
        return list(self._links.values())

    def get(self, origin: bytes) -> Link | None:
        """Return the link of a connection, if there is one."""
        return self._links.get(origin)

    def received(self, origin: bytes, message: Message) -> Link | None:
        """Take a message from a connection; return its link if the message is for its routes."""
        if isinstance(message, Hello):
            self._greet(origin, message)
            return None
        link = self._links.get(origin)
        if link is None:
            if not isinstance(message, Bye):
                self._sockets.reply(origin, Bye("unknown-link", "no handshake was made here: this is a new process"))
            return None
        if isinstance(message, Ping):
            link.heard = time.monotonic()
            link.send(Pong())
            return None
        if isinstance(message, Bye):
            self._drop(origin, link, closed(link.peer.name, message))
            return None
        return link

    def drop(self, link: Link, error: KVBridgeError) -> None:
        """Take a link down, if it is one of these, without a word to its peer."""
        for origin, one in list(self._links.items()):
            if one is link:
                self._drop(origin, link, error)

    def beat(self, now: float) -> None:
        """Let peers hear that this process lives, and give up those that are silent."""
        for origin, link in list(self._links.items()):
            if now - link.heard > PING_INTERVAL:  # else its pings were answered
                link.send(Pong())
            if now - link.heard > self._endpoint.hung_after:
                self._drop(origin, link, silent(link), tell=True)

    def close(self, error: KVBridgeError) -> None:
        """Take all links down, with a word to the peers."""
        for origin, link in list(self._links.items()):
            self._drop(origin, link, error, tell=True)

    def clear(self) -> None:
        """Forget all links. For whoever knows that the endpoint's thread has ended."""
        self._links.clear()

    def _greet(self, origin: bytes, hello: Hello) -> None:
        here = self._endpoint.here
        refused = refusal(hello, here, self._endpoint.backend.accepts)
        if refused is not None:
            self._endpoint.counters["refused_handshakes"] += 1
            logger.warning("refused the peer %s: %s %s", hello.identity.name, refused.message, refused.differences)
            self._sockets.reply(origin, refused)
            return
        earlier = self._links.get(origin)
        if earlier is not None:  # a second greeting on one connection starts anew
            self._drop(origin, earlier, lost(earlier.peer.name, "it greeted anew on the same connection"))
        link = Link(hello.identity, self._endpoint, self._sockets.sender(origin, self._gone), time.monotonic())
        self._links[origin] = link
        link.send(Welcome(here))
        self._endpoint.came_up(link)

    def _gone(self, origin: bytes) -> None:
        """Take a link down whose connection is gone, after what its peer sent last, such as a goodbye, was read."""
        link = self._links.get(origin)
        if link is not None:
            error = lost(link.peer.name, "its connection is gone")
            self._endpoint.after(GONE_GRACE, lambda: self._drop(origin, link, error))

    def _drop(self, origin: bytes, link: Link, error: KVBridgeError, *, tell: bool = False) -> None:
        if self._links.get(origin) is link:
            del self._links[origin]
        link.down(error, tell=tell)
