"""vLLM's KV events of what is kept: which blocks came, and which went, in the classes that routers know.

A block is said to be in `CPU` while it is in a slot, and in `STORAGE` while it is in a lower tier. A store may give a
block up without telling: it is said to be gone when it was looked for in vain.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, maybe_convert_block_hash, to_event_extra_keys

from kvbridge.connector.reuse_observer import Kept, Observer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vllm.distributed.kv_events import KVCacheEvent


class EventLog(Observer):
    """Writes events down until vLLM takes them.

    Args:
        block_size: Tokens of a block.
        stride: Hashes of vLLM's for each block.
    """

    def __init__(self, block_size: int, stride: int) -> None:
        self._block_size = block_size
        self._stride = stride
        self._events: list[KVCacheEvent] = []
        self._kept: dict[bytes, Kept] = {}
        self._media: dict[bytes, set[str]] = {}

    def take(self) -> list[KVCacheEvent]:
        """Return the events since the last call."""
        found, self._events = self._events, []
        return found

    def kept(self, blocks: Sequence[Kept]) -> None:
        """Blocks came into slots."""
        for block in blocks:
            self._kept[block.key] = block
        self._stored(blocks, MEDIUM_CPU)

    def gone(self, keys: Iterable[bytes]) -> None:
        """Slots gave blocks up."""
        self._removed(keys, MEDIUM_CPU)

    def back(self, keys: Iterable[bytes]) -> None:
        """Blocks came back into slots."""
        self._stored([self._kept[key] for key in keys if key in self._kept], MEDIUM_CPU)

    def kept_below(self, keys: Iterable[bytes]) -> None:
        """Blocks came into a lower tier."""
        self._stored([self._kept[key] for key in keys if key in self._kept], MEDIUM_STORAGE)

    def gone_below(self, keys: Iterable[bytes]) -> None:
        """Blocks are not in a lower tier any more."""
        self._removed(keys, MEDIUM_STORAGE)

    def cleared(self) -> None:
        """Nothing that was kept is asked for again, wherever it is."""
        for medium in (MEDIUM_CPU, MEDIUM_STORAGE):
            self._removed(list(self._kept), medium)

    def _stored(self, blocks: Sequence[Kept], medium: str) -> None:
        new = []
        for block in blocks:  # one may be named twice
            media = self._media.setdefault(block.key, set())
            if medium not in media:
                media.add(medium)
                new.append(block)
        # Neighbours of one request make one event.
        for _, run in groupby(enumerate(new), lambda one: (id(one[1].origin), one[1].index - one[0])):
            self._events.append(self._event([block for _, block in run], medium))

    def _event(self, run: Sequence[Kept], medium: str) -> BlockStored:
        request, first = run[0].origin, run[0].index
        size = self._block_size
        extra: list[tuple[Any, ...] | None] = []
        index = 0
        for block in run:
            keys, index = generate_block_hash_extra_keys(request, block.index * size, (block.index + 1) * size, index)
            extra.append(keys)
        adapter = request.lora_request
        return BlockStored(
            block_hashes=[self._hash(request, block.index) for block in run],
            parent_block_hash=self._hash(request, first - 1) if first else None,
            token_ids=list(request.all_token_ids[first * size : (first + len(run)) * size]),
            block_size=size,
            lora_id=adapter.adapter_id if adapter else None,
            medium=medium,
            lora_name=adapter.name if adapter else None,
            extra_keys=to_event_extra_keys(extra),
        )

    def _hash(self, request: Any, index: int) -> Any:
        return maybe_convert_block_hash(request.block_hashes[(index + 1) * self._stride - 1])

    def _removed(self, keys: Iterable[bytes], medium: str) -> None:
        hashes = []
        for key in keys:
            media = self._media.get(key, set())
            if medium not in media:
                continue
            media.discard(medium)
            block = self._kept[key]
            hashes.append(self._hash(block.origin, block.index))
            if not media:
                del self._media[key], self._kept[key]
        if hashes:
            self._events.append(BlockRemoved(block_hashes=hashes, medium=medium))
