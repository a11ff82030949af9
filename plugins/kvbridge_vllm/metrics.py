"""Counters of the connector: from the halves, over vLLM's stats channel, to `/metrics`.

Everything travels as differences since the last report, so that reports of several ranks and steps simply add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTERS = {
    "requests": "Decode requests that came with transfer parameters",
    "loads": "Decode requests whose KV was loaded from a prefill engine",
    "failed_loads": "Decode requests whose load failed after it had begun",
    "recomputed": "Decode requests whose prompt was computed here although it was prefilled elsewhere",
    "refused_params": "Decode requests whose transfer parameters were wrong, for another prompt, or malformed",
    "local_hit": "Decode requests that had the prompt in their own prefix cache",
    "handed_over": "Prefill requests whose KV was handed over",
    "loaded_bytes": "Bytes of KV loaded, summed over ranks",
    "load_seconds": "Seconds that loads took, summed over ranks",
    "saved_bytes": "Bytes of KV handed over, summed over ranks",
    "save_seconds": "Seconds until the blocks of a prefill request were free again, summed over ranks",
    "failed_saves": "Hand-overs that could not be kept for the decode engine, summed over ranks",
    "expired": "Handed-over values that nobody took before their lease ended, summed over ranks",
    "taken": "Handed-over values that a decode engine took, summed over ranks",
    "reuse_hit_blocks": "Blocks that were loaded back instead of computed",
    "reuse_missed_blocks": "Blocks that were asked for and not kept",
    "reuse_loads": "Requests that loaded kept blocks",
    "reuse_failed_loads": "Requests whose load of kept blocks failed",
    "reuse_saved_blocks": "Blocks that were kept",
    "reuse_failed_saves": "Times that blocks could not be kept",
    "reuse_evicted_blocks": "Kept blocks that were given up for others",
    "reuse_no_room": "Times that blocks were not kept because all slots were in use",
    "reuse_refused": "Requests whose KV depends on something that no key covers",
    "reuse_tier_promoted_blocks": "Blocks that came back from a lower tier",
    "reuse_tier_demoted_blocks": "Blocks that were written to a lower tier, or were there",
    "reuse_tier_not_demoted": "Blocks that were to be written to a lower tier and were not",
    "reuse_tier_timeouts": "Requests that waited for a lower tier in vain",
    "reuse_tier_failures": "Orders that a lower tier failed",
    "reuse_tier_skipped": "Times that a lower tier was left alone because it had failed",
    "reuse_tier_read_bytes": "Bytes read from lower tiers, summed over ranks",
    "reuse_tier_written_bytes": "Bytes written to lower tiers, summed over ranks",
    "reuse_resets": "Times that everything kept was forgotten",
    "reuse_loaded_bytes": "Bytes of kept KV loaded back, summed over ranks",
    "reuse_load_seconds": "Seconds that these loads took, summed over ranks",
    "reuse_saved_bytes": "Bytes of KV kept, summed over ranks",
    "reuse_save_seconds": "Seconds that keeping them took, summed over ranks",
    "reuse_fences": "Times that a step waited until a block was copied, summed over ranks",
    "reuse_fence_seconds": "Seconds of these waits, summed over ranks",
    "malformed_messages": "Messages of peers that were dropped because they are not of the protocol",
    "refused_handshakes": "Peers that were refused because their KV is not the same kind",
    "internal_errors": "Errors inside kvbridge that were caught: please report them",
}
GAUGES = {
    "held_values": "Handed-over values that wait for their decode request, summed over ranks",
    "held_bytes": "Bytes of these values, summed over ranks",
    "reuse_kept_blocks": "Blocks that can be loaded back",
    "reuse_slots": "Blocks that can be kept at one time",
    "reuse_used_slots": "Slots in use",
    "reuse_pins": "Blocks that are being loaded back right now",
}
MISS = "miss_"
"""Prefix of counters that name why a prefill engine had no value."""


class KVBridgeStats(KVConnectorStats):
    """Differences by name."""

    data: dict[str, float]

    def reset(self) -> None:
        """Forget everything."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another rank's or step's differences."""
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what the log line shows."""
        return {name: round(value, 6) for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not self.data


class Differences:
    """Remembers what was reported, and makes stats of what changed since."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def take(self, now: Mapping[str, float]) -> KVBridgeStats | None:
        """Return what changed since the last call; None for nothing."""
        changed = {
            name: value - self._last.get(name, 0) for name, value in now.items() if value != self._last.get(name, 0)
        }
        if not changed:
            return None
        self._last.update(now)
        return KVBridgeStats(data=changed)


class KVBridgePromMetrics(KVConnectorPromMetrics):
    """Prometheus metrics `vllm:kvbridge_*`."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], values: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, values)
        self._counters = {
            name: self._counter_cls(name=f"vllm:kvbridge_{name}", documentation=text, labelnames=labelnames)
            for name, text in COUNTERS.items()
        }
        self._gauges = {
            name: self._gauge_cls(name=f"vllm:kvbridge_{name}", documentation=text, labelnames=labelnames)
            for name, text in GAUGES.items()
        }
        self._misses = self._counter_cls(
            name="vllm:kvbridge_misses",
            documentation="Values that a prefill engine did not have, by reason",
            labelnames=[*labelnames, "reason"],
        )
        for labels in values.values():
            for metric in (*self._counters.values(), *self._gauges.values()):
                metric.labels(*labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one step's differences."""
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if name in self._gauges:
                self._gauges[name].labels(*labels).inc(value)
            elif name.startswith(MISS):
                self._misses.labels(*labels, name.removeprefix(MISS)).inc(max(0, value))
            elif name in self._counters:
                self._counters[name].labels(*labels).inc(max(0, value))
