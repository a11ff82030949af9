"""`Agent`: one agent of the library with everything that is made of it. `Movers`: those that begin transfers.

An instance has an agent that peers reach into, whose name is on its card, and another one that begins transfers. The
second can be replaced. A transfer to a peer that hangs never ends in the library, and releasing it does not stop it:
only the end of its agent does. Such an agent is *condemned*: nothing new is begun with it, what can end ends, and then
it is destroyed, and with it what hangs.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from kvbridge.errors import PeerLostError, TransportError
from kvbridge_nixl import library
from kvbridge_nixl.memory import Memory
from kvbridge_nixl.peers import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.memory import Region
    from kvbridge.memory.places import Place
    from kvbridge_nixl.card import Card
    from kvbridge_nixl.options import NixlOptions
    from kvbridge_nixl.transfer import Transfer

logger = logging.getLogger(__name__)

STUCK = 2.0
"""Seconds after which a transfer that was aborted and does not end counts as hanging."""


class Agent:
    """An agent, its memory and its peers. Belongs to the endpoint's thread after set-up.

    Attributes:
        name: Its name, which nobody ever had.
        lib: The library's object; None when it is closed.
        memory: What it knows of this process's memory.
        condemned: Whether nothing new is to be begun with it.
    """

    def __init__(self, api: Any, options: NixlOptions) -> None:
        self.name = uuid.uuid4().hex
        self.lib: Any = library.make_agent(api, self.name, options)
        self.memory = Memory(self)
        self.condemned = False
        self._gone: Callable[[], bool] = lambda: False
        self._peers: dict[str, Peer] = {}
        self._transfers: set[Transfer] = set()

    @property
    def still(self) -> bool:
        """Whether nothing of it can move any more, because it is destroyed."""
        return self.lib is None and self._gone()

    def peer(self, card: Card) -> Peer:
        """Return a peer's agent, as the library knows it.

        Raises:
            PeerLostError: The library lost it, and other transfers are still to learn of that.
            TransportError: The library cannot meet it.
        """
        found = self._peers.get(card.name)
        if found is None:
            found = self._peers[card.name] = Peer(self, card)
        if found.broken:
            raise PeerLostError("the library lost the connection to this peer: it is made again once nothing uses it")
        found.wanted = True
        return found

    def forget_peer(self, name: str, *, broken: bool = False) -> None:
        """Forget a peer, as soon as nothing moves to or from it any more."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.wanted = False
            peer.broken = peer.broken or broken
            self._tidy(peer)

    def progress(self) -> None:
        """Let the library do what has come up."""
        lib = self.lib
        if lib is not None:
            library.call("making progress", lib.get_new_notifs)

    def condemn(self) -> None:
        """Begin nothing new with it, and end it when the last transfer has ended."""
        self.condemned = True
        if not self._transfers:
            self.close()

    def began(self, transfer: Transfer) -> None:
        """Take note of a transfer under way."""
        self._transfers.add(transfer)

    def ended(self, transfer: Transfer) -> None:
        """Take note that a transfer has ended."""
        self._transfers.discard(transfer)
        if self.lib is not None:
            self._tidy(transfer.peer)
        if self.condemned and not self._transfers:
            self.close()

    def end_by_force(self, transfer: Transfer) -> None:
        """End a transfer that was aborted and hangs, as soon as what does not hang has ended."""
        if self.lib is None or transfer.aborted_at is None or time.monotonic() - transfer.aborted_at < STUCK:
            return
        self.condemned = True
        if all(one.aborted_at is not None for one in self._transfers):
            logger.warning("a peer hangs: %d transfers are ended by the end of their agent", len(self._transfers))
            self.close()

    def close(self) -> None:
        """Give everything back, the agent last. What still moves is ended by its end. Idempotent."""
        if self.lib is None:
            return
        for transfer in list(self._transfers):
            transfer.let_go()
        self._transfers.clear()
        for peer in self._peers.values():
            peer.drop()
        self._peers.clear()
        self.memory.close()
        agent, self.lib = self.lib, None
        self._gone = library.forget_agent(agent)
        if not self._gone():
            logger.error("an agent of the library is still in use after its end: what it moves is waited for")

    def _tidy(self, peer: Peer) -> None:
        if not peer.wanted and not any(one.peer is peer for one in self._transfers):
            if self._peers.get(peer.name) is peer:
                del self._peers[peer.name]
            peer.unload()


class Movers:
    """The agents that begin transfers: one, and before it those that are condemned and not closed yet."""

    def __init__(self, api: Any, options: NixlOptions) -> None:
        self._api = api
        self._options = options
        self._agents: list[Agent] = []
        self._regions: list[Region] = []

    def register(self, regions: Sequence[Region]) -> None:
        """Register regions with whatever agent moves their pages."""
        self._regions.extend(regions)
        for agent in self.living():
            agent.memory.register(regions)

    def get(self) -> Agent:
        """Return the agent with which transfers are begun; a new one where the last one is condemned."""
        if not self._agents or self._agents[-1].condemned:
            agent = Agent(self._api, self._options)
            self._agents = [*self.living(), agent]
            agent.memory.register(self._regions)
        return self._agents[-1]

    def meet(self, card: Card, place: Place) -> tuple[Agent, Peer]:
        """Return an agent that knows a peer and its memory.

        What the library learned earlier of a peer's memory can be in the way of what is true now, and it cannot be
        told to forget it: then a new agent learns everything anew.

        Raises:
            PeerLostError: The peer is gone.
            TransportError: The library cannot reach the memory.
        """
        agent = self.get()
        peer = agent.peer(card)
        if not place.rows:
            return agent, peer  # an empty tensor: nothing is to be reached
        if peer.full():
            agent.condemn()
            return self.meet(card, place)
        stale = peer.stale
        try:
            peer.handle(place)
        except PeerLostError:
            agent.forget_peer(peer.name, broken=True)
            raise
        except TransportError:
            if not stale:
                raise
            agent.condemn()
            agent = self.get()
            peer = agent.peer(card)
            peer.handle(place)
        return agent, peer

    def living(self) -> list[Agent]:
        """Return those that are not closed."""
        return [agent for agent in self._agents if agent.lib is not None]

    def forget_peer(self, name: str) -> None:
        """Forget a peer."""
        for agent in self.living():
            agent.forget_peer(name)

    def close(self) -> None:
        """Close them all. Idempotent."""
        for agent in self._agents:
            agent.close()
