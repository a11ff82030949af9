"""A value in chunks: both sides cut it in the same way, so that a chunk says by its order where it belongs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvbridge.errors import UnsupportedError
from kvbridge.memory import Pages
from kvbridge.memory.copying import Slice, slices
from kvbridge.memory.cuda import is_cuda
from kvbridge_nccl import cuda

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge.memory import Payload
    from kvbridge_nccl.staging import Staging


class Chunk:
    """Neighbouring parts of a value that travel together.

    Attributes:
        nbytes: Bytes of all of them.
        device: Where they are.
    """

    device = "cpu"

    def __init__(self, parts: list[Slice]) -> None:
        self._parts = parts
        self.nbytes = parts[-1].start + parts[-1].nbytes if parts else 0

    def gather(self, staging: Staging) -> None:
        """Copy it from the payload to where it is sent from."""
        for part in self._parts:
            part.gather(staging.host)

    def scatter(self, staging: Staging) -> None:
        """Copy it from where it was received to the payload."""
        for part in self._parts:
            part.scatter(staging.host)


def less(payload: Payload, skip: int) -> Payload:
    """Leave out the first blocks of every region."""
    if not skip or not isinstance(payload, Pages):
        return payload
    return Pages(payload.regions, tuple(ids[skip:] for ids in payload.block_ids))


def largest(payload: Payload) -> int:
    """Return the bytes of what is never cut: a page."""
    return max(payload.spec.page_bytes, default=0) if isinstance(payload, Pages) else 0


def cut(payload: Payload, most: int) -> Iterator[tuple[Chunk | cuda.CudaChunk, bool]]:
    """Cut a value into chunks of at most `most` bytes, or one page. There is at least one, perhaps of no bytes.

    Yields:
        Each chunk, and whether it is the last one.

    Raises:
        UnsupportedError: Some of its pages are in GPU memory, others are not.
    """
    chunks = cuda.cut(payload, most) if is_cuda(payload) else _cut(payload, most)
    chunk = next(chunks)
    for following in chunks:
        yield chunk, False
        chunk = following
    yield chunk, True


def _cut(payload: Payload, most: int) -> Iterator[Chunk | cuda.CudaChunk]:
    if isinstance(payload, Pages) and any(region.host is None for region in payload.regions):
        raise UnsupportedError("some pages of the value are on a device, others are not", flag="cuda")
    parts: list[Slice] = []
    nbytes = 0
    for part in slices(payload, most):
        if parts and nbytes + part.nbytes > most:
            yield Chunk(parts)
            parts, nbytes = [], 0
        parts.append(replace(part, start=nbytes))
        nbytes += part.nbytes
    yield Chunk(parts)
