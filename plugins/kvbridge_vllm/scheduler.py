"""The scheduler's side of the connector in vLLM: translates vLLM's calls for the engine-neutral halves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvbridge.connector.consumers import name
from kvbridge.connector.handoff_scheduler import HandoffScheduler
from kvbridge.connector.handoff_state import HandoffSettings
from kvbridge.connector.plan import Plan
from kvbridge_vllm.discovery import Discovery, role_of
from kvbridge_vllm.layout import refuse_unsupported
from kvbridge_vllm.metrics import Differences, KVBridgeStats
from kvbridge_vllm.requests import view
from kvbridge_vllm.reuse import ReuseSide

if TYPE_CHECKING:
    from kvbridge.config import ConnectorConfig
    from kvbridge.connector.plan import Report
    from kvbridge.connector.reuse_plan import ReusePlan, ReuseReport

COMPLETED = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)
"""Ways to finish after which all of the prompt's KV was computed."""


class SchedulerSide:
    """Owns the scheduler halves: the one of hand-overs, the one of reuse, or both.

    A request's KV comes from the prefill engine that its parameters name; else, or if that cannot be, from what is
    kept.
    """

    def __init__(self, config: ConnectorConfig, vllm_config: Any, kv_cache_config: Any) -> None:
        refuse_unsupported(vllm_config, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._differences = Differences()
        self._local: dict[str, int] = {}
        self._handed: set[str] = set()
        self._layered: dict[str, Any] | None = {} if config.layers and transfer.is_kv_producer else None
        self.handoff: HandoffScheduler | None = None
        self.reuse: ReuseSide | None = None
        self._discovery: Discovery | None = None
        if config.handoff is not None:
            self.handoff = HandoffScheduler(
                HandoffSettings(
                    engine_id=str(transfer.engine_id),
                    block_size=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
                    ranks=vllm_config.parallel_config.tensor_parallel_size,
                    produces=transfer.is_kv_producer,
                    consumes=transfer.is_kv_consumer,
                    claim_timeout=config.claim_timeout,
                    min_tokens=config.min_tokens,
                    pushes=config.mode != "GET",
                )
            )
        if config.reuse:
            self.reuse = ReuseSide(config, vllm_config, kv_cache_config)
        if config.discovery is not None:
            self._discovery = Discovery(config.discovery, role_of(config.discovery, transfer))

    def close(self) -> None:
        """Give everything back. Idempotent, bounded."""
        if self._discovery is not None:
            self._discovery.close()
        if self.reuse is not None:
            self.reuse.close()

    def set_directory(self, directory: dict[int, tuple[str, int]]) -> None:
        """Take in the `(address, generation)` of each rank."""
        ranks = [directory[rank] for rank in sorted(directory)]
        if self.handoff is not None:
            self.handoff.set_directory([address for address, _ in ranks], [generation for _, generation in ranks])
        if self._discovery is not None:
            self._discovery.set_control(name([address for address, _ in ranks]))

    def matched(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """Answer `get_num_new_matched_tokens`."""
        self._local[request.request_id] = local_tokens
        self._handed.discard(request.request_id)
        if self.handoff is not None:
            tokens = self.handoff.matched(view(request), local_tokens)
            if tokens is None or tokens:
                self._handed.add(request.request_id)
                return tokens, bool(tokens)
        tokens = self.reuse.matched(request, local_tokens) if self.reuse is not None else 0
        return tokens, bool(tokens)

    def allocated(self, request: Any, blocks: Any, tokens: int) -> None:
        """Take `update_state_after_alloc`."""
        local = self._local.pop(request.request_id, request.num_computed_tokens)
        block_ids = blocks.get_block_ids()[0]
        handed = tokens > 0 and request.request_id in self._handed
        if self._layered is not None and request.max_tokens == 1:  # else it writes to its last block afterwards
            self._layered[request.request_id] = request
        if self.handoff is not None:
            self.handoff.allocated(view(request), block_ids, local, tokens if handed else 0)
        if self.reuse is not None:
            self.reuse.allocated(request, block_ids, local, 0 if handed else tokens)

    def hit_sources(self, request: Any, tokens: int) -> dict[Any, int] | None:
        """Answer `get_external_cache_hit_sources`; None for vLLM's own answer."""
        if self.reuse is None or request.request_id in self._handed:
            return None
        return self.reuse.hit_sources(request, tokens)

    def finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Take `request_finished`."""
        self._local.pop(request.request_id, None)
        self._handed.discard(request.request_id)
        if self._layered is not None:
            self._layered.pop(request.request_id, None)
        failed = request.status == RequestStatus.FINISHED_ERROR
        if self.reuse is not None:
            self.reuse.finished(request, block_ids, failed=failed)
        if self.handoff is None:
            return False, None
        completed = request.status in COMPLETED and request.num_computed_tokens >= request.num_prompt_tokens
        return self.handoff.finished(view(request), block_ids, completed=completed, failed=failed)

    def plan(self, scheduler_output: Any) -> tuple[Plan, ReusePlan | None]:
        """Return this step's plans."""
        if self.handoff is not None and self._layered is not None:
            self._order_layers(self.handoff, self._layered, scheduler_output)
        return (
            self.handoff.plan() if self.handoff is not None else Plan(),
            self.reuse.plan(scheduler_output) if self.reuse is not None else None,
        )

    @staticmethod
    def _order_layers(handoff: HandoffScheduler, layered: dict[str, Any], scheduler_output: Any) -> None:
        """Have prompts handed over layer by layer whose last tokens this step computes."""
        for request_id in scheduler_output.preempted_req_ids or ():
            handoff.preempted(request_id)
        state = scheduler_output.kv_connector_block_state
        for request_id, tokens in scheduler_output.num_scheduled_tokens.items():
            request = layered.get(request_id)
            if request is not None and request.num_computed_tokens + tokens >= request.num_prompt_tokens:
                handoff.computing(view(request), state.resolve_block_ids(request_id)[0])

    @property
    def idle(self) -> bool:
        """Whether the workers have no orders to hear, and nothing is under way that ends by itself."""
        return (self.handoff is None or self.handoff.idle) and (self.reuse is None or self.reuse.half.idle)

    def output(self, report: Report | None, reused: ReuseReport | None, received: set[str], failed: set[str]) -> None:
        """Take `update_connector_output`."""
        if self.handoff is not None:
            if report is not None:
                self.handoff.absorb(report)
            for request_id in received:
                self.handoff.received(request_id, failed=request_id in failed)
        if self.reuse is not None:
            if reused is not None:
                self.reuse.half.absorb(reused)
            for request_id in received:
                self.reuse.half.received(request_id, failed=request_id in failed)

    def stats(self) -> KVBridgeStats | None:
        """Return what changed in the counters."""
        found: dict[str, float] = dict(self.handoff.counters) if self.handoff is not None else {}
        if self.reuse is not None:
            found.update(self.reuse.stats())
        return self._differences.take(found)
