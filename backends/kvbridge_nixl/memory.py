"""Memory that the library knows: regions, registered once each, and descriptors of all their blocks, prepared once."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvbridge.memory import Pages
from kvbridge.memory.tensors import tensor_bytes
from kvbridge_nixl.library import call
from kvbridge_nixl.places import Place, encode_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvbridge.memory import Payload, Region

PIECE = 4 << 20
"""Bytes of the pieces into which a tensor is cut, so that a transfer can be made in steps."""


Kind = Literal["DRAM", "VRAM"]


def mem_type(device: str) -> Kind:
    """Name a device's kind of memory as NIXL does."""
    return "DRAM" if device.startswith("cpu") else "VRAM"


def _device_id(device: str) -> int:
    return int(device.partition(":")[2] or 0)


class Table:
    """Blocks of memory of one kind, in rows: address, bytes, device, stride and number of blocks.

    Attributes:
        rows: The rows, as NIXL's strided descriptors, shape `(n, 5)`.
        bases: Index of each row's block 0 among all blocks.
        kind: `"DRAM"` or `"VRAM"`.
        metadata: What a peer's library needs to reach this memory.
        digest: Names the metadata and the rows.
    """

    def __init__(self, agent: Any, kind: Kind, rows: NDArray[np.uint64], metadata: bytes) -> None:
        self.rows = rows
        self.kind = kind
        self.metadata = metadata
        self.bases = bases(rows)
        self.digest = hashlib.blake2b(metadata + rows.tobytes(), digest_size=16).digest()
        self._agent = agent
        self._handle: Any = None

    def handle(self) -> Any:
        """Return the prepared descriptors of all blocks, for this side of a transfer."""
        if self._handle is None:
            prepare = self._agent.prep_xfer_dlist
            self._handle = call("preparing memory", lambda: prepare("NIXL_INIT_AGENT", self.rows, self.kind))
        return self._handle

    def release(self) -> None:
        """Give the descriptors back."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.release()


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
        """Describe it for a peer."""
        table = self.table
        return Place(
            agent=self._memory.name,
            kind=table.kind,
            digest=table.digest,
            metadata=table.metadata,
            rows=table.rows.tobytes(),
            which=self.which,
            ids=encode_ids(self.ids),
            skip=skip,
        ).encode()

    def release(self) -> None:
        """Give back what was made for this payload alone."""
        self._memory.give_back(self.table)


class Memory:
    """All memory that one agent knows. Belongs to the endpoint's thread after set-up."""

    def __init__(self, agent: Any, name: str) -> None:
        self.name = name
        self._agent = agent
        self._regions: dict[tuple[Any, ...], int] = {}
        self._rows: dict[Kind, list[tuple[int, int, int, int, int]]] = {}
        self._tables: dict[Kind, Table] = {}
        self._single: dict[Table, Any] = {}
        self._registered: list[Any] = []

    def register(self, regions: Iterable[Region]) -> None:
        """Register regions that are not known yet. They stay registered as long as the agent lives."""
        new: dict[Kind, list[tuple[int, int, int, str]]] = {}
        for region in regions:
            key = (*region.identity, region.device)
            if key in self._regions:
                continue
            kind, device = mem_type(region.device), _device_id(region.device)
            rows = self._rows.setdefault(kind, [])
            self._regions[key] = len(rows)
            rows.append((region.address, region.page_bytes, device, region.block_stride, region.num_blocks))
            new.setdefault(kind, []).append((region.address, region.nbytes, device, ""))
        for kind, memory in new.items():
            self._registered.append(call("registering memory", partial(self._agent.register_memory, memory, kind)))
            old = self._tables.pop(kind, None)
            if old is not None:
                old.release()

    def lend(self, payload: Payload) -> Lent:
        """Describe a payload. A tensor's memory is registered for as long as it is lent."""
        if not isinstance(payload, Pages):
            return self._lend_tensor(payload)
        self.register(payload.regions)
        which = [self._regions[(*region.identity, region.device)] for region in payload.regions]
        return Lent(self, self._table(mem_type(payload.device)), which, payload.block_ids)

    def _table(self, kind: Kind) -> Table:
        if kind not in self._tables:
            rows = np.array(self._rows.get(kind, []), dtype=np.uint64).reshape(-1, 5)
            metadata = call("describing memory", self._agent.get_agent_metadata)
            self._tables[kind] = Table(self._agent, kind, rows, metadata)
        return self._tables[kind]

    def _lend_tensor(self, tensor: Any) -> Lent:
        kind, device, address, nbytes = _span(tensor)
        whole, rest = divmod(nbytes, PIECE)
        rows = [(address, PIECE, device, PIECE, whole)] if whole else []
        rows += [(address + whole * PIECE, rest, device, rest, 1)] if rest else []
        metadata, registered = b"", None
        if nbytes:
            register = self._agent.register_memory
            registered = call("registering a tensor", lambda: register([(address, nbytes, device, "")], kind))
            metadata = call(
                "describing a tensor",
                lambda: self._agent.get_partial_agent_metadata(registered, inc_conn_info=True),
            )
        table = Table(self._agent, kind, np.array(rows, dtype=np.uint64).reshape(-1, 5), metadata)
        self._single[table] = registered
        ids = [np.arange(row[4], dtype=np.int64) for row in rows]
        return Lent(self, table, range(len(rows)), ids)

    def give_back(self, table: Table) -> None:
        """Forget a table that was made for one tensor."""
        if table in self._single:  # not so when the agent has gone
            registered = self._single.pop(table)
            table.release()
            if registered is not None:
                call("forgetting a tensor", lambda: self._agent.deregister_memory(registered))

    def close(self) -> None:
        """Give everything back to the library."""
        for table in list(self._single):
            self.give_back(table)
        for table in self._tables.values():
            table.release()
        self._tables.clear()
        for registered in self._registered:
            call("forgetting memory", partial(self._agent.deregister_memory, registered))
        self._registered.clear()


def _span(tensor: Any) -> tuple[Kind, int, int, int]:
    """Return a tensor's kind of memory, device, address and bytes."""
    device = str(getattr(tensor, "device", "cpu"))
    if mem_type(device) == "VRAM":
        return "VRAM", _device_id(device), int(tensor.data_ptr()), int(tensor.nbytes)
    flat = tensor_bytes(tensor)
    return "DRAM", 0, int(flat.ctypes.data), int(flat.nbytes)
