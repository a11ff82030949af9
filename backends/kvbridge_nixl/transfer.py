"""`Transfer`: blocks on their way through the library, in bounded chunks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.abc import Move, MoveState
from kvbridge.errors import KVBridgeError, PeerLostError, ProtocolError, TransportError
from kvbridge.transfer import cancelled
from kvbridge_nixl.library import call, give_back, use_gpu
from kvbridge_nixl.memory import bases

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvbridge.memory.places import Place
    from kvbridge_nixl.agent import Agent
    from kvbridge_nixl.memory import Lent
    from kvbridge_nixl.peers import Peer

CHUNK_BYTES = 4 << 20
"""Bytes that are posted at a time. Between processes of one host posting copies them, a millisecond's worth. Over TCP
the library does not return while bytes go out, so that what is under way at a time bounds a slice."""

CHUNK_BLOCKS = 1024
"""Blocks that are posted at a time: each costs about a microsecond."""

DEPTH = 4
"""Chunks under way at a time, where posting does not wait."""


class Transfer(Move):
    """Blocks on their way between local memory and a peer's.

    Args:
        agent: What moves them.
        peer: The peer, as this agent knows it.
        operation: `"READ"` or `"WRITE"`.
        lent: The local side.
        place: The peer's side.
        skip: First blocks of every local region to leave out.

    Attributes:
        aborted_at: When it was asked to end; None if it was not.
        peer: The peer.
    """

    def __init__(self, agent: Agent, peer: Peer, operation: str, lent: Lent, place: Place, skip: int) -> None:
        self.aborted_at: float | None = None
        self.peer = peer
        self._agent = agent
        self._operation = operation
        self._sides = lent.table, place
        self._blocks = pair(lent, place, skip)
        self._position = 0
        self._flying: list[Any] = []
        self._error: KVBridgeError | None = None
        agent.began(self)

    def step(self) -> MoveState:
        """Look after what is under way, then post one chunk."""
        self._look()
        if self._error is None and self.aborted_at is not None:
            self._error = cancelled("the transfer")
        more = self._position < len(self._blocks[0]) and self._error is None
        if more and len(self._flying) < DEPTH:
            self._post()
            return MoveState.AGAIN
        if self._flying:
            self._agent.end_by_force(self)
        if self._flying or (self._agent.lib is None and not self._agent.still):
            return MoveState.WAIT
        self._agent.ended(self)
        if self._error is not None:
            raise self._error
        return MoveState.DONE

    def abort(self) -> None:
        """Post nothing more. What is under way is waited for, or ended by force."""
        if self.aborted_at is None:
            self.aborted_at = time.monotonic()

    def let_go(self) -> None:
        """Give up what is under way: the agent goes, and nothing moves after that."""
        flying, self._flying = self._flying, []
        for handle in flying:
            give_back(handle)
        self._error = self._error or PeerLostError("the peer hangs: the transfer was ended by force")

    def _post(self) -> None:
        local, remote, sizes = self._blocks
        start = self._position
        total = np.cumsum(sizes[start : start + CHUNK_BLOCKS])
        end = start + max(1, int(np.searchsorted(total, CHUNK_BYTES, side="right")))
        self._position = end
        table, place = self._sides
        lib = self._agent.lib
        if table.kind == "VRAM":
            use_gpu(int(table.rows[0, 2]))

        def make() -> Any:
            there = self.peer.handle(place)
            return lib.make_prepped_xfer(self._operation, table.handle(), local[start:end], there, remote[start:end])

        try:
            handle = call("preparing a transfer", make)
        except KVBridgeError as error:
            self._failed(error)
        else:
            self._flying.append(handle)
            self._settle(handle, "posting a transfer", lib.transfer)

    def _look(self) -> None:
        for handle in list(self._flying):
            self._settle(handle, "a transfer", self._agent.lib.check_xfer_state)

    def _settle(self, handle: Any, what: str, ask: Callable[[Any], str]) -> None:
        """Ask the library how a chunk stands, and give it back if it has ended."""
        try:
            state = call(what, lambda: ask(handle))
            if state not in ("DONE", "PROC"):
                raise TransportError(f"{what}: NIXL reported the state {state}")
        except KVBridgeError as error:
            self._failed(error)
            state = "ERR"
        if state != "PROC":
            self._flying.remove(handle)
            give_back(handle)

    def _failed(self, error: KVBridgeError) -> None:
        """Remember the first error. What else is under way is to end, too."""
        self._error = self._error or error
        if isinstance(error, PeerLostError) and self._agent.lib is not None:
            self._agent.forget_peer(self.peer.name, broken=True)
        self.abort()


def pair(lent: Lent, place: Place, skip: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Return index of the local block, index of the peer's block, and bytes, for each block that moves.

    Raises:
        ProtocolError: The peer's side does not have the shape of the local one.
    """
    theirs = place.table()
    their_bases = bases(theirs)
    blocks = place.blocks()
    if len(blocks) != len(lent.ids):
        raise ProtocolError(f"the peer named {len(blocks)} regions, the value has {len(lent.ids)}")
    orders: dict[int, NDArray[np.int64]] = {}
    parts = []
    for row, ids, their_row, their_ids in zip(lent.which, lent.ids, place.which, blocks, strict=True):
        size = int(lent.table.rows[row, 1])
        if len(ids) - skip != len(their_ids) or size != int(theirs[their_row, 1]):
            raise ProtocolError(
                f"the peer named {len(their_ids)} blocks of {int(theirs[their_row, 1])} bytes for "
                f"{max(0, len(ids) - skip)} of {size}"
            )
        if len(their_ids) and int(their_ids.max()) >= int(theirs[their_row, 4]):
            raise ProtocolError("the peer named a block beyond the end of its region")
        if id(ids) not in orders:  # regions of a group share their ids
            orders[id(ids)] = np.argsort(ids[skip:], kind="stable")  # neighbours get together: the library merges them
        order = orders[id(ids)]
        parts.append((lent.table.bases[row] + ids[skip:][order], their_bases[their_row] + their_ids[order], size))
    if not parts:
        empty = np.empty(0, dtype=np.int32)
        return empty, empty, empty.astype(np.int64)
    local = np.concatenate([part[0] for part in parts]).astype(np.int32)
    remote = np.concatenate([part[1] for part in parts]).astype(np.int32)
    sizes = np.concatenate([np.full(len(part[0]), part[2], dtype=np.int64) for part in parts])
    return local, remote, sizes
