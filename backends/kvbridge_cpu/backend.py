"""`CpuBackend`: a pool of shared memory at each producer, read by the consumers of the same host."""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING, ClassVar

import msgspec

from kvbridge.abc import Held, Landing, Transport
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.config import parse_bytes
from kvbridge.errors import BackendUnavailableError, KVBridgeError, UnsupportedError
from kvbridge.memory import Payload, Spec, spec_of
from kvbridge.memory.allocator import ALIGNMENT, Allocator
from kvbridge_cpu.moves import VALUE_HEADER, FollowedValue, Place, PooledValue
from kvbridge_cpu.segment import Card, Segment, open_peer
from kvbridge_cpu.slots import HostSlots

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvbridge.abc import SlotPool
    from kvbridge.control.link import Link
    from kvbridge.memory import Region


class CpuOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the backend `cpu`.

    Attributes:
        capacity: Bytes of KV that wait for consumers at most, for each worker: a number, or text such as `"4GiB"`.
            Memory is taken when it is first used.
    """

    capacity: int | str = "2GiB"


class CpuBackend(Transport[CpuOptions]):
    """Shared memory between processes of one host.

    `insert` gathers pages into a pool and is done when the copy is there, so that the producer's blocks are free at
    once. The consumer scatters out of the pool while the producer may still be gathering.
    """

    name: ClassVar[str] = "cpu"
    Options: ClassVar[type[msgspec.Struct]] = CpuOptions

    def __init__(self, options: CpuOptions) -> None:
        super().__init__(options)
        found = self.probe(options)
        if not found.ok:
            raise BackendUnavailableError(f"the backend 'cpu' cannot work here: {found.reason}")
        capacity = parse_bytes(options.capacity, "options.capacity")
        self._allocator = Allocator(capacity)
        self._segment = Segment(self._allocator.capacity)
        self._peers: dict[Link, NDArray[np.uint8]] = {}
        self._marks = itertools.count(1)
        self._capabilities = Capabilities.of_transport(
            mover="consumer",
            detaches=True,
            slots=True,
            max_value_bytes=self._allocator.capacity - VALUE_HEADER,
            capacity_bytes=self._allocator.capacity,
        )

    @classmethod
    def probe(cls, options: CpuOptions) -> Probe:
        """Say whether shared memory of the wanted size can be had."""
        if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
            return Probe(ok=False, reason="it needs Linux, for memfd_create and /proc")
        try:
            capacity = parse_bytes(options.capacity, "options.capacity")
        except KVBridgeError as error:
            return Probe(ok=False, reason=str(error))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if not ALIGNMENT <= capacity <= memory:
            return Probe(
                ok=False,
                reason=f"options.capacity is {capacity} bytes, expected {ALIGNMENT} to this machine's {memory}",
            )
        return Probe(ok=True, reason="shared memory between processes of this host (memfd)")

    @property
    def capabilities(self) -> Capabilities:
        """Flags and limits."""
        return self._capabilities

    def card(self) -> bytes:
        """Return how peers open the pool."""
        return msgspec.msgpack.encode(self._segment.card)

    def accepts(self, card: bytes) -> str | None:
        """Try to open the peer's pool."""
        try:
            open_peer(_card(card))
        except KVBridgeError as error:
            return str(error)
        return None

    def hold(self, payload: Payload) -> Held:
        """Reserve room in the pool; `Held.step` copies."""
        spec = spec_of(payload)
        offset = self._allocator.allocate(VALUE_HEADER + spec.nbytes)
        place = Place(offset, spec.nbytes, next(self._marks))
        try:
            return PooledValue(payload, place, self._segment.memory, lambda: self._allocator.release(offset))
        except BaseException:
            self._allocator.release(offset)
            raise

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Follow the producer's copy."""
        memory = self._peers.get(link)
        if memory is None:
            memory = self._peers[link] = open_peer(_card(link.peer.card))
            link.on_down(lambda _: self._forget(link))
        return FollowedValue(memory, descriptor, spec, out, skip)

    def open_pool(self, like: Sequence[Region], slots: int, memory: NDArray[np.uint8] | None = None) -> SlotPool:
        """Open slots in host memory, pinned where the cache is on a GPU. See `Backend.open_pool`."""
        devices = {region.device for region in like}
        if len(devices) > 1 or not all(device.startswith(("cpu", "cuda")) for device in devices):
            raise UnsupportedError(
                f"the cache is on {', '.join(sorted(devices))}: the backend 'cpu' keeps blocks of a cache in host "
                "memory, or on one GPU of NVIDIA's",
                flag="slots",
            )
        if devices - {"cpu"}:
            from kvbridge_cpu.cuda_slots import CudaSlots  # noqa: PLC0415 - it loads torch

            return CudaSlots(like, slots, memory)
        return HostSlots(like, slots, memory)

    def _forget(self, link: Link) -> None:
        self._peers.pop(link, None)

    def close(self) -> None:
        """Give the pool back to the system. Idempotent."""
        self._peers.clear()
        self._segment.close()


def _card(card: bytes) -> Card:
    try:
        return msgspec.msgpack.decode(card, type=Card)
    except msgspec.DecodeError as error:
        raise UnsupportedError(f"the peer's card is not one of the backend 'cpu': {error}") from error
