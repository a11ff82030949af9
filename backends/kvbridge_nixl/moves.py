"""What is held and landed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kvbridge.abc import Held, Landing, Move, MoveState
from kvbridge.errors import KVBridgeError
from kvbridge.memory.places import decode_place
from kvbridge_nixl.transfer import Transfer

if TYPE_CHECKING:
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload
    from kvbridge_nixl.agent import Agent
    from kvbridge_nixl.backend import NixlBackend
    from kvbridge_nixl.memory import Lent


class HeldPages(Held):
    """A payload that peers read out of, or that is written to where they want it."""

    def __init__(self, backend: NixlBackend, payload: Payload) -> None:
        self._backend = backend
        self._payload = payload  # only its addresses are used: keep it alive
        self._shown: Lent | None = backend.main.memory.lend(payload) if backend.reads else None
        self.descriptor = b"" if self._shown is None else self._shown.place()
        self._lent: dict[Agent, Lent] = {}
        if self._shown is not None:
            backend.showing(1)

    def step(self) -> MoveState:
        """Nothing is to be prepared."""
        return MoveState.DONE

    def write(self, link: Link, accepted: bytes) -> Move:
        """Write to where a consumer's landing said."""
        card = self._backend.card_of(link)
        place = decode_place(accepted, card.name)
        agent, peer = self._backend.movers.meet(card, place)
        if agent not in self._lent:
            self._lent[agent] = agent.memory.lend(self._payload)
        return Transfer(agent, peer, "WRITE", self._lent[agent], place, place.skip)

    def release(self) -> None:
        """Give back what was registered for this payload alone."""
        if self._shown is not None:
            self._shown.release()
            self._backend.showing(-1)
        for lent in self._lent.values():
            lent.release()
        self._payload, self._shown, self._lent = None, None, {}


class WrittenTo(Landing):
    """Memory that a producer writes to."""

    def __init__(self, backend: NixlBackend, out: Payload, skip: int) -> None:
        self._agent = backend.main
        self._out = out  # it may be written to until this landing has ended: keep it alive
        self._lent = self._agent.memory.lend(out)
        self.descriptor = self._lent.place(skip)

    def step(self) -> MoveState:
        """Let the library make progress: over TCP the side that is written to has a part in it."""
        self._agent.progress()
        return MoveState.WAIT

    def abort(self) -> None:
        """Nothing here can stop the producer: the core asks him."""

    def release(self) -> None:
        """Give back what was registered for this landing alone.

        A producer that died, or ended its transfer by force, may have left bytes in a connection: they are to land now,
        and not with the next call into the library, when the memory is used for something else.
        """
        with contextlib.suppress(KVBridgeError):
            self._agent.progress()
        self._lent.release()


class ReadFrom(Landing):
    """A value that is read out of a producer's memory."""

    def __init__(self, backend: NixlBackend, link: Link, descriptor: bytes, out: Payload, skip: int) -> None:
        card = backend.card_of(link)
        place = decode_place(descriptor, card.name)
        agent, peer = backend.movers.meet(card, place)
        self._out = out
        self._lent = agent.memory.lend(out)
        try:
            self._transfer = Transfer(agent, peer, "READ", self._lent, place.less(skip) if skip else place, 0)
        except BaseException:
            self._lent.release()
            raise

    def step(self) -> MoveState:
        """Read a chunk."""
        return self._transfer.step()

    def abort(self) -> None:
        """Read nothing more."""
        self._transfer.abort()

    def release(self) -> None:
        """Give back what was registered for this landing alone."""
        self._lent.release()
