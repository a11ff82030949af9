"""What is held and landed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.abc import Held, Landing, Move, MoveState
from kvbridge.memory.places import decode_place
from kvbridge_mooncake.memory import Blocks, place_of
from kvbridge_mooncake.transfer import Transfer

if TYPE_CHECKING:
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload
    from kvbridge_mooncake.backend import MooncakeBackend


class HeldPages(Held):
    """A payload that peers read out of, or that is written to where they want it."""

    def __init__(self, backend: MooncakeBackend, payload: Payload) -> None:
        self._backend = backend
        self._payload = payload  # only its addresses are used: keep it alive
        self._blocks = Blocks(payload)
        self.descriptor = b""
        if backend.reads:
            self.descriptor = place_of(backend.name_of_this, self._blocks)
        self._lent = backend.memory.lend(self._blocks) if backend.reads else []

    def step(self) -> MoveState:
        """Nothing is to be prepared."""
        return MoveState.DONE

    def write(self, link: Link, accepted: bytes) -> Move:
        """Write to where a consumer's landing said."""
        card = self._backend.card_of(link)
        place = decode_place(accepted, card.name)
        return Transfer(self._backend.movers, card, "WRITE", self._blocks, place, place.skip)

    def release(self) -> None:
        """Let peers reach it no more, as far as it was registered for this alone."""
        self._backend.memory.take_back(self._lent)
        self._payload, self._lent = None, []


class WrittenTo(Landing):
    """Memory that a producer writes to."""

    def __init__(self, backend: MooncakeBackend, out: Payload, skip: int) -> None:
        self._memory = backend.memory
        self._out = out  # it may be written to until this landing has ended: keep it alive
        blocks = Blocks(out)
        self.descriptor = place_of(backend.name_of_this, blocks, skip)
        self._lent = self._memory.lend(blocks)

    def step(self) -> MoveState:
        """Nothing is to be done here: the library's threads take what comes."""
        return MoveState.WAIT

    def abort(self) -> None:
        """Nothing here can stop the producer: the core asks him."""

    def release(self) -> None:
        """Let peers reach it no more."""
        self._memory.take_back(self._lent)


class ReadFrom(Landing):
    """A value that is read out of a producer's memory."""

    def __init__(self, backend: MooncakeBackend, link: Link, descriptor: bytes, out: Payload, skip: int) -> None:
        card = backend.card_of(link)
        place = decode_place(descriptor, card.name)
        self._out = out
        self._transfer = Transfer(backend.movers, card, "READ", Blocks(out), place.less(skip) if skip else place, 0)

    def step(self) -> MoveState:
        """Read some."""
        return self._transfer.step()

    def abort(self) -> None:
        """Read nothing more."""
        self._transfer.abort()
