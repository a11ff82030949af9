"""The scheduler's side of reuse in vLLM: vLLM's requests and steps, as the engine-neutral half wants them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvbridge.abc import Store
from kvbridge.config import parse_bytes
from kvbridge.connector.reuse_scheduler import ReuseScheduler
from kvbridge.connector.reuse_view import Progress, ReusableRequest, ReuseSettings
from kvbridge.connector.tier_state import TierSettings
from kvbridge.errors import ConfigError
from kvbridge.policies import create_policy
from kvbridge.registry import load_backend
from kvbridge.reuse.common import CommonSlots
from kvbridge.reuse.keys import namespace
from kvbridge.reuse.own_catalog import OwnCatalog
from kvbridge.reuse.shared_catalog import SharedCatalog
from kvbridge_vllm.events import EventLog
from kvbridge_vllm.identity import reuse_dimensions, reuse_facts
from kvbridge_vllm.layout import placements

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvbridge.abc.store import Medium
    from kvbridge.config import ConnectorConfig, TierConfig
    from kvbridge.connector.reuse_plan import ReusePlan

SOURCE_OF: dict[Medium, CacheHitSource] = {
    "disk": CacheHitSource.DISK,
    "memory": CacheHitSource.HOST,
    "remote": CacheHitSource.EXTERNAL_UNSPECIFIED,
}
"""What vLLM's figures call a medium."""

logger = logging.getLogger(__name__)


def _medium(backend: str) -> Medium:
    cls = load_backend(backend)
    return cls.medium if issubclass(cls, Store) else "remote"


def page_sizes(kv_cache_config: Any) -> list[int]:
    """Return the bytes of a block in each region of a worker's cache, in order."""
    return [size for place in placements(kv_cache_config) for _, size in place.runs()]


def common_slots(
    config: ConnectorConfig, vllm_config: Any, kv_cache_config: Any, facts: Mapping[str, str]
) -> CommonSlots:
    """Join the slots that engines with the same KV have in common. `facts`: see `reuse_facts`."""
    return CommonSlots(
        namespace(facts, "").hex(),
        page_sizes(kv_cache_config),
        slots_of(config.reuse[0], kv_cache_config),
        vllm_config.parallel_config.tensor_parallel_size,
    )


def slots_of(tier: TierConfig, kv_cache_config: Any) -> int:
    """Return how many blocks fit into a tier's capacity, in one worker.

    Raises:
        ConfigError: Not one.
    """
    path = "kv_connector_extra_config.reuse.capacity"
    capacity = parse_bytes(tier.capacity, path)
    block_bytes = sum(page_sizes(kv_cache_config))
    slots = capacity // block_bytes
    if slots < 1:
        raise ConfigError(f"{path}: found {capacity} bytes, expected at least one block of {block_bytes} bytes")
    return slots


class ReuseSide:
    """Owns the scheduler half of reuse."""

    def __init__(self, config: ConnectorConfig, vllm_config: Any, kv_cache_config: Any) -> None:
        tier = config.reuse[0]
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        hashed = kv_cache_config.hash_block_size or spec.block_size
        self._stride, rest = divmod(spec.block_size, hashed)
        if rest:
            raise ConfigError(
                f"a block has {spec.block_size} tokens and a hash {hashed}: reuse "
                "needs a whole number of hashes in a block"
            )
        self._block_size = spec.block_size
        self._source_of = [SOURCE_OF[_medium(lower.backend)] for lower in config.reuse[1:]]
        slots = slots_of(tier, kv_cache_config)
        wanted = vllm_config.kv_events_config is not None and vllm_config.kv_events_config.enable_kv_cache_events
        self.events = EventLog(spec.block_size, self._stride) if wanted else None
        facts = reuse_facts(vllm_config, kv_cache_config, config.model_id)
        catalog = (
            SharedCatalog(common_slots(config, vllm_config, kv_cache_config, facts))
            if tier.share
            else OwnCatalog(slots, create_policy(tier.policy, slots))
        )
        self.half = ReuseScheduler(
            ReuseSettings(
                block_size=spec.block_size,
                ranks=vllm_config.parallel_config.tensor_parallel_size,
                facts=facts,
                decoded=tier.decoded,
                min_tokens=tier.min_tokens,
                waits=bool(vllm_config.cache_config.enable_prefix_caching),
            ),
            catalog,
            [
                TierSettings(lower.backend, lower.exclusive, lower.timeout, lower.failures, lower.retry)
                for lower in config.reuse[1:]
            ],
            self.events,
        )
        logger.info(
            "kvbridge: %d blocks are kept for reuse in each worker, policy %r%s",
            slots,
            tier.policy,
            ", in common with other engines" if tier.share else "",
        )

    def matched(self, request: Any, local_tokens: int) -> int | None:
        """See `ReuseScheduler.matched`."""
        return self.half.matched(self._view(request), local_tokens)

    def allocated(self, request: Any, block_ids: list[int], local_tokens: int, tokens: int) -> None:
        """See `ReuseScheduler.allocated`."""
        self.half.allocated(self._view(request), block_ids, local_tokens, tokens)

    def finished(self, request: Any, block_ids: list[int], *, failed: bool) -> None:
        """See `ReuseScheduler.finished`."""
        self.half.finished(request.request_id, block_ids, request.num_computed_tokens, failed=failed)

    def plan(self, scheduler_output: Any) -> ReusePlan:
        """Take note of what a step computes, and return its plan."""
        self.half.step(_progress(scheduler_output))
        return self.half.plan()

    def hit_sources(self, request: Any, tokens: int) -> dict[CacheHitSource, int]:
        """Say from which tiers a request's tokens come."""
        found = {CacheHitSource.HOST: tokens}
        for index, blocks in self.half.sources(request.request_id).items():
            moved = min(found[CacheHitSource.HOST], blocks * self._block_size)
            source = self._source_of[index]
            found[source] = found.get(source, 0) + moved
            found[CacheHitSource.HOST] -= moved
        return {source: count for source, count in found.items() if count}

    def close(self) -> None:
        """Let go of the catalog. Idempotent."""
        self.half.catalog.close()

    def stats(self) -> dict[str, float]:
        """Return counters and gauges by name."""
        half, catalog = self.half, self.half.catalog
        lower = half.tiers.counters if half.tiers is not None else {}
        return {
            **{f"reuse_tier_{name}": float(value) for name, value in lower.items()},
            **{f"reuse_{name}": float(value) for name, value in half.counters.items()},
            "reuse_evicted_blocks": catalog.counters["evicted"],
            "reuse_no_room": catalog.counters["no_room"],
            "reuse_kept_blocks": len(catalog),
            "reuse_slots": catalog.slots,
            "reuse_used_slots": catalog.used,
            "reuse_pins": catalog.pinned,
        }

    def _view(self, request: Any) -> ReusableRequest:
        stride = self._stride
        return ReusableRequest(
            id=request.request_id,
            num_tokens=lambda: request.num_tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            hashes=lambda: request.block_hashes if stride == 1 else request.block_hashes[stride - 1 :: stride],
            dimensions=lambda: reuse_dimensions(request),
            origin=request,
        )


def _progress(scheduler_output: Any) -> Iterator[Progress]:
    for new in scheduler_output.scheduled_new_reqs:
        yield Progress(new.req_id, new.num_computed_tokens, (), first=True)
    cached = scheduler_output.scheduled_cached_reqs
    for request_id, blocks, computed in zip(
        cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
    ):
        resumed = request_id in cached.resumed_req_ids
        yield Progress(request_id, computed, blocks[0] if blocks else (), first=resumed, anew=resumed)
