"""Values that both sides of a test know without sending them: made from a seed, checked byte by byte.

`Pages` values live in a *cache*, as an engine's do: memory of one geometry that a node allocates and registers once.
Everything in it that no value was written to keeps a canary, so that a byte in a wrong place is found.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from kvbridge.conformance.checks import RequirementError
from kvbridge.memory import Pages, Region
from kvbridge.memory.cuda import settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CANARY = 0xA5
"""What every byte is that nobody wrote."""

MARK = 0x5A
"""What is written over memory that belongs to its owner again."""

SPARSE = 1021
"""Bytes from one mark to the next where marking has to be quicker than whoever may still write."""

CHANCE = 4
"""How many times as often as by chance a byte must be found to mean something."""


class TensorValue(msgspec.Struct, frozen=True, tag="tensor"):
    """A tensor.

    Attributes:
        seed: What its bytes are made from.
        shape: Extent of each axis.
        dtype: Name as numpy or torch spells it.
        library: `"numpy"` or `"torch"`.
        device: `"cpu"` or `"cuda:N"`; a tensor on a GPU is torch's.
    """

    seed: int
    shape: tuple[int, ...] = (1000,)
    dtype: str = "uint8"
    library: str = "numpy"
    device: str = "cpu"

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * _itemsize(self)


class Geometry(msgspec.Struct, frozen=True):
    """The shape of a cache.

    Attributes:
        page_bytes: Bytes of a page, for each region.
        num_blocks: Blocks of each region.
        gap: Bytes between two pages of a region.
        first_block: The lowest block that may be moved.
        device: Where it is.
    """

    page_bytes: tuple[int, ...] = (4096,)
    num_blocks: int = 64
    gap: int = 0
    first_block: int = 0
    device: str = "cpu"


class PagesValue(msgspec.Struct, frozen=True, tag="pages"):
    """Blocks of a cache.

    Attributes:
        seed: What their bytes are made from.
        ids: Block ids, the same in every region.
        geometry: The cache.
    """

    seed: int
    ids: tuple[int, ...] = (3, 1, 2)
    geometry: Geometry = Geometry()

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return len(self.ids) * sum(self.geometry.page_bytes)


Value: TypeAlias = TensorValue | PagesValue


def pattern(seed: int, nbytes: int) -> NDArray[np.uint8]:
    """Bytes that differ everywhere for two seeds."""
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), dtype=np.uint8).copy()


def packed(value: Value) -> NDArray[np.uint8]:
    """Return a value's bytes in the order of the wire: region after region, block after block."""
    found = pattern(value.seed, value.nbytes)
    if isinstance(value, TensorValue):
        return _plain(found, value.dtype)
    last = {block: index for index, block in enumerate(value.ids)}
    source = [last[block] for block in value.ids]  # a block that is named twice has one content
    start = 0
    for page_bytes in value.geometry.page_bytes:
        end = start + page_bytes * len(value.ids)
        rows = found[start:end].reshape(len(value.ids), page_bytes)
        rows[:] = rows[source].copy()
        start = end
    return found


