"""The worker's side of the connector in vLLM: what one rank hands over, and what it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.abc.connector import Outcome
from kvbridge.connector.plan import Report
from kvbridge.connector.reuse_plan import ReuseReport
from kvbridge.control.endpoint import Endpoint
from kvbridge_vllm.handoff_rank import HandoffRank
from kvbridge_vllm.layout import cache_layout, refuse_unsupported
from kvbridge_vllm.metrics import Differences, KVBridgeStats
from kvbridge_vllm.reuse_rank import ReuseRank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from kvbridge.config import ConnectorConfig
    from kvbridge.connector.handoff_worker import HandoffWorker
    from kvbridge.connector.layerwise import LayerwiseSaves
    from kvbridge.connector.plan import Plan
    from kvbridge.connector.reuse_plan import ReusePlan
    from kvbridge.connector.reuse_worker import ReuseWorker


class WorkerSide:
    """Owns everything of one rank.

    Args:
        config: The connector's configuration.
        vllm_config: vLLM's.
        kv_cache_config: This worker's.
        handoff_half: Class of the worker half of hand-overs.
        reuse_half: Class of the worker half of reuse.
        endpoint: Makes the control endpoint of hand-overs, from what `Endpoint` takes.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        vllm_config: Any,
        kv_cache_config: Any,
        handoff_half: type[HandoffWorker],
        reuse_half: type[ReuseWorker],
        endpoint: Callable[..., Endpoint] = Endpoint,
    ) -> None:
        refuse_unsupported(vllm_config, kv_cache_config)
        self._kv_cache_config = kv_cache_config
        self._differences = Differences()
        self._handoff: HandoffRank | None = None
        self._reuse: ReuseRank | None = None
        self._closed = False
        if config.handoff is not None:
            self._handoff = HandoffRank(config, config.handoff, vllm_config, kv_cache_config, handoff_half, endpoint)
        if config.reuse:
            self._reuse = ReuseRank(config, vllm_config, kv_cache_config, reuse_half)

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Take the cache."""
        from vllm.distributed import get_tensor_model_parallel_rank  # noqa: PLC0415 - after vLLM is set up

        rank = get_tensor_model_parallel_rank()
        layout = cache_layout(self._kv_cache_config, kv_caches)
        if self._handoff is not None:
            self._handoff.register(layout, rank)
        if self._reuse is not None:
            self._reuse.register(layout, rank)

    def directory(self) -> tuple[str, int] | None:
        """Return this rank's control address and incarnation."""
        return self._handoff.directory() if self._handoff is not None else None

    def prepare(self, plan: ReusePlan | None) -> None:
        """Do what a plan asks for before anything is computed."""
        if self._reuse is not None and plan is not None:
            self._reuse.prepare(plan)

    @property
    def layerwise(self) -> LayerwiseSaves | None:
        """What hands over layer by layer, if that is wanted."""
        return self._handoff.layerwise if self._handoff is not None else None

    def begin(self, plan: Plan, reuse: ReusePlan | None) -> None:
        """Start the plans' orders."""
        if self._handoff is not None:
            self._handoff.begin(plan)
        if self._reuse is not None and reuse is not None:
            self._reuse.begin(reuse)

    def poll(self) -> Outcome:
        """Return what has ended."""
        found = Outcome()
        for outcome in (self._handoff and self._handoff.poll(), self._reuse and self._reuse.poll()):
            if outcome:
                found.sent |= outcome.sent
                found.received |= outcome.received
                found.failed |= outcome.failed
        return found

    def report(self) -> tuple[Report, ReuseReport] | None:
        """Return the outcome of claims and copies; None for nothing."""
        claims = self._handoff.report() if self._handoff is not None else None
        orders = self._reuse.report() if self._reuse is not None else None
        if claims is None and orders is None:
            return None
        return claims or Report(), orders or ReuseReport()

    def stats(self) -> KVBridgeStats | None:
        """Return what changed in the counters."""
        found = self._handoff.stats() if self._handoff is not None else {}
        if self._reuse is not None:
            found = {**found, **self._reuse.stats()}
        return self._differences.take(found)

    def close(self) -> None:
        """Release everything. Idempotent, bounded, safe after a start that failed half-way."""
        if self._closed:
            return
        self._closed = True
        if self._handoff is not None:
            self._handoff.close()
        if self._reuse is not None:
            self._reuse.close()
