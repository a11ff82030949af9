"""`Peer`: another process's agent, as the library here knows it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kvbridge.errors import KVBridgeError
from kvbridge_nixl.library import call
from kvbridge_nixl.places import decode_place

if TYPE_CHECKING:
    from kvbridge_nixl.card import Card
    from kvbridge_nixl.places import Place

MAX_TABLES = 64
"""Tables of one peer that are kept prepared: its cache's, and some tensors'."""


class Peer:
    """A peer's agent and what is known of its memory. Belongs to the endpoint's thread.

    Attributes:
        moving: Transfers under way; while there are any the agent stays loaded.
    """

    def __init__(self, agent: Any, own_name: str, card: Card) -> None:
        self.moving = 0
        self._agent = agent
        self._name = card.name
        self._is_self = card.name == own_name
        self._handles: dict[bytes, Any] = {}
        self._gone = False
        if not self._is_self:
            call("meeting a peer", lambda: agent.add_remote_agent(card.metadata))

    def read(self, descriptor: bytes) -> Place:
        """Read a description of the peer's memory."""
        return decode_place(descriptor, self._name)

    def handle(self, place: Place) -> Any:
        """Return the prepared descriptors of a table of the peer's."""
        found = self._handles.get(place.digest)
        if found is not None:
            return found
        if not self._is_self and place.metadata:
            call("learning of a peer's memory", lambda: self._agent.add_remote_agent(place.metadata))
        prepare = self._agent.prep_xfer_dlist
        found = call("preparing a peer's memory", lambda: prepare(self._name, place.table(), place.kind))
        self._handles[place.digest] = found
        while len(self._handles) > MAX_TABLES and not self.moving > 1:
            self._handles.pop(next(iter(self._handles))).release()
        return found

    def ended(self) -> None:
        """Take note that a transfer has ended."""
        self.moving -= 1
        if self._gone and not self.moving:
            self._unload()

    def leave(self) -> None:
        """Forget the peer, as soon as nothing moves any more."""
        self._gone = True
        if not self.moving:
            self._unload()

    def drop(self) -> None:
        """Give the prepared descriptors back: the agent goes."""
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            with contextlib.suppress(Exception):  # the library may have dropped it with the peer
                handle.release()

    def _unload(self) -> None:
        self.drop()
        if not self._is_self:
            with contextlib.suppress(KVBridgeError):
                call("forgetting a peer", lambda: self._agent.remove_remote_agent(self._name))
