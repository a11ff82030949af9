"""Memory that the library knows: regions, registered once each, and descriptors of all their blocks, prepared once."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.errors import KVBridgeError, UnsupportedError
from kvbridge.memory import Pages
from kvbridge.memory.places import Place, digest_of, encode_ids
from kvbridge.memory.tensors import tensor_bytes
from kvbridge_nixl.library import call, give_back
from kvbridge_nixl.spans import Kind, Span, Spans, joined, merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvbridge.memory import Payload, Region
    from kvbridge_nixl.agent import Agent

logger = logging.getLogger(__name__)

PIECE = 4 << 20
"""Bytes of the pieces into which a tensor is cut, so that a transfer can be made in steps."""

MAX_PIECES = 2048
"""Pieces of a tensor at most, larger ones where it is large: each takes some bytes in the description for a peer."""

Row = tuple[int, int, int, int, int]


def mem_type(device: str) -> Kind:
    """Name a device's kind of memory as NIXL does."""
    return "DRAM" if device.startswith("cpu") else "VRAM"


def _device_id(device: str) -> int:
    return int(device.partition(":")[2] or 0)


class Table:
    """Blocks of memory of one kind, in rows: address, bytes, device, stride and number of blocks.

    Args:
        agent: Who knows the memory.
        kind: `"DRAM"` or `"VRAM"`.
        rows: The rows.
        spans: What they lie in.
        own: Spans that were registered for this table alone.

    Attributes:
        rows: The rows, as NIXL's strided descriptors, shape `(n, 5)`.
        bases: Index of each row's block 0 among all blocks.
        metadata: What a peer's library needs to reach this memory.
        digest: Names the metadata and the rows.
    """

    def __init__(
        self, agent: Agent, kind: Kind, rows: Sequence[Row], spans: Sequence[Span], own: Sequence[Span] = ()
    ) -> None:
        self.rows = np.array(rows, dtype=np.uint64).reshape(-1, 5)
        self.kind = kind
        self.own = tuple(own)
        self.metadata = agent.memory.spans.metadata(kind, spans) if spans else b""
        self.bases = bases(self.rows)
        self.digest = digest_of(self.metadata, self.rows.tobytes())
        self._agent = agent
        self._handle: Any = None

    def handle(self) -> Any:
        """Return the prepared descriptors of all blocks, for this side of a transfer."""
        if self._handle is None:
            prepare = self._agent.lib.prep_xfer_dlist
            self._handle = call("preparing memory", lambda: prepare("NIXL_INIT_AGENT", self.rows, self.kind))
        return self._handle

    def release(self) -> None:
        """Give the descriptors back."""
        handle, self._handle = self._handle, None
        if handle is not None:
            give_back(handle)


