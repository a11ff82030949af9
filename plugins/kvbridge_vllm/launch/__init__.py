"""Real vLLM servers and routers as child processes, for the demo, the tests and the benchmarks."""

from __future__ import annotations

from kvbridge_vllm.launch.engine import Engine, EngineSpec
from kvbridge_vllm.launch.errors import (
    EngineHTTPError,
    EngineStartError,
    LaunchError,
    RouterStartError,
    StartError,
)
from kvbridge_vllm.launch.router import Router

__all__ = [
    "Engine",
    "EngineHTTPError",
    "EngineSpec",
    "EngineStartError",
    "LaunchError",
    "Router",
    "RouterStartError",
    "StartError",
]
