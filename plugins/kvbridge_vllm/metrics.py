"""Counters of the connector: from the halves, over vLLM's stats channel, to `/metrics`.

Everything travels as differences since the last report, so that reports of several ranks and steps simply add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbridge.connector.durations import Durations

COUNTERS = {
    "requests": "Decode requests that came with transfer parameters",
    "loads": "Decode requests whose KV was loaded from a prefill engine",
    "failed_loads": "Decode requests whose load failed after it had begun",
    "recomputed": "Decode requests whose prompt was computed here although it was prefilled elsewhere",
    "refused_params": "Decode requests whose transfer parameters were wrong, for another prompt, or malformed",
    "too_short": "Decode requests that had all of the prompt but fewer tokens than `min_tokens` themselves",
    "local_hit": "Decode requests that had the prompt in their own prefix cache",
    "handed_over": "Prefill requests whose KV was handed over",
    "loaded_bytes": "Bytes of KV loaded, summed over ranks",
    "saved_bytes": "Bytes of KV handed over, summed over ranks",
    "failed_saves": "Hand-overs that could not be kept for the decode engine, summed over ranks",
    "expired": "Handed-over values that nobody took before their lease ended, summed over ranks",
    "verified": "Loads whose checksums were verified, summed over ranks",
    "pushed": "Values that the decode engine was told of as soon as they were there, summed over ranks",
    "push_taken": "Values that were taken in before their decode request came, summed over ranks",
    "push_declined": "Values that were not taken in because there was no room: their requests ask for them",
    "push_expired": "Values that were taken in and not claimed before their lease ended, summed over ranks",
    "push_failed": "Decode engines that could not be told of a value, summed over ranks",
    "push_late": "Values whose decode request came before they were taken in, summed over ranks",
    "push_lost": "Values that were to be taken in and did not arrive, summed over ranks",
    "early_parts": "Values of some layers that were handed over while their prompt was computed, summed over ranks",
    "late_parts": "Those of them that were handed over when all was computed: the engine did not tell of their layers",
    "layer_fences": "Times that a step waited until nobody read blocks of a preempted request, summed over ranks",
    "delayed_inserts": "Values that waited for room in the engine's blocks, summed over ranks",
    "queued": "Values that were copied, so that the prefill engine had its blocks back, summed over ranks",
    "queue_full": "Values that were not copied because there was no room: they stayed in the engine's blocks",
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
    "reuse_saved_bytes": "Bytes of KV kept, summed over ranks",
    "reuse_fences": "Times that a step waited until a block was copied, summed over ranks",
    "malformed_messages": "Messages of peers that were dropped because they are not of the protocol",
    "refused_handshakes": "Peers that were refused because their KV is not the same kind",
    "internal_errors": "Errors inside kvbridge that were caught: please report them",
}
GAUGES = {
    "held_values": "Handed-over values that wait for their decode request, summed over ranks",
    "held_bytes": "Bytes of these values, summed over ranks",
    "delayed": "Values that wait for room in the engine's blocks now, summed over ranks",
    "received_values": "Values that were pushed here and wait for their decode request, summed over ranks",
    "received_bytes": "Bytes of these values, summed over ranks",
    "reuse_kept_blocks": "Blocks that can be loaded back",
    "reuse_slots": "Blocks that can be kept at one time",
    "reuse_used_slots": "Slots in use",
    "reuse_pins": "Blocks that are being loaded back right now",
}
HISTOGRAMS = {
    "load_seconds": "How long the load of a request's KV from a prefill engine took, in each rank",
    "save_seconds": "How long it took until the blocks of a prefill request were free again, in each rank",
    "reuse_load_seconds": "How long loading kept blocks of a request back took, in each rank",
    "reuse_save_seconds": "How long keeping blocks of a request took, in each rank",
    "reuse_fence_seconds": "How long a step waited until a block was copied, in each rank",
    "reuse_tier_lookup_seconds": "How long a lower tier took to say which blocks it has, in each rank",
    "reuse_tier_read_seconds": "How long blocks of a request took to come back from a lower tier, in each rank",
    "reuse_tier_write_seconds": "How long a batch of blocks took to be written to a lower tier, in each rank",
}
BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
"""Upper bounds of the histograms' buckets, in seconds."""

MISS = "miss_"
"""Prefix of counters that name why a prefill engine had no value."""

FAILURE = "failure:"
"""Prefix of counters of failures: then come the operation and the class of the error."""

Figures = dict[str, "float | list[float]"]
"""Counters and gauges by name, which only grow or change, and durations by name, each named once."""


def figures(prefix: str, failures: Mapping[str, float], durations: Durations) -> Figures:
    """Name what a half counted and timed."""
    return {
        **{f"{FAILURE}{prefix}{name}": count for name, count in failures.items()},
        **{f"{prefix}{name}_seconds": seconds for name, seconds in durations.take().items()},
    }


def add_up(first: Mapping[str, float | list[float]], second: Mapping[str, float | list[float]]) -> Figures:
    """Add numbers, and put durations together."""
    found: Figures = dict(first)
    for name, value in second.items():
        known = found.get(name)
        if isinstance(value, list):
            found[name] = [*(known if isinstance(known, list) else ()), *value]
        else:
            found[name] = value + (known if isinstance(known, (int, float)) else 0)
    return found


class KVBridgeStats(KVConnectorStats):
    """Differences and durations by name."""

    data: Figures

    def reset(self) -> None:
        """Forget everything."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another rank's or step's."""
        self.data = add_up(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what the log line shows."""
        return {
            name: round(sum(value) if isinstance(value, list) else value, 6)
            for name, value in sorted(self.data.items())
        }

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not self.data


class Differences:
    """Remembers what was reported, and makes stats of what changed since."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def take(self, now: Mapping[str, float | list[float]]) -> KVBridgeStats | None:
        """Return what changed since the last call; None for nothing."""
        changed: Figures = {}
        for name, value in now.items():
            if isinstance(value, list):
                changed[name] = value
            elif value != self._last.get(name, 0):
                changed[name] = value - self._last.get(name, 0)
                self._last[name] = value
        return KVBridgeStats(data=changed) if changed else None


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
        self._failures = self._counter_cls(
            name="vllm:kvbridge_failures",
            documentation="Operations that failed, by operation and class of the error, summed over ranks",
            labelnames=[*labelnames, "operation", "error"],
        )
        self._histograms = {
            name: self._histogram_cls(
                name=f"vllm:kvbridge_{name}", documentation=text, buckets=BUCKETS, labelnames=labelnames
            )
            for name, text in HISTOGRAMS.items()
        }
        for labels in values.values():
            for metric in (*self._counters.values(), *self._gauges.values(), *self._histograms.values()):
                metric.labels(*labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one step's differences."""
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if isinstance(value, list):
                for seconds in value if name in self._histograms else ():
                    self._histograms[name].labels(*labels).observe(seconds)
            elif name in self._gauges:
                self._gauges[name].labels(*labels).inc(value)
            elif name.startswith(MISS):
                self._misses.labels(*labels, name.removeprefix(MISS)).inc(max(0, value))
            elif name.startswith(FAILURE):
                self._failures.labels(*labels, *name.removeprefix(FAILURE).split(":")).inc(max(0, value))
            elif name in self._counters:
                self._counters[name].labels(*labels).inc(max(0, value))
