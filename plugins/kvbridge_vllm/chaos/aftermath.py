"""What has to be so when the faults are over: every pair hands over again, and nothing is held."""

from __future__ import annotations

import re
import time
from http.client import HTTPException
from typing import TYPE_CHECKING

from kvbridge_vllm.chaos.cluster import LEASE
from kvbridge_vllm.chaos.schedule import DECODE, ENGINES, PREFILL
from kvbridge_vllm.launch import LaunchError
from kvbridge_vllm.launch.client import metric_sum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbridge_vllm.chaos.clients import Clients
    from kvbridge_vllm.chaos.cluster import Cluster
    from kvbridge_vllm.chaos.oracle import Known
    from kvbridge_vllm.chaos.outcomes import Record
    from kvbridge_vllm.launch import Engine

PROBES = 10
"""Tries that a pair of engines has to hand over again; an engine that was lost is left alone for up to a minute."""

PAUSE = 1.0
"""Seconds after the first try; each pause is half as long again as the one before: two minutes in all."""

DRAINED = 6 * LEASE
"""Seconds within which everything has to be given back: a lease, an offer that nobody renews, and room."""

HEALTHY = 60.0
"""Seconds within which an engine has to answer that was healthy, or stopped, before."""

LOOK = 0.5
"""Seconds between two looks."""

HELD = {
    "vllm:num_requests_running": "requests run",
    "vllm:num_requests_waiting": "requests wait",
    "vllm:kv_cache_usage_perc": "share of KV blocks in use",
    "vllm:kvbridge_held_values": "values held for decode requests",
    "vllm:kvbridge_held_bytes": "bytes held for decode requests",
}
"""Gauges that are 0 where nothing is held."""

_INTERNAL = re.compile(r"an internal error in (?:the control plane|\w+)|EngineDeadError|EngineCore encountered")
_FILTERED = re.compile(r"chaos: dropped (\d+) and delayed (\d+) messages")


def pairs() -> list[tuple[str, str]]:
    """List all pairs of a prefill and a decode engine."""
    return [(prefill, decode) for prefill in PREFILL for decode in DECODE]


def probe_count() -> int:
    """Return the number of prompts that `look_after` takes."""
    return len(pairs()) * PROBES


def look_after(cluster: Cluster, clients: Clients, probes: Sequence[Known], record: Record) -> None:
    """Try every engine and every pair, and look at what is held."""
    for name in ENGINES:
        if not _eventually_healthy(cluster, name):
            record.broken.append(f"{name} does not answer {HEALTHY:g} s after the last fault")
    for index, (prefill, decode) in enumerate(pairs()):
        _try_pair(cluster, clients, probes[index * PROBES : (index + 1) * PROBES], (prefill, decode), record)
    began = time.monotonic()
    for name in ENGINES:
        held = _drain(cluster.engine(name), began + DRAINED)
        record.broken.extend(f"{name}: {what}" for what in held)
    record.facts["drained after"] = time.monotonic() - began
    _count(cluster, record)


def _eventually_healthy(cluster: Cluster, name: str) -> bool:
    deadline = time.monotonic() + HEALTHY
    while time.monotonic() < deadline:
        if cluster.engine(name).healthy():
            return True
        time.sleep(LOOK)
    return False


def _try_pair(
    cluster: Cluster, clients: Clients, probes: Sequence[Known], pair: tuple[str, str], record: Record
) -> None:
    """Hand prompts over until one was really loaded; every answer has to be right."""
    pause, said = PAUSE, ""
    for prompt, expected in probes:
        before = _loads(cluster.engine(pair[1]))
        outcome = clients.probe(prompt, expected, *pair)
        record.outcomes.append(outcome)
        said = f"{outcome.result} {outcome.detail}".strip()
        if outcome.result == "right" and _loaded_more(cluster.engine(pair[1]), before):
            return
        time.sleep(pause)
        pause *= 1.5
    record.broken.append(
        f"{pair[1]} loads nothing from {pair[0]} any more: {len(probes)} tries after the last fault, the last {said}"
    )


def _loads(engine: Engine) -> float:
    return metric_sum(_metrics(engine), "vllm:kvbridge_loads_total")


def _loaded_more(engine: Engine, before: float) -> bool:
    deadline = time.monotonic() + 2  # the counter comes with one of the engine's next steps
    while time.monotonic() < deadline:
        if _loads(engine) > before:
            return True
        time.sleep(LOOK / 5)
    return False


def _drain(engine: Engine, deadline: float) -> list[str]:
    """Wait until an engine holds nothing; return what it still holds."""
    while True:
        held = what_is_held(_metrics(engine))
        if not held or time.monotonic() > deadline:
            return held
        time.sleep(LOOK)
        try:
            engine.complete([2, 3, 4], max_tokens=1, timeout=HEALTHY)  # figures come with an engine's steps
        except (LaunchError, OSError, HTTPException):
            continue


def what_is_held(metrics: Mapping[str, float]) -> list[str]:
    """Say what an engine's gauges show to be held."""
    missing = [name for name in HELD if not any(series.partition("{")[0] == name for series in metrics)]
    if missing:
        return [f"{name} cannot be read" for name in missing]
    return [f"{what}: {metric_sum(metrics, name):g}" for name, what in HELD.items() if metric_sum(metrics, name)]


def _metrics(engine: Engine) -> Mapping[str, float]:
    try:
        return engine.metrics()
    except (LaunchError, OSError, HTTPException):
        return {}


def _count(cluster: Cluster, record: Record) -> None:
    """Take down what the engines counted and logged in all their lives."""
    for name in ENGINES:
        log = cluster.logs_of(name)
        record.broken.extend(f"{name}: its log has: {found}" for found in sorted(set(_INTERNAL.findall(log))))
        for dropped, delayed in _FILTERED.findall(log):
            record.facts["messages dropped"] = record.facts.get("messages dropped", 0) + int(dropped)
            record.facts["messages late"] = record.facts.get("messages late", 0) + int(delayed)
        metrics = _metrics(cluster.engine(name))
        for what in ("loads", "recomputed", "failed_loads", "expired"):
            key = f"{what.replace('_', ' ')} in last lives"
            record.facts[key] = record.facts.get(key, 0) + metric_sum(metrics, f"vllm:kvbridge_{what}_total")
