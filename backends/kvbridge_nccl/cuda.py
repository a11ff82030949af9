"""Values in GPU memory, in chunks. Not yet run on a GPU.

Pages are gathered into, and scattered from, a buffer on the same GPU, on a stream of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbridge.memory import Pages
from kvbridge.memory.cuda import device_slices, own_stream
from kvbridge_nccl import library

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from kvbridge.memory import Payload
    from kvbridge_nccl.chunks import Chunk
    from kvbridge_nccl.staging import Staging


@dataclass(frozen=True)
class _Part:
    """Rows of a region, or bytes of a tensor."""

    rows: Any
    ids: NDArray[np.int64] | None
    nbytes: int


class CudaChunk:
    """Neighbouring parts of a value in GPU memory that travel together. See `Chunk`."""

    def __init__(self, parts: list[_Part], device: str) -> None:
        self._parts = parts
        self.device = device
        self.nbytes = sum(part.nbytes for part in parts)

    def gather(self, staging: Staging) -> None:
        """Copy it to where it is sent from, and wait for that."""
        self._copy(staging, out=True)

    def scatter(self, staging: Staging) -> None:
        """Copy it from where it was received, and wait for that."""
        self._copy(staging, out=False)

    def _copy(self, staging: Staging, *, out: bool) -> None:
        torch = library.load()
        buffer = staging.on(self.device, self.nbytes)
        with own_stream(self.device):
            start = 0
            for part in self._parts:
                self._copy_part(torch, part, buffer[start : start + part.nbytes], out=out)
                start += part.nbytes

    def _copy_part(self, torch: Any, part: _Part, packed: Any, *, out: bool) -> None:
        if part.ids is None:
            into, source = (packed, part.rows) if out else (part.rows, packed)
            into.copy_(source)
            return
        ids = torch.from_numpy(part.ids.copy()).to(self.device, non_blocking=True)
        pages = packed.view(len(part.ids), -1)
        if out:
            torch.index_select(part.rows, 0, ids, out=pages)
        else:
            part.rows.index_copy_(0, ids, pages)


def cut(payload: Payload, most: int) -> Iterator[Chunk | CudaChunk]:
    """Cut a value into chunks, at the same places as in host memory."""
    device = str(payload.device)
    parts: list[_Part] = []
    nbytes = 0
    for part in _parts(payload, most):
        if parts and nbytes + part.nbytes > most:
            yield CudaChunk(parts, device)
            parts, nbytes = [], 0
        parts.append(part)
        nbytes += part.nbytes
    yield CudaChunk(parts, device)


def _parts(payload: Payload, most: int) -> Iterator[_Part]:
    if not isinstance(payload, Pages):
        flat = payload.detach().reshape(-1).view(library.load().uint8)
        for start in range(0, flat.numel(), most):
            part = flat[start : start + most]
            yield _Part(part, None, part.numel())
        return
    for part in device_slices(payload, most):
        yield _Part(part.rows, part.ids, part.nbytes)
