"""What the tests on real engines share: configurations, prompts, and the two legs of a disaggregated request."""

from __future__ import annotations

import os
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_vllm.launch import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kvbridge_vllm.launch import EngineSpec


@contextmanager
def running(specs: Sequence[EngineSpec], folder: Path) -> Iterator[list[Engine]]:
    """Start engines together, wait for all of them, and stop them whatever happens."""
    engines: list[Engine] = []
    try:
        engines.extend(Engine(spec, folder) for spec in specs)
        for engine in engines:
            engine.wait_ready(400)
        yield engines
    finally:
        for engine in engines:
            engine.stop()


LONG = pytest.mark.skipif(not os.environ.get("KVBRIDGE_LONG"), reason="takes minutes: KVBRIDGE_LONG=1 runs it")

PREFILL_PARAMS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a router injects into the prefill leg, byte by byte."""

DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}
"""Opens /reset_prefix_cache, by which a test makes an engine forget what it computed."""

ENGINE_ARGS = ("--max-num-batched-tokens", "128", "--enable-chunked-prefill", "--enable-prefix-caching")
"""Long prompts are prefilled in chunks, on every engine alike: another chunking rounds differently."""


def transfer_config(role: str, **extra: Any) -> dict[str, Any]:
    return {
        "kv_connector": "KVBridgeConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"backend": "cpu", **extra},
    }


def prompt(length: int, seed: int) -> list[int]:
    chooser = random.Random(seed * 100_003 + length)
    return [chooser.randrange(2, 500) for _ in range(length)]


def prefill(engine: Engine, tokens: Any, **fields: Any) -> Any:
    answer = engine.complete(tokens, max_tokens=1, kv_transfer_params=PREFILL_PARAMS, **fields)
    return answer.get("kv_transfer_params")


def decode(engine: Engine, tokens: Any, params: Any, max_tokens: int = 8, **fields: Any) -> list[int]:
    answer = engine.complete(tokens, max_tokens=max_tokens, kv_transfer_params=params, return_token_ids=True, **fields)
    return list(answer["choices"][0]["token_ids"])


def plain(engine: Engine, tokens: list[int], max_tokens: int = 8) -> list[int]:
    answer = engine.complete(tokens, max_tokens=max_tokens, return_token_ids=True)
    return list(answer["choices"][0]["token_ids"])


def counter(engine: Engine, name: str, **labels: str) -> float:
    """Sum a kvbridge metric over its label sets."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        value
        for series, value in engine.metrics().items()
        if series.split("{")[0] in (f"vllm:kvbridge_{name}", f"vllm:kvbridge_{name}_total")
        and all(label in series for label in wanted)
    )


def blocks_in_use(engine: Engine) -> float:
    """Return the share of an engine's blocks that are taken, as of its last step."""
    return sum(value for name, value in engine.metrics().items() if name.startswith("vllm:kv_cache_usage_perc"))


def eventually(condition: Callable[[], bool], timeout: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
