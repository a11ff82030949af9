"""Memory that an engine knows: runs of bytes, each registered once, and payloads described for a peer."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvbridge.errors import UnsupportedError
from kvbridge.memory import Pages
from kvbridge.memory.places import Place, digest_of, encode_ids
from kvbridge.memory.tensors import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvbridge.memory import Payload, Region

Span = tuple[int, int]
"""Address and bytes."""

Row = tuple[int, int, int, int, int]
"""As in a `Place`."""


class Blocks:
    """Where a payload's blocks are.

    Attributes:
        rows: For each region its row of a `Place`, shape `(n, 5)`.
        ids: For each region its blocks, in order.
        gpu: Whether they are in GPU memory.
    """

    def __init__(self, payload: Payload) -> None:
        found: list[Row]
        if isinstance(payload, Pages):
            found = [
                (r.address, r.page_bytes, _number(r.device), r.block_stride, r.num_blocks) for r in payload.regions
            ]
            self.ids = list(payload.block_ids)
            kinds = {region.device.partition(":")[0] for region in payload.regions}
            if len(kinds) > 1:
                raise UnsupportedError("some pages are in host memory and some on a GPU: hand them over apart", "cuda")
            self.gpu = "cuda" in kinds
        else:
            address, nbytes, device = _run(payload)
            found = [(address, nbytes, _number(device), nbytes, 1)] if nbytes else []
            self.ids = [np.zeros(1, dtype=np.int64)] * len(found)
            self.gpu = device.startswith("cuda")
        self.rows = np.array(found, dtype=np.uint64).reshape(-1, 5)

    def spans(self) -> list[Span]:
        """Return the runs of memory that they lie in."""
        found = []
        for address, nbytes, _, stride, count in self.rows.tolist():
            found.append((address, (count - 1) * stride + nbytes))
        return merged(found)


class Registrar(Protocol):
    """Who knows memory: an engine, or a client of the store."""

    def register(self, address: int, nbytes: int) -> None:
        """Register memory."""

    def unregister(self, address: int) -> None:
        """Forget memory."""


class Memory:
    """What an engine has registered. Any thread may use it.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Registrar) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: list[Span] = []
        self._used: Counter[Span] = Counter()

    def keep(self, regions: Iterable[Region]) -> None:
        """Register regions for the engine's life.

        Raises:
            TransportError: The library refuses them.
        """
        with self._lock:
            for span in merged((region.address, region.nbytes) for region in regions):
                if _around(span, self._kept) is None:
                    self._engine.register(*span)
                    self._kept.append(span)

    def lend(self, blocks: Blocks) -> list[Span]:
        """Register what a payload lies in, as far as it is not; return what `take_back` is to be told.

        Raises:
            TransportError: The library refuses it.
        """
        with self._lock:
            lent = []
            for span in blocks.spans():
                if _around(span, self._kept) is not None:
                    continue
                known = _around(span, self._used)
                if known is None:
                    self._engine.register(*span)
                self._used[known or span] += 1
                lent.append(known or span)
            return lent

    def take_back(self, lent: Sequence[Span]) -> None:
        """Forget what was registered for a payload alone."""
        with self._lock:
            for span in lent:
                self._used[span] -= 1
                if not self._used[span]:
                    del self._used[span]
                    self._engine.unregister(span[0])


def place_of(owner: str, blocks: Blocks, skip: int = 0) -> bytes:
    """Describe a payload for a peer.

    Raises:
        CapacityError: The description is too long for one message.
    """
    rows = blocks.rows.tobytes()
    return Place(
        owner=owner,
        kind="VRAM" if blocks.gpu else "DRAM",
        digest=digest_of(b"", rows),
        metadata=b"",
        rows=rows,
        which=tuple(range(len(blocks.rows))),
        ids=encode_ids(blocks.ids),
        skip=skip,
    ).encode()


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the least spans that cover these, none of which touch."""
    found: list[Span] = []
    for address, nbytes in sorted(spans):
        start, length = found[-1] if found else (0, 0)
        if found and address <= start + length:
            found[-1] = start, max(length, address + nbytes - start)
        else:
            found.append((address, nbytes))
    return found


def cut(sizes: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut runs of bytes that are longer than `most`.

    Returns:
        For each piece the index of its run, where in it it starts, and its bytes.
    """
    counts = -(-sizes // most)
    which = np.repeat(np.arange(len(sizes)), counts)
    starts = (np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
    return which, starts, np.minimum(sizes[which] - starts, most)


def _around(span: Span, known: Iterable[Span]) -> Span | None:
    """Return one that covers a span."""
    end = span[0] + span[1]
    return next(((start, length) for start, length in known if start <= span[0] and end <= start + length), None)


def _run(tensor: Any) -> tuple[int, int, str]:
    device = str(getattr(tensor, "device", "cpu"))
    if device.startswith("cuda"):
        return int(tensor.data_ptr()), int(tensor.nbytes), device
    flat: NDArray[np.uint8] = tensor_bytes(tensor)
    return int(flat.ctypes.data), int(flat.nbytes), "cpu"


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)
