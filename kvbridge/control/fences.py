"""`Fences`: memory that a lost peer may still write to is kept until that peer says that it stopped, or is dead.

A producer that writes into a consumer's memory may be stopped in the middle of it, or cut off, and go on later. So
when its link is lost, the destination is *quarantined*: its transfer does not finish. The consumer dials the producer
again, and asks (`Fence`) whether everything has ended that was under way over earlier links. The producer drops those
links, aborts their moves, and answers (`Fenced`) when the last one has ended. Where nobody listens any more, or another
incarnation does, the producer is dead.
"""

from __future__ import annotations

import errno
import itertools
import logging
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbridge.control.link import lost
from kvbridge.control.messages import Fence, Fenced
from kvbridge.errors import KVBridgeError, PeerLostError, StaleGenerationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.link import Link
    from kvbridge.control.messages import Identity
    from kvbridge.transfer import Transfer

logger = logging.getLogger(__name__)

RETRY = 0.5
"""Seconds between two attempts to reach a peer that was lost."""

ASK_AGAIN = 2.0
"""Seconds after which a question that was not answered is put again."""

COMPLAIN = 10.0
"""Seconds between two warnings about memory that stays in quarantine."""

PROBE = 0.2
"""Seconds for a host to say that nobody listens at a port."""


@dataclass(eq=False)
class _Lost:
    """A peer that was lost while it was writing here."""

    peer: Identity
    since: float
    released: list[Callable[[], None]] = field(default_factory=list)
    complained: float = 0.0


class Fences:
    """Quarantine of one endpoint, and the answers that it gives to others. Belongs to the endpoint's thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lost: dict[tuple[str, int], _Lost] = {}
        self._asked: dict[tuple[Link, int], tuple[_Lost, int]] = {}
        self._xids = itertools.count(1)
        self._unsettled: set[Link] = set()

    # -- the side that is written to --------------------------------------------------------------------------

    def quarantine(self, peer: Identity, released: Callable[[], None]) -> None:
        """Call `released()` once this peer cannot write here any more."""
        key = (peer.address, peer.generation)
        self._endpoint.counters["quarantined"] += 1
        known = self._lost.get(key)
        if known is not None:
            known.released.append(released)
            return
        self._lost[key] = _Lost(peer, time.monotonic(), [released])
        self._try(self._lost[key])

    def fenced(self, link: Link, xid: int) -> None:
        """Take a peer's word that everything has ended that was before a question."""
        found = self._asked.pop((link, xid), None)
        if found is not None:
            self._release(*found)

    def close(self) -> None:
        """Let go of everything: this endpoint is being closed, and its backend's memory with it."""
        for one in list(self._lost.values()):
            logger.warning("closing while %s may still write into memory here", one.peer.name)
            self._release(one, len(one.released))

    def _try(self, one: _Lost) -> None:
        if self._lost.get((one.peer.address, one.peer.generation)) is not one:
            return
        now = time.monotonic()
        if now - max(one.since, one.complained) > COMPLAIN:
            one.complained = now
            logger.warning(
                "%s was lost %.0f s ago while it wrote into memory here and does not say that it stopped: %d transfers "
                "wait for it or for its end",
                one.peer.name,
                now - one.since,
                len(one.released),
            )
        try:
            dialled = self._endpoint.dial(one.peer.address, one.peer.generation)
        except KVBridgeError:
            return  # the endpoint is closed: it has finished everything
        dialled.on_done(lambda done: self._dialled(one, done))

    def _dialled(self, one: _Lost, done: Transfer[Link]) -> None:
        if done.error is None:
            link = done.result()
            xid = next(self._xids)
            self._asked[link, xid] = one, len(one.released)
            link.on_down(lambda _: self._not_answered(one, link, xid))
            self._ask(link, xid)
        elif isinstance(done.error, StaleGenerationError):
            self._release(one, len(one.released))
        elif isinstance(done.error, PeerLostError):
            self._probe(one)
        else:
            self._again(one)

    def _ask(self, link: Link, xid: int) -> None:
        """Put a question again and again until it is answered: it may be lost, and so may the answer."""
        if (link, xid) in self._asked:
            link.send(Fence(xid))
            self._endpoint.after(ASK_AGAIN, lambda: self._ask(link, xid))

    def _not_answered(self, one: _Lost, link: Link, xid: int) -> None:
        if self._asked.pop((link, xid), None) is not None:
            self._again(one)

    def _again(self, one: _Lost) -> None:
        self._endpoint.after(RETRY, lambda: self._try(one))

    def _probe(self, one: _Lost) -> None:
        """Ask the host itself: a port at which nobody listens had its process end."""
        host, _, port = one.peer.address.removeprefix("tcp://").rpartition(":")
        probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        probe.setblocking(False)
        found = probe.connect_ex((host.strip("[]"), int(port)))

        def look() -> None:
            error = found if found != errno.EINPROGRESS else probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            probe.close()
            if error == errno.ECONNREFUSED:
                self._release(one, len(one.released))
            else:
                self._again(one)

        self._endpoint.after(PROBE, look)

    def _release(self, one: _Lost, count: int) -> None:
        released, one.released = one.released[:count], one.released[count:]
        if not one.released:
            self._lost.pop((one.peer.address, one.peer.generation), None)
        self._endpoint.counters["quarantined"] -= len(released)
        for call in released:
            call()
        if one.released:
            self._try(one)

    # -- the side that writes ---------------------------------------------------------------------------------

    def went_down(self, link: Link) -> None:
        """Remember a link that is down while moves over it go on."""
        self._unsettled.add(link)
        link.on_still(lambda: self._unsettled.discard(link))

    def asked(self, link: Link, xid: int) -> None:
        """Answer a peer that wants to know when everything has ended that we moved to it over other links."""
        for other in self._endpoint.links():
            if other is not link and other.peer.generation == link.peer.generation:
                self._endpoint.drop(other, lost(other.peer.name, "it gave this link up"))
        waiting = {one for one in self._unsettled if one.peer.generation == link.peer.generation}

        def still(one: Link) -> None:
            waiting.discard(one)
            if not waiting:
                link.send(Fenced(xid))

        if not waiting:
            link.send(Fenced(xid))
        for one in list(waiting):
            one.on_still(lambda one=one: still(one))  # type: ignore[misc]
