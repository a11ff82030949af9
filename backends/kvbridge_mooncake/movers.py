"""`Mover`: an engine that begins transfers, and the peers that it has met. `Movers`: the one in use, and its heirs.

An instance has an engine that peers reach into, whose session is on its card, and another one that begins transfers.
The second is replaced, because the library remembers for ever what it learned of a session, also when another process
has that by now; and because only the end of an engine ends a transfer to a peer that hangs.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.abc import MoveState
from kvbridge.errors import PeerLostError
from kvbridge_mooncake.engine import Engine
from kvbridge_mooncake.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.abc import Task
    from kvbridge.memory import Region
    from kvbridge.threads import Pool
    from kvbridge_mooncake.card import Card
    from kvbridge_mooncake.options import MooncakeOptions
    from kvbridge_mooncake.transfer import Transfer

logger = logging.getLogger(__name__)

STUCK = 2.0
"""Seconds after which a transfer that was aborted and does not end counts as hanging."""

GREETING = 16
"""Bytes of a greeting: the name of an incarnation."""


class Peer:
    """A peer, as one mover knows it. Belongs to the endpoint's thread.

    Attributes:
        mover: Who knows it.
        session: Where its engine is reached.
    """

    def __init__(self, mover: Mover, card: Card, pool: Pool) -> None:
        self.mover = mover
        self.session = card.session
        self._name = card.name
        engine, greeting = mover.engine, card.greeting
        self._meeting: Task[bool] | None = pool.run(lambda: greet(engine, self.session, greeting, self._name))
        self._same = True

    def met(self) -> bool | None:
        """Say whether it is the peer of the card; None while that is not known.

        Raises:
            PeerLostError: Nobody answers.
        """
        if self._meeting is not None:
            if self._meeting.step() is not MoveState.DONE:
                return None
            self._same = self._meeting.result
            self._meeting = None
        return self._same


def greet(engine: Engine, session: str, greeting: int, name: str) -> bool:
    """Make sure that a peer answers, and who it is, before anything is moved. For a thread that may wait.

    The library is held up, for all peers, by one that accepts connections and says nothing; asking first does not hold
    it up. Then the greeting is read the way that everything is read later.

    Raises:
        PeerLostError: Nobody answers.
    """
    if not engine.probe(session):
        raise PeerLostError(f"nobody answers at {session}, the peer's transfer engine")
    found = np.zeros(GREETING, dtype=np.uint8)
    engine.register(found.ctypes.data, GREETING)
    try:
        read = engine.read_now(session, found.ctypes.data, greeting, GREETING)
    finally:
        engine.unregister(found.ctypes.data)
    return read and found.tobytes().hex() == name


class Mover:
    """An engine that begins transfers. Belongs to the endpoint's thread after set-up.

    Attributes:
        engine: The engine.
        memory: What it has registered. Over TCP memory of one's own need not be.
        condemned: Whether nothing new is to be begun with it.
    """

    def __init__(self, options: MooncakeOptions, pool: Pool) -> None:
        self.engine = Engine(options)
        self.memory = Memory(self.engine) if options.protocol == "rdma" else None
        self.condemned = False
        self._pool = pool
        self._peers: dict[str, Peer] = {}
        self._transfers: set[Transfer] = set()
        self._closing: Task[None] | None = None

    def peer(self, card: Card) -> Peer:
        """Return a peer; the first time it has to be met."""
        found = self._peers.get(card.name)
        if found is None:
            found = self._peers[card.name] = Peer(self, card, self._pool)
        return found

    def knows(self, session: str) -> bool:
        """Whether it was told of anybody at this session before."""
        return any(peer.session == session for peer in self._peers.values())

    def forget(self, name: str) -> None:
        """Meet a peer anew the next time."""
        self._peers.pop(name, None)

    def began(self, transfer: Transfer) -> None:
        """Take note of a transfer under way."""
        self._transfers.add(transfer)

    def ended(self, transfer: Transfer) -> None:
        """Take note that a transfer has ended."""
        self._transfers.discard(transfer)
        if self.condemned and not self._transfers:
            self.close()

    def condemn(self) -> None:
        """Begin nothing new with it, and end it when the last transfer has ended."""
        self.condemned = True
        if not self._transfers:
            self.close()

    def end_by_force(self, transfer: Transfer) -> None:
        """End a transfer that was aborted and hangs, as soon as what does not hang has ended."""
        if self._closing is not None or transfer.aborted_at is None:
            return
        if time.monotonic() - transfer.aborted_at < STUCK:
            return
        self.condemned = True
        if all(one.aborted_at is not None for one in self._transfers):
            logger.warning("a peer hangs: %d transfers are ended by the end of their engine", len(self._transfers))
            self.close()

    @property
    def still(self) -> bool:
        """Whether nothing of it can move any more, because its engine has ended."""
        return self._closing is not None and self._closing.step() is MoveState.DONE

    @property
    def closing(self) -> bool:
        """Whether its engine ends, or has ended."""
        return self._closing is not None

    def close(self) -> None:
        """End the engine, in the background. Idempotent."""
        if self._closing is None:
            self.condemned = True
            self._peers.clear()
            self._closing = self._pool.run(self.engine.close)


class Movers:
    """The engines that begin transfers: one, and before it those that are condemned and have not ended yet."""

    def __init__(self, options: MooncakeOptions, pool: Pool) -> None:
        self._options = options
        self._pool = pool
        self._movers: list[Mover] = []
        self._regions: list[Region] = []

    def register(self, regions: Sequence[Region]) -> None:
        """Register regions with whatever engine moves their pages."""
        self._regions.extend(regions)
        for mover in self._movers:
            if mover.memory is not None and not mover.closing:
                mover.memory.keep(regions)

    def get(self) -> Mover:
        """Return the one with which transfers are begun; a new one where the last one is condemned."""
        self._movers = [mover for mover in self._movers if not mover.still]
        if not self._movers or self._movers[-1].condemned:
            mover = Mover(self._options, self._pool)
            if mover.memory is not None:
                mover.memory.keep(self._regions)
            self._movers.append(mover)
        return self._movers[-1]

    def meet(self, card: Card) -> Mover | None:
        """Return one that has met a peer; None while they are meeting.

        Raises:
            PeerLostError: Nobody answers there, or somebody else.
        """
        mover = self.get()
        known_before = mover.knows(card.session)
        peer = mover.peer(card)
        try:
            same = peer.met()
        except PeerLostError:
            mover.forget(card.name)
            raise
        if same is None or same:
            return mover if same else None
        mover.forget(card.name)
        if not known_before and not mover.knows(card.session):
            raise PeerLostError(f"somebody else answers at {card.session}: the peer is gone")
        mover.condemn()  # it remembers who was there before
        return self.meet(card)

    def forget(self, name: str) -> None:
        """Meet a peer anew the next time."""
        for mover in self._movers:
            mover.forget(name)

    def close(self) -> None:
        """End them all, in the background. Idempotent."""
        for mover in self._movers:
            mover.close()

    @property
    def still(self) -> bool:
        """Whether all have ended."""
        return all(mover.still for mover in self._movers)
