"""`Agent`: one agent of the library with everything that is made of it.

An instance has an agent that peers reach into, whose name is on its card, and another one that begins transfers. The
second can be replaced. A transfer to a peer that hangs never ends in the library, and releasing it does not stop it:
only the end of its agent does. Such an agent is *condemned*: nothing new is begun with it, what can end ends, and then
it is destroyed, and with it what hangs.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

from kvbridge_nixl import library
from kvbridge_nixl.memory import Memory
from kvbridge_nixl.peers import Peer

if TYPE_CHECKING:
    from kvbridge_nixl.card import Card
    from kvbridge_nixl.moves import Transfer
    from kvbridge_nixl.options import NixlOptions

STUCK = 2.0
"""Seconds after which a transfer that was aborted and does not end counts as hanging."""


class Agent:
    """An agent, its memory and its peers. Belongs to the endpoint's thread after set-up.

    Attributes:
        name: Its name, which nobody ever had.
        lib: The library's object; None when it is gone.
        memory: What it knows of this process's memory.
        condemned: Whether nothing new is to be begun with it.
    """

    def __init__(self, api: Any, options: NixlOptions) -> None:
        self.name = uuid.uuid4().hex
        self.lib: Any = library.make_agent(api, self.name, options)
        self.memory = Memory(self.lib, self.name)
        self.condemned = False
        self._peers: dict[str, Peer] = {}
        self._transfers: set[Transfer] = set()

    def peer(self, card: Card) -> Peer:
        """Return a peer's agent, as the library knows it."""
        found = self._peers.get(card.name)
        if found is None:
            found = self._peers[card.name] = Peer(self.lib, self.name, card)
        return found

    def forget_peer(self, name: str) -> None:
        """Forget a peer, as soon as nothing moves to or from it any more."""
        peer = self._peers.pop(name, None)
        if peer is not None and self.lib is not None:
            peer.leave()

    def progress(self) -> None:
        """Let the library do what has come up."""
        library.call("making progress", self.lib.get_new_notifs)

    def began(self, transfer: Transfer) -> None:
        """Take note of a transfer under way."""
        self._transfers.add(transfer)

    def ended(self, transfer: Transfer) -> None:
        """Take note that a transfer has ended."""
        self._transfers.discard(transfer)

    def hangs(self, transfer: Transfer) -> bool:
        """Whether an aborted transfer hangs and is to be ended by force. True once nothing can move any more."""
        if transfer.aborted_at is None or time.monotonic() - transfer.aborted_at < STUCK:
            return False
        self.condemned = True
        if all(one.aborted_at is not None for one in self._transfers):
            self.close()
        return self.lib is None

    def close(self) -> None:
        """Give everything back, the agent last. What still moves is ended by its end. Idempotent."""
        agent, self.lib = self.lib, None
        if agent is None:
            return
        for transfer in list(self._transfers):
            transfer.let_go()
        self._transfers.clear()
        for peer in self._peers.values():
            peer.drop()
        self._peers.clear()
        with contextlib.suppress(Exception):  # whatever the library says: it is over
            self.memory.close()
        library.forget_agent(agent)
