"""`KVBridgeConnector`: the one vLLM connector. A facade over the two sides; no hook raises into the engine.

--kv-transfer-config '{"kv_connector": "KVBridgeConnector", "kv_role": "kv_producer",
                       "kv_connector_extra_config": {"backend": "cpu"}}'
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
)

from kvbridge import tracing
from kvbridge.abc.connector import Outcome
from kvbridge.config import connector_config
from kvbridge.connector.handoff_worker import HandoffWorker
from kvbridge.connector.plan import Plan, Report
from kvbridge.connector.reuse_worker import ReuseWorker
from kvbridge.control.endpoint import Endpoint
from kvbridge.registry import find_backend
from kvbridge_vllm import share_logging
from kvbridge_vllm.metrics import KVBridgePromMetrics, KVBridgeStats
from kvbridge_vllm.scheduler import SchedulerSide
from kvbridge_vllm.worker import WorkerSide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvbridge.connector.reuse_plan import ReusePlan, ReuseReport

logger = logging.getLogger(__name__)

F = TypeVar("F", bound="Callable[..., Any]")


def never_raises(default: Callable[[], Any] = lambda: None) -> Callable[[F], F]:
    """Make a hook safe: an exception in one would end the engine for all requests. It is logged and counted."""

    def wrap(hook: F) -> F:
        @functools.wraps(hook)
        def safe(self: KVBridgeConnector, *args: Any, **kwargs: Any) -> Any:
            try:
                return hook(self, *args, **kwargs)
            except Exception:
                self.hook_errors += 1
                logger.exception("an internal error in %s: the request goes on without kvbridge", hook.__name__)
                return default()

        return safe  # type: ignore[return-value]

    return wrap


@dataclass
class StepMetadata(KVConnectorMetadata):
    """What the scheduler's instance sends to the workers' in one step."""

    plan: Plan
    reuse: ReusePlan | None = None


@dataclass
class StepReport(KVConnectorWorkerMetadata):
    """What the workers' instances send back."""

    report: Report
    reuse: ReuseReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Add another rank's report."""
        if isinstance(other, StepReport):
            self.report.merge(other.report)
            self.reuse.merge(other.reuse)
        return self


@dataclass
class RankAddress(KVConnectorHandshakeMetadata):
    """Where one rank can be reached."""

    address: str
    generation: int


