"""Transfers of the library, in bounded chunks, and what is held and landed."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.abc import Held, Landing, Move, MoveState
from kvbridge.errors import KVBridgeError, PeerLostError, ProtocolError
from kvbridge.transfer import cancelled
from kvbridge_nixl.library import call
from kvbridge_nixl.memory import bases

if TYPE_CHECKING:
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload
    from kvbridge_nixl.agent import Agent
    from kvbridge_nixl.backend import NixlBackend
    from kvbridge_nixl.memory import Lent
    from kvbridge_nixl.peers import Peer
    from kvbridge_nixl.places import Place

CHUNK_BYTES = 16 << 20
"""Bytes that are posted at a time: between processes of one host posting copies them, a few milliseconds' worth."""

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
    """

    def __init__(self, agent: Agent, peer: Peer, operation: str, lent: Lent, place: Place, skip: int) -> None:
        self.aborted_at: float | None = None
        self._agent = agent
        self._peer = peer
        self._operation = operation
        self._sides = lent.table, place
        self._local, self._remote, self._sizes = _pairs(lent, place, skip)
        self._position = 0
        self._flying: list[Any] = []
        self._error: KVBridgeError | None = None
        self._over = False
        peer.moving += 1
        agent.began(self)

    def step(self) -> MoveState:
        """Look after what is under way, then post one chunk."""
        self._look()
        if self._error is None and self.aborted_at is not None:
            self._error = cancelled("the transfer")
        more = self._position < len(self._local) and self._error is None
        if more and len(self._flying) < DEPTH:
            self._post()
            return MoveState.AGAIN
        if self._flying and not self._agent.hangs(self):
            return MoveState.WAIT
        self._end()
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
            with contextlib.suppress(Exception):  # it may be gone with its peer
                handle.release()
        self._error = self._error or PeerLostError("the peer hangs: the transfer was ended by force")

    def _post(self) -> None:
        start = self._position
        end = min(start + CHUNK_BLOCKS, len(self._local))
        total = np.cumsum(self._sizes[start:end])
        end = start + max(1, int(np.searchsorted(total, CHUNK_BYTES, side="right")))
        self._position = end
        table, place = self._sides
        try:
            handle = call(
                "preparing a transfer",
                lambda: self._agent.lib.make_prepped_xfer(
                    self._operation,
                    table.handle(),
                    self._local[start:end],
                    self._peer.handle(place),
                    self._remote[start:end],
                ),
            )
            self._flying.append(handle)
            if call("posting a transfer", lambda: self._agent.lib.transfer(handle)) == "DONE":
                self._flying.remove(handle)
                handle.release()
        except KVBridgeError as error:
            self._error = self._error or error

    def _look(self) -> None:
        for handle in list(self._flying):
            try:
                over = call("a transfer", partial(self._agent.lib.check_xfer_state, handle)) != "PROC"
            except KVBridgeError as error:
                self._error = self._error or error
                over = True
            if over:
                self._flying.remove(handle)
                handle.release()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._agent.ended(self)
            if self._agent.lib is not None:
                self._peer.ended()


def _pairs(lent: Lent, place: Place, skip: int) -> tuple[Any, Any, Any]:
    """Return index of the local block, index of the peer's block, and bytes, for each block that moves."""
    theirs = place.table()
    their_bases = bases(theirs)
    blocks = place.blocks()
    if len(blocks) != len(lent.ids):
        raise ProtocolError(f"the peer named {len(blocks)} regions, the value has {len(lent.ids)}")
    parts = []
    for row, ids, their_row, their_ids in zip(lent.which, lent.ids, place.which, blocks, strict=True):
        mine = ids[skip:]
        size = int(lent.table.rows[row, 1])
        if len(mine) != len(their_ids) or size != int(theirs[their_row, 1]):
            raise ProtocolError(
                f"the peer named {len(their_ids)} blocks of {int(theirs[their_row, 1])} bytes for {len(mine)} of {size}"
            )
        if len(their_ids) and int(their_ids.max()) >= int(theirs[their_row, 4]):
            raise ProtocolError("the peer named a block beyond the end of its region")
        order = np.argsort(mine, kind="stable")  # neighbours next to each other: the library merges them
        parts.append((lent.table.bases[row] + mine[order], their_bases[their_row] + their_ids[order], size))
    if not parts:
        empty = np.empty(0, dtype=np.int32)
        return empty, empty, empty
    local = np.concatenate([part[0] for part in parts]).astype(np.int32)
    remote = np.concatenate([part[1] for part in parts]).astype(np.int32)
    sizes = np.concatenate([np.full(len(part[0]), part[2], dtype=np.int64) for part in parts])
    return local, remote, sizes


class HeldPages(Held):
    """A payload that peers read out of, or that is written to where they want it."""

    def __init__(self, backend: NixlBackend, payload: Payload) -> None:
        self._backend = backend
        self._payload = payload  # only its addresses are used: keep it alive
        self._shown: Lent | None = backend.main.memory.lend(payload) if backend.reads else None
        self.descriptor = b"" if self._shown is None else self._shown.place()
        self._lent: dict[Agent, Lent] = {}

    def step(self) -> MoveState:
        """Nothing is to be prepared."""
        return MoveState.DONE

    def write(self, link: Link, accepted: bytes) -> Move:
        """Write to where a consumer's landing said."""
        agent = self._backend.mover()
        peer = agent.peer(self._backend.card_of(link))
        place = peer.read(accepted)
        if agent not in self._lent:
            self._lent[agent] = agent.memory.lend(self._payload)
        return Transfer(agent, peer, "WRITE", self._lent[agent], place, place.skip)

    def release(self) -> None:
        """Give back what was registered for this payload alone."""
        for lent in (self._shown, *self._lent.values()):
            if lent is not None:
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
        """Give back what was registered for this landing alone."""
        self._lent.release()


class ReadFrom(Landing):
    """A value that is read out of a producer's memory."""

    def __init__(self, backend: NixlBackend, link: Link, descriptor: bytes, out: Payload, skip: int) -> None:
        agent = backend.mover()
        peer = agent.peer(backend.card_of(link))
        place = peer.read(descriptor)
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
