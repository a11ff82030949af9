"""`Peer`: another process's agent, as an agent here knows it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kvbridge.errors import KVBridgeError, ProtocolError, TransportError
from kvbridge_nixl.library import call, give_back

if TYPE_CHECKING:
    from kvbridge.memory.places import Place
    from kvbridge_nixl.agent import Agent
    from kvbridge_nixl.card import Card

MAX_TABLES = 64
"""Tables of one peer that are kept prepared: its cache's, and some tensors'."""

MAX_LEARNED = 10_000
"""Tables that are learned of before everything is learned anew: the library never forgets a peer's memory."""


class Peer:
    """A peer's agent and what is known of its memory. Belongs to the endpoint's thread.

    Attributes:
        name: The name of its agent.
        wanted: Whether its link is up. If not, it is forgotten as soon as nothing moves to or from it.
        broken: Whether the library lost it: then it has to be forgotten before it can be met again.
    """

    def __init__(self, agent: Agent, card: Card) -> None:
        self.name = card.name
        self.wanted = True
        self.broken = False
        self._agent = agent
        self._handles: dict[bytes, Any] = {}
        self._learned: set[bytes] = set()
        try:
            self._learn("meeting a peer", card.metadata)
        except TransportError as error:
            raise TransportError(
                f"{error}; the peer has died, or no device of options.net_devices, here or there, reaches it"
            ) from error

    @property
    def stale(self) -> bool:
        """Whether more is known of its memory than is true any more: addresses come again with other sizes."""
        return bool(self._learned)

    def handle(self, place: Place) -> Any:
        """Return the prepared descriptors of a table of the peer's.

        Raises:
            TransportError: The library cannot reach it, perhaps because of what it knew before.
        """
        found = self._handles.pop(place.digest, None)
        if found is None:
            found = self._prepare(place)
        self._handles[place.digest] = found  # as the one that was used last
        while len(self._handles) > MAX_TABLES:
            give_back(self._handles.pop(next(iter(self._handles))))
        return found

    def full(self) -> bool:
        """Whether so much was learned that a new agent is due."""
        return len(self._learned) >= MAX_LEARNED

    def drop(self) -> None:
        """Give the prepared descriptors back: the agent goes."""
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            give_back(handle)

    def unload(self) -> None:
        """Forget the peer."""
        self.drop()
        with contextlib.suppress(KVBridgeError):
            call("forgetting a peer", lambda: self._agent.lib.remove_remote_agent(self.name))

    def _prepare(self, place: Place) -> Any:
        if place.metadata and place.digest not in self._learned:
            self._learn("learning of a peer's memory", place.metadata)
        prepare = self._agent.lib.prep_xfer_dlist
        found = call("preparing a peer's memory", lambda: prepare(self.name, place.table(), place.kind))
        self._learned.add(place.digest)
        return found

    def _learn(self, what: str, metadata: bytes) -> None:
        name = call(what, lambda: self._agent.lib.add_remote_agent(metadata))
        if name not in (self.name, self.name.encode()):
            raise ProtocolError(f"{what}: the library knows it as {name!r}, its card names {self.name!r}")