class Cache:
    """The memory of one geometry, which belongs to a node until its end."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.written: set[int] = set()
        self._memory = [_allocate(geometry, size) for size in geometry.page_bytes]
        self.regions = tuple(
            _region(geometry, size, memory) for size, memory in zip(geometry.page_bytes, self._memory, strict=True)
        )

    def pages(self, ids: Sequence[int]) -> Pages:
        """Name blocks."""
        return Pages.of(self.regions, np.asarray(ids, dtype=np.int64))

    def write(self, ids: Sequence[int], content: NDArray[np.uint8] | None) -> None:
        """Write packed bytes into blocks, or the canary."""
        self.written.update(ids if content is not None else ())
        self.written.difference_update(ids if content is None else ())
        start = 0
        for index, size in enumerate(self.geometry.page_bytes):
            flat = self._read(index)
            rows = self._rows(flat, size)
            end = start + size * len(ids)
            if len(ids):
                rows[list(ids)] = CANARY if content is None else content[start:end].reshape(len(ids), size)
            self._write(index, flat)
            start = end

    def check(self, ids: Sequence[int], expected: NDArray[np.uint8], what: str) -> None:
        """Check blocks, and that nothing else was touched."""
        self.written.update(ids)
        start = 0
        for index, size in enumerate(self.geometry.page_bytes):
            flat = self._read(index)
            rows = self._rows(flat, size)
            end = start + size * len(ids)
            if len(ids):
                require_same(rows[list(ids)].reshape(-1), expected[start:end], f"{what}, region {index}")
            others = sorted(set(range(self.geometry.num_blocks)) - self.written)
            if not (rows[others] == CANARY).all():
                bad = [block for block in others if not (rows[block] == CANARY).all()]
                raise RequirementError(f"{what}: blocks {bad[:10]} of region {index} were written; nobody named them")
            self._check_gaps(flat, size, what)
            start = end

    def mark(self, ids: Sequence[int]) -> None:
        """Write some bytes over blocks, all over them, at once."""
        self.written.update(ids)
        for index, size in enumerate(self.geometry.page_bytes):
            flat = self._read(index)
            self._rows(flat, size)[np.ix_(np.asarray(ids), _marked(size))] = MARK
            self._write(index, flat)

    def check_marked(self, ids: Sequence[int], what: str) -> None:
        """Check that what was marked is as it was."""
        for index, size in enumerate(self.geometry.page_bytes):
            found = self._rows(self._read(index), size)[np.ix_(np.asarray(ids), _marked(size))]
            require_still_marked(found.reshape(-1), f"{what}, region {index}")

    def _check_gaps(self, flat: NDArray[np.uint8], size: int, what: str) -> None:
        if self.geometry.gap:
            gaps = flat.reshape(self.geometry.num_blocks, size + self.geometry.gap)[:, size:]
            if not (gaps == CANARY).all():
                raise RequirementError(f"{what}: bytes between two pages were written")

    def _rows(self, flat: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
        return flat.reshape(self.geometry.num_blocks, size + self.geometry.gap)[:, :size]

    def _read(self, index: int) -> NDArray[np.uint8]:
        memory = self._memory[index]
        found: NDArray[np.uint8] = memory if isinstance(memory, np.ndarray) else memory.cpu().numpy()
        return found

    def _write(self, index: int, flat: NDArray[np.uint8]) -> None:
        memory = self._memory[index]
        if not isinstance(memory, np.ndarray):
            memory.copy_(_torch().from_numpy(flat))
            settle(memory)


def mark_tensor(tensor: Any) -> None:
    """Write some bytes over a tensor, all over it, at once."""
    content = tensor_content(tensor)
    content[_marked(content.size)] = MARK


def check_tensor_marked(tensor: Any, what: str) -> None:
    """Check that what was marked is as it was."""
    content = tensor_content(tensor)
    require_still_marked(content[_marked(content.size)], what)


def require_still_marked(found: NDArray[np.uint8], what: str) -> None:
    """Fail if somebody has written over marks."""
    wrong = int((found != MARK).sum())
    if wrong:
        raise RequirementError(f"{what}: {wrong} of {found.size} marks in it were overwritten")


def _marked(size: int) -> NDArray[np.int64]:
    """The end first: it is written last."""
    return np.arange(size - 1, -1, -SPARSE)


def make_tensor(value: TensorValue, *, filled: bool) -> Any:
    """Allocate a tensor, with its value or with the canary."""
    content = packed(value) if filled else _plain(np.full(value.nbytes, CANARY, dtype=np.uint8), value.dtype)
    if value.library == "numpy":
        return content.view(np.dtype(value.dtype)).reshape(value.shape)
    torch = _torch()
    flat = torch.from_numpy(content).to(value.device)
    settle(flat)
    return flat.view(getattr(torch, value.dtype)).reshape(value.shape)


def tensor_content(tensor: Any) -> NDArray[np.uint8]:
    """Return a contiguous tensor's bytes."""
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1).view(np.uint8)
    found: NDArray[np.uint8] = tensor.detach().cpu().reshape(-1).view(_torch().uint8).numpy()
    return found


def require_same(found: NDArray[np.uint8], expected: NDArray[np.uint8], what: str) -> None:
    """Fail unless bytes are equal; say how many differ, where the first one is, and what they look like."""
    if found.size != expected.size:
        raise RequirementError(f"{what}: {found.size} bytes came, expected {expected.size}")
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        first = int(wrong[0])
        seen = found[wrong]
        late = int((seen == expected[wrong]).sum())  # it is looked at for the second time
        notes = [f"{late} of them came after the transfer had ended"] if late else []
        for byte, meaning in ((CANARY, "were never written"), (MARK, "are what was written over memory that was free")):
            count = int(((seen == byte) & (expected[wrong] != byte)).sum())
            if count > CHANCE * wrong.size / 256 + CHANCE:
                notes.append(f"{count} of them {meaning}")
        shown = f"found {seen[0]}, expected {expected[first]}" if seen[0] != expected[first] else "it came late"
        raise RequirementError(
            f"{what}: {wrong.size} of {expected.size} bytes are wrong, the first at {first} ({shown})"
            + "".join(f"; {note}" for note in notes)
        )


def _plain(content: NDArray[np.uint8], dtype: str) -> NDArray[np.uint8]:
    """A bool has two values."""
    return content & np.uint8(1) if dtype == "bool" else content


def _itemsize(value: TensorValue) -> int:
    if value.library == "numpy":
        return np.dtype(value.dtype).itemsize
    return int(getattr(_torch(), value.dtype).itemsize)


def _allocate(geometry: Geometry, size: int) -> Any:
    nbytes = geometry.num_blocks * (size + geometry.gap)
    if geometry.device == "cpu":
        return np.full(nbytes, CANARY, dtype=np.uint8)
    memory = _torch().full((nbytes,), CANARY, dtype=_torch().uint8, device=geometry.device)
    settle(memory)
    return memory


def _region(geometry: Geometry, size: int, memory: Any) -> Region:
    on_host = isinstance(memory, np.ndarray)
    return Region(
        address=memory.ctypes.data if on_host else memory.data_ptr(),
        page_bytes=size,
        block_stride=size + geometry.gap,
        num_blocks=geometry.num_blocks,
        first_block=geometry.first_block,
        device=geometry.device,
        host=memory if on_host else None,
    )


def _torch() -> Any:
    import torch  # noqa: PLC0415 - a peer: only values of torch's need it

    return torch
