"""What an engine keeps for reuse, seen from outside: how much, when it is there, and how to make vLLM itself forget."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from kvbridge_vllm.launch.client import metric_sum
from kvbridge_vllm.launch.errors import EngineHTTPError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbridge_vllm.launch.engine import Engine

DEV_MODE: Mapping[str, str] = {"VLLM_SERVER_DEV_MODE": "1"}
"""Environment of an engine that `forget` is to work on."""

_OK = 200
_TIMEOUT_S = 20.0  # blocks come free when a request's last step is over; a copy takes well under a second
_LOOK_S = 0.05


class Counts(NamedTuple):
    """Blocks since the engine started: `kept` were copied out of its cache, `reused` were copied back into it."""

    kept: int
    reused: int


def counts(engine: Engine) -> Counts:
    """Read the connector's counters."""
    metrics = engine.metrics()
    return Counts(
        *(int(metric_sum(metrics, f"vllm:kvbridge_reuse_{name}_blocks_total")) for name in ("saved", "hit")),
    )


def wait_until_kept(engine: Engine, before: Counts, blocks: int) -> Counts:
    """Wait until so many blocks more than `before` are kept or were reused.

    Returns:
        The counters then.

    Raises:
        TimeoutError: They are not.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        now = counts(engine)
        done = sum(now) - sum(before)
        if done >= blocks:
            return now
        if time.monotonic() > deadline:
            raise TimeoutError(f"{engine.name} kept or reused {done} of {blocks} blocks within {_TIMEOUT_S:g} s")
        time.sleep(_LOOK_S)


def forget(engine: Engine) -> None:
    """Empty vLLM's own prefix cache; what the connector keeps stays.

    Raises:
        EngineHTTPError: The engine was not started with `DEV_MODE`.
        TimeoutError: It still holds blocks for requests.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        status, answer = engine.post("/reset_prefix_cache", {})
        if status != _OK:
            raise EngineHTTPError(status, answer)
        if isinstance(answer, dict) and answer.get("success"):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{engine.name} did not empty its prefix cache within {_TIMEOUT_S:g} s")
        time.sleep(_LOOK_S)
