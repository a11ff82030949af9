"""Reuse in one rank: its slots, its lower tiers, and its worker half."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvbridge.abc import Store
from kvbridge.connector.tier_mover import TierMover
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import ConfigError
from kvbridge.registry import create_backend
from kvbridge_vllm.identity import reuse_facts
from kvbridge_vllm.metrics import add_up, figures
from kvbridge_vllm.reuse import common_slots, slots_of

if TYPE_CHECKING:
    from kvbridge.abc import SlotPool
    from kvbridge.abc.connector import Outcome
    from kvbridge.config import ConnectorConfig, TierConfig
    from kvbridge.connector.reuse_plan import ReusePlan, ReuseReport
    from kvbridge.connector.reuse_worker import ReuseWorker
    from kvbridge.memory.layout import CacheLayout
    from kvbridge.reuse.common import CommonSlots
    from kvbridge_vllm.metrics import Figures

logger = logging.getLogger(__name__)


class ReuseRank:
    """Owns what one rank keeps blocks with. The backends are made at once: a wrong configuration ends the start.

    Args:
        config: The connector's configuration.
        vllm_config: vLLM's.
        kv_cache_config: This worker's.
        half: Class of the worker half.

    Raises:
        ConfigError: The first tier's backend has no slots.
    """

    def __init__(
        self, config: ConnectorConfig, vllm_config: Any, kv_cache_config: Any, half: type[ReuseWorker]
    ) -> None:
        first = config.reuse[0]
        self._config = config
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._common: CommonSlots | None = None
        self._half_class = half
        self._slots = slots_of(first, kv_cache_config)
        self._half: ReuseWorker | None = None
        self._backend = create_backend(first.backend, first.options, "kv_connector_extra_config.reuse[0].options")
        if not self._backend.capabilities.slots:
            raise ConfigError(
                f"kv_connector_extra_config.reuse[0].backend: {first.backend!r} has no slots for blocks; put "
                '{"backend": "cpu"} before it, and it becomes a tier below'
            )
        self._stores = [_store(index, tier) for index, tier in enumerate(config.reuse[1:], 1)]

    def register(self, layout: CacheLayout, rank: int) -> None:
        """Take the cache: from here on its blocks can be kept."""
        memory = None
        if self._config.reuse[0].share:
            facts = reuse_facts(self._vllm_config, self._kv_cache_config, self._config.model_id)
            self._common = common_slots(self._config, self._vllm_config, self._kv_cache_config, facts)
            memory = self._common.of_rank(rank)
        pool = self._backend.open_pool(layout.regions, self._slots, memory)
        tiers = [
            _tier(index, store, self._config.reuse[index + 1], pool, rank) for index, store in enumerate(self._stores)
        ]
        self._half = self._half_class(layout, pool, tiers=tiers, timeout=self._config.transfer_timeout)
        logger.info(
            "kvbridge: rank %d keeps up to %d blocks for reuse by the backend %r: asked for %s, %d bytes are used",
            rank,
            self._slots,
            self._config.reuse[0].backend,
            self._config.reuse[0].capacity,
            pool.used_bytes,
        )

    def prepare(self, plan: ReusePlan) -> None:
        """Begin a plan's saves, before anything is computed."""
        if self._half is not None:
            self._half.prepare(plan)

    def begin(self, plan: ReusePlan) -> None:
        """Start what else a plan asks for."""
        if self._half is not None:
            self._half.begin(plan)

    def poll(self) -> Outcome | None:
        """Return what has ended."""
        return self._half.poll() if self._half is not None else None

    def report(self) -> ReuseReport | None:
        """Return the outcome of orders."""
        return self._half.report() if self._half is not None else None

    def stats(self) -> Figures:
        """Return counters and gauges by name, and durations since the last call."""
        if self._half is None:
            return {}
        half, counters = self._half, self._half.counters
        found: Figures = {
            "reuse_loaded_bytes": counters["load_bytes"],
            "reuse_saved_bytes": counters["save_bytes"],
            "reuse_fences": counters["fences"],
            "reuse_tier_read_bytes": sum(tier.counters["read_bytes"] for tier in half.tiers),
            "reuse_tier_written_bytes": sum(tier.counters["write_bytes"] for tier in half.tiers),
            **figures("reuse_", half.failures, half.durations),
        }
        for tier in half.tiers:
            found = add_up(found, figures("reuse_tier_", tier.failures, tier.durations))
        return found

    def close(self) -> None:
        """Release everything. Idempotent, bounded."""
        if self._half is not None:
            self._half.close()
        for store in self._stores:
            store.close()
        self._backend.close()
        if self._common is not None:
            self._common.close()


def _store(index: int, tier: TierConfig) -> Store[Any]:
    path = f"kv_connector_extra_config.reuse[{index}]"
    backend = create_backend(tier.backend, tier.options, f"{path}.options")
    if isinstance(backend, Store) and backend.capabilities.pages:
        return backend
    backend.close()
    raise ConfigError(f"{path}.backend: {tier.backend!r} is not a store of pages; a tier below the first is one")


def _tier(index: int, store: Store[Any], tier: TierConfig, pool: SlotPool, rank: int) -> TierMover:
    store.register(pool.regions)
    endpoint = Endpoint(store, name=f"reuse tier {index + 1} rank {rank}", fingerprint={})
    return TierMover(
        index,
        store.open_buffer(endpoint, timeout=tier.timeout),
        pool.regions,
        rank=rank,
        timeout=tier.timeout,
        close=endpoint.close,
    )