class KVBridgeConnector(KVConnectorBase_V1):
    """Hands KV over between engines, and keeps it for reuse, by the backends that the configuration names."""

    worker_half: type[HandoffWorker] = HandoffWorker
    reuse_half: type[ReuseWorker] = ReuseWorker
    control: Callable[..., Endpoint] = Endpoint

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.hook_errors = 0
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        config = connector_config(vllm_config.kv_transfer_config.kv_connector_extra_config)
        for _, flow in config.backends():
            share_logging(find_backend(flow.backend).target.partition(":")[0].partition(".")[0])
        if config.trace:
            tracing.start(Path(config.trace), f"{vllm_config.kv_transfer_config.engine_id} {role.name.lower()}")
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(config, vllm_config, kv_cache_config)
        else:
            halves = (self.worker_half, self.reuse_half, self.control)
            self._worker = WorkerSide(config, vllm_config, kv_cache_config, *halves)
        self._delivers = config.handoff is not None and vllm_config.kv_transfer_config.is_kv_producer

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Whether the ends of layers have to be told: in a full CUDA graph nobody is."""
        return bool(extra_config.get("layers"))

    # -- scheduler --------------------------------------------------------------------------------------------

    @never_raises(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Say how many tokens beyond the local ones can be loaded; always asynchronously."""
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched(request, num_computed_tokens)

    @never_raises()
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Order the load."""
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks, num_external_tokens)

    @never_raises(lambda: StepMetadata(Plan()))
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return this step's plan for the workers."""
        return StepMetadata(*self._scheduler.plan(scheduler_output)) if self._scheduler else StepMetadata(Plan())

    @never_raises()
    def update_connector_output(self, connector_output: Any) -> None:
        """Take in what the workers report."""
        if self._scheduler is not None:
            meta = connector_output.kv_connector_worker_meta
            self._scheduler.output(
                meta.report if isinstance(meta, StepReport) else None,
                meta.reuse if isinstance(meta, StepReport) else None,
                connector_output.finished_recving or set(),
                connector_output.failed_recving or set(),
            )

    @never_raises(lambda: (False, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Hand the blocks of a prefilled request over; forget or cancel a decode request's load."""
        if self._scheduler is None:
            return False, None
        return self._scheduler.finished(request, block_ids)

    @never_raises(lambda: False)
    def has_pending_push_work(self) -> bool:
        """Keep the engine stepping while the workers have orders to hear."""
        return self._scheduler is not None and not self._scheduler.idle

    @property
    def requires_kv_delivery(self) -> bool:
        """Whether KV is handed over: what is only kept may be dropped."""
        return self._delivers

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        """Say from which tier a request's tokens come."""
        return self._hit_sources(request, num_external_tokens) or super().get_external_cache_hit_sources(
            request, num_external_tokens
        )

    @never_raises()
    def _hit_sources(self, request: Any, tokens: int) -> dict[Any, int] | None:
        return self._scheduler.hit_sources(request, tokens) if self._scheduler is not None else None

    @never_raises(list)
    def take_events(self) -> Iterable[Any]:
        """Return which blocks came into what is kept, and which went, since the last call."""
        reuse = self._scheduler.reuse if self._scheduler is not None else None
        return reuse.events.take() if reuse is not None and reuse.events is not None else []

    @never_raises(lambda: False)
    def reset_cache(self) -> bool | None:
        """Forget what is kept for reuse: the weights may be others from now on."""
        if self._scheduler is not None and self._scheduler.reuse is not None:
            self._scheduler.reuse.half.reset()
        return True

    @never_raises()
    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Learn where the workers can be reached."""
        if self._scheduler is not None:
            ranks = {tp: found for (_, tp), found in metadata.items() if isinstance(found, RankAddress)}
            self._scheduler.set_directory({tp: (found.address, found.generation) for tp, found in ranks.items()})

    # -- worker -----------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Take the cache. A refusal ends the start of the engine, with its reason."""
        if self._worker is not None:
            self._worker.register(kv_caches)

    @never_raises()
    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Tell the scheduler's instance where this rank can be reached."""
        directory = self._worker.directory() if self._worker is not None else None
        return RankAddress(*directory) if directory is not None else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Begin this step's saves, and wait for what reads blocks that it will write to. Before any computing.

        Raises:
            TransferTimeoutError: They are still read: the engine ends, rather than to give wrong tokens.
        """
        if self._worker is not None and isinstance(kv_connector_metadata, StepMetadata):
            if self._worker.layerwise is not None:
                self._worker.layerwise.prepare(kv_connector_metadata.plan)
            self._prepare(self._worker, kv_connector_metadata)

    @never_raises()
    def _prepare(self, worker: WorkerSide, metadata: StepMetadata) -> None:
        worker.prepare(metadata.reuse)

    @never_raises()
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start this step's orders. Never blocks; the context is not used, it is None on steps without a forward."""
        del forward_context, kwargs
        metadata = self._connector_metadata
        if self._worker is not None and isinstance(metadata, StepMetadata):
            self._worker.begin(metadata.plan, metadata.reuse)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: loads are asynchronous and whole."""

    @never_raises()
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Hand over what is complete with this layer, where that is wanted layer by layer. Never blocks."""
        del kv_layer, attn_metadata, kwargs
        if self._worker is not None and self._worker.layerwise is not None:
            self._worker.layerwise.computed(layer_name)

    @never_raises()
    def wait_for_save(self) -> None:
        """Hand over the layers whose end was not told. Never waits: the engine keeps the blocks."""
        if self._worker is not None and self._worker.layerwise is not None:
            self._worker.layerwise.finish()

    @never_raises(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Report what has ended, each request once."""
        del finished_req_ids
        outcome = (self._worker.poll() if self._worker is not None else None) or Outcome()
        return KVConnectorTransferResults(
            finished_sending=outcome.sent, finished_recving=outcome.received, failed_recving=outcome.failed
        )

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Report what has ended, for engines that do not ask `get_transfer_results`."""
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending or None, results.finished_recving or None

    @never_raises()
    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Report the outcome of claims and copies."""
        found = self._worker.report() if self._worker is not None else None
        return StepReport(*found) if found is not None else None

    # -- both -------------------------------------------------------------------------------------------------

    @never_raises()
    def get_kv_connector_stats(self) -> KVBridgeStats | None:
        """Return what changed in the counters."""
        side = self._scheduler or self._worker
        return side.stats() if side is not None else None

    @never_raises()
    def shutdown(self) -> None:
        """Release everything. Idempotent, bounded."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVBridgeStats:
        """Rebuild stats in the front end."""
        return KVBridgeStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> KVBridgePromMetrics:
        """Create the metrics of `/metrics`."""
        return KVBridgePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