def bases(rows: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the index of each row's block 0."""
    counts = rows[:, 4].astype(np.int64)
    return np.concatenate(([0], np.cumsum(counts)[:-1])) if len(counts) else counts


class Lent:
    """A payload with the descriptors of its memory.

    Attributes:
        table: Where its blocks are.
        which: Row of each region.
        ids: Block ids in each region.
    """

    def __init__(self, memory: Memory, table: Table, which: Sequence[int], ids: Sequence[NDArray[np.int64]]) -> None:
        self.table = table
        self.which = tuple(which)
        self.ids = tuple(ids)
        self._memory = memory

    def place(self, skip: int = 0) -> bytes:
        """Describe it for a peer.

        Raises:
            CapacityError: The description is too long for one message. What is lent was given back.
        """
        table = self.table
        try:
            return Place(
                owner=self._memory.name,
                kind=table.kind,
                digest=table.digest,
                metadata=table.metadata,
                rows=table.rows.tobytes(),
                which=self.which,
                ids=encode_ids(self.ids),
                skip=skip,
            ).encode()
        except KVBridgeError:
            self.release()
            raise

    def release(self) -> None:
        """Give back what was made for this payload alone. Idempotent."""
        self._memory.take_back(self.table)


class Memory:
    """All memory that one agent knows. Belongs to the endpoint's thread after set-up.

    Attributes:
        name: The agent's name.
        spans: What is registered.
    """

    def __init__(self, agent: Agent) -> None:
        self.name = agent.name
        self.spans = Spans(agent)
        self._agent = agent
        self._row_of: dict[tuple[Any, ...], int] = {}
        self._rows: dict[Kind, list[Row]] = {}
        self._long: dict[Kind, list[Span]] = {}
        self._tables: dict[Kind, list[Table]] = {}
        self._single: set[Table] = set()
        self._lock = threading.Lock()  # regions are registered by the owner's thread

    def register(self, regions: Iterable[Region]) -> None:
        """Register regions that are not known yet. They stay registered as long as the agent lives.

        Raises:
            ConfigError: Some lie partly in others that were registered before.
            TransportError: The library refuses them.
        """
        with self._lock:
            new: dict[Kind, dict[tuple[Any, ...], Region]] = {}
            for region in regions:
                if _key(region) not in self._row_of:
                    new.setdefault(mem_type(region.device), {})[_key(region)] = region
            for kind, found in new.items():
                self._register(kind, found)

    def _register(self, kind: Kind, regions: dict[tuple[Any, ...], Region]) -> None:
        known = self._long.setdefault(kind, [])
        spans = joined(known, map(_span, regions.values()))
        self.spans.add(kind, spans)
        known.extend(spans)
        rows = self._rows.setdefault(kind, [])
        first = len(rows)
        rows.extend(map(_row, regions.values()))
        table = Table(self._agent, kind, rows, known)
        table.handle()  # now: later a tensor that lies in a region could be in the way
        self._tables.setdefault(kind, []).append(table)
        self._row_of.update((key, first + index) for index, key in enumerate(regions))

    def lend(self, payload: Payload) -> Lent:
        """Describe a payload. A tensor's memory, and that of regions nobody registered, is registered until it ends."""
        with self._lock:
            return self._lend_pages(payload) if isinstance(payload, Pages) else self._lend_tensor(payload)

    def _lend_pages(self, payload: Pages) -> Lent:
        keys = [_key(region) for region in payload.regions]
        kind = mem_type(payload.device)
        if any(mem_type(region.device) != kind for region in payload.regions):
            raise UnsupportedError("some pages are in host memory and some on a GPU: hand them over one by one", "cuda")
        if keys and all(key in self._row_of for key in keys):
            return Lent(self, self._tables[kind][-1], [self._row_of[key] for key in keys], payload.block_ids)
        rows = [_row(region) for region in payload.regions]
        return self._lend_once(kind, rows, merged(map(_span, payload.regions)), payload.block_ids)

    def _lend_tensor(self, tensor: Any) -> Lent:
        kind, device, address, nbytes = _run(tensor)
        piece = max(PIECE, -(-nbytes // MAX_PIECES))
        spans = [(address + start, min(piece, nbytes - start), device) for start in range(0, nbytes, piece)]
        rows = [(start, length, device, length, 1) for start, length, _ in spans]  # each is found by its own span
        return self._lend_once(kind, rows, spans, [np.zeros(1, dtype=np.int64)] * len(rows))

    def _lend_once(
        self, kind: Kind, rows: Sequence[Row], spans: Sequence[Span], ids: Sequence[NDArray[np.int64]]
    ) -> Lent:
        self.spans.add(kind, spans)
        try:
            table = Table(self._agent, kind, rows, spans, spans)
        except KVBridgeError:
            self.spans.remove(kind, spans)
            raise
        self._single.add(table)
        return Lent(self, table, range(len(rows)), ids)

    def take_back(self, table: Table) -> None:
        """Forget a table that was made for one payload."""
        with self._lock:
            if table not in self._single:  # it is of registered regions, or the agent has gone with it
                return
            self._single.discard(table)
            table.release()
            try:
                self.spans.remove(table.kind, table.own)
            except KVBridgeError:
                logger.exception("the library keeps memory registered that is not used any more")

    def close(self) -> None:
        """Give every descriptor back; what is registered goes with the agent."""
        for table in [*self._single, *(table for tables in self._tables.values() for table in tables)]:
            table.release()
        self._single.clear()
        self._tables.clear()


def _key(region: Region) -> tuple[Any, ...]:
    return (*region.identity, region.device)


def _span(region: Region) -> Span:
    return region.address, region.nbytes, _device_id(region.device)


def _row(region: Region) -> Row:
    return region.address, region.page_bytes, _device_id(region.device), region.block_stride, region.num_blocks


def _run(tensor: Any) -> tuple[Kind, int, int, int]:
    """Return a tensor's kind of memory, device, address and bytes."""
    device = str(getattr(tensor, "device", "cpu"))
    if mem_type(device) == "VRAM":
        return "VRAM", _device_id(device), int(tensor.data_ptr()), int(tensor.nbytes)
    flat = tensor_bytes(tensor)
    return "DRAM", 0, int(flat.ctypes.data), int(flat.nbytes)
