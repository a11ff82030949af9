"""The scheduler's side of the connector in vLLM: translates vLLM's calls for the engine-neutral half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvbridge.connector.handoff_scheduler import HandoffScheduler, HandoffSettings
from kvbridge_vllm.layout import refuse_unsupported
from kvbridge_vllm.metrics import Differences, KVBridgeStats
from kvbridge_vllm.requests import view

if TYPE_CHECKING:
    from kvbridge.config import ConnectorConfig
    from kvbridge.connector.plan import Plan, Report

COMPLETED = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)
"""Ways to finish after which all of the prompt's KV was computed."""


class SchedulerSide:
    """Owns the scheduler half."""

    def __init__(self, config: ConnectorConfig, vllm_config: Any, kv_cache_config: Any) -> None:
        refuse_unsupported(vllm_config, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._differences = Differences()
        self._local: dict[str, int] = {}
        self.half = HandoffScheduler(
            HandoffSettings(
                engine_id=str(transfer.engine_id),
                block_size=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
                ranks=vllm_config.parallel_config.tensor_parallel_size,
                produces=transfer.is_kv_producer,
                consumes=transfer.is_kv_consumer,
                claim_timeout=config.claim_timeout,
            )
        )

    def set_directory(self, directory: dict[int, tuple[str, int]]) -> None:
        """Take in the `(address, generation)` of each rank."""
        ranks = [directory[rank] for rank in sorted(directory)]
        self.half.set_directory([address for address, _ in ranks], [generation for _, generation in ranks])

    def matched(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """Answer `get_num_new_matched_tokens`."""
        tokens = self.half.matched(view(request), local_tokens)
        self._local[request.request_id] = local_tokens
        return tokens, bool(tokens)

    def allocated(self, request: Any, blocks: Any, tokens: int) -> None:
        """Take `update_state_after_alloc`."""
        local = self._local.pop(request.request_id, 0)
        self.half.allocated(view(request), blocks.get_block_ids()[0], local, tokens)

    def finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Take `request_finished`."""
        self._local.pop(request.request_id, None)
        completed = request.status in COMPLETED and request.num_computed_tokens >= request.num_prompt_tokens
        return self.half.finished(view(request), block_ids, completed=completed)

    def plan(self) -> Plan:
        """Return this step's plan."""
        return self.half.plan()

    def output(self, report: Report | None, received: set[str], failed: set[str]) -> None:
        """Take `update_connector_output`."""
        if report is not None:
            self.half.absorb(report)
        for request_id in received:
            self.half.received(request_id, failed=request_id in failed)

    def stats(self) -> KVBridgeStats | None:
        """Return what changed in the counters."""
        return self._differences.take(self.half.counters)
