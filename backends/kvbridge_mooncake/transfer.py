"""`Transfer`: runs of bytes on their way between two engines, a bounded number at a time, each with its own handle.

The library's batches do not say when the last of their runs has ended, nor that others go on when one has failed. So
each run is a batch, and the transfer has ended when every run has.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.abc import Move, MoveState
from kvbridge.errors import KVBridgeError, PeerLostError, ProtocolError
from kvbridge.transfer import cancelled
from kvbridge_mooncake.memory import cut

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbridge.memory.places import Place
    from kvbridge_mooncake.card import Card
    from kvbridge_mooncake.memory import Blocks, Span
    from kvbridge_mooncake.movers import Mover, Movers

RUN_BYTES = 8 << 20
"""Bytes of a run at most."""

WINDOW = 32
"""Runs under way at a time."""

LOOKS = 4
"""Looks at what is under way before the thread turns to other work."""

LOOK_WAIT = 0.00005
"""Seconds between two looks."""

Runs = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]"]
"""Local address, peer's address and bytes of each run."""


class Transfer(Move):
    """Bytes on their way.

    Args:
        movers: The engines that may move them.
        card: The peer's.
        operation: `"READ"` or `"WRITE"`.
        blocks: The local side.
        place: The peer's side.
        skip: First blocks of every local region to leave out.

    Attributes:
        aborted_at: When it was asked to end; None if it was not.
    """

    def __init__(self, movers: Movers, card: Card, operation: str, blocks: Blocks, place: Place, skip: int) -> None:
        self.aborted_at: float | None = None
        self._movers = movers
        self._card = card
        self._operation = operation
        self._blocks = blocks
        self._runs = runs(blocks, place, skip)
        self._position = 0
        self._flying: list[int] = []
        self._mover: Mover | None = None
        self._lent: list[Span] = []
        self._error: KVBridgeError | None = None

    def step(self) -> MoveState:
        """Look after what is under way, then begin more."""
        if self._mover is None:
            return self._meet()
        if self._mover.closing:
            return self._end_with(self._mover)
        self._look(self._mover)
        more = self._position < len(self._runs[0]) and self.aborted_at is None
        if more and len(self._flying) < WINDOW:
            self._begin(self._mover)
            return MoveState.AGAIN
        if self._flying:
            self._mover.end_by_force(self)
            return MoveState.WAIT
        self._over(self._mover)
        return self._outcome()

    def abort(self) -> None:
        """Begin nothing more. What is under way is waited for, or ended by force."""
        if self.aborted_at is None:
            self.aborted_at = time.monotonic()

    def _meet(self) -> MoveState:
        if self.aborted_at is not None:
            raise cancelled("the transfer")
        if not len(self._runs[0]):
            return MoveState.DONE
        mover = self._movers.meet(self._card)
        if mover is None:
            return MoveState.WAIT
        if mover.memory is not None:
            self._lent = mover.memory.lend(self._blocks)
        self._mover = mover
        mover.began(self)
        return MoveState.AGAIN

    def _begin(self, mover: Mover) -> None:
        local, remote, sizes = self._runs
        for index in range(self._position, min(self._position + WINDOW - len(self._flying), len(local))):
            arguments = self._card.session, int(local[index]), int(remote[index]), int(sizes[index])
            try:
                self._flying.append(mover.engine.begin(self._operation, *arguments))
            except KVBridgeError as error:
                self._failed(error)
                return
            self._position = index + 1
        if self._position == len(local):
            for _ in range(LOOKS):
                self._look(mover)
                if not self._flying:
                    return
                time.sleep(LOOK_WAIT)

    def _look(self, mover: Mover) -> None:
        for handle in list(self._flying):
            try:
                ended = mover.engine.poll(handle)
            except KVBridgeError as error:
                self._failed(error)
                ended = True
            if ended:
                self._flying.remove(handle)

    def _failed(self, error: KVBridgeError) -> None:
        """Remember the first error, and begin no more: with a peer that hangs each run would take its time to fail."""
        self._error = self._error or error
        self._movers.forget(self._card.name)
        self.abort()

    def _end_with(self, mover: Mover) -> MoveState:
        self._flying.clear()
        if not mover.still:
            return MoveState.WAIT
        self._error = self._error or PeerLostError("the peer hangs: the transfer was ended by force")
        self._over(mover)
        return self._outcome()

    def _over(self, mover: Mover) -> None:
        if mover.memory is not None:
            mover.memory.take_back(self._lent)
        mover.ended(self)

    def _outcome(self) -> MoveState:
        if self._error is not None:
            raise self._error
        if self._position < len(self._runs[0]):
            raise cancelled("the transfer")
        return MoveState.DONE


def runs(blocks: Blocks, place: Place, skip: int) -> Runs:
    """Pair the blocks of both sides, and join those that are neighbours on both.

    Raises:
        ProtocolError: The peer's side does not have the shape of the local one.
    """
    theirs, their_ids = place.table().astype(np.int64), place.blocks()
    if len(their_ids) != len(blocks.ids):
        raise ProtocolError(f"the peer named {len(their_ids)} regions, the value has {len(blocks.ids)}")
    parts = []
    for row, ids, which, others in zip(blocks.rows.astype(np.int64), blocks.ids, place.which, their_ids, strict=True):
        there = theirs[which]
        size = int(row[1])
        if len(ids) - skip != len(others) or size != int(there[1]):
            raise ProtocolError(
                f"the peer named {len(others)} blocks of {int(there[1])} bytes for {max(0, len(ids) - skip)} of {size}"
            )
        if len(others) and int(others.max()) >= int(there[4]):
            raise ProtocolError("the peer named a block beyond the end of its region")
        parts.append((row[0] + ids[skip:] * row[3], there[0] + others * there[3], np.full(len(others), size)))
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    local, remote, sizes = (np.concatenate([part[index] for part in parts]) for index in range(3))
    local, remote, sizes = _joined(local, remote, sizes)
    index, starts, lengths = cut(sizes, RUN_BYTES)
    return local[index] + starts, remote[index] + starts, lengths


def _joined(local: NDArray[np.int64], remote: NDArray[np.int64], sizes: NDArray[np.int64]) -> Runs:
    order = np.argsort(local, kind="stable")
    local, remote, sizes = local[order], remote[order], sizes[order]
    apart = (np.diff(local) != sizes[:-1]) | (np.diff(remote) != sizes[:-1])
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1)) if len(local) else np.empty(0, dtype=np.int64)
    lengths = np.add.reduceat(sizes, starts) if len(starts) else sizes
    return local[starts], remote[starts], lengths
