"""As a child of vLLM's MultiConnector, twice, and beside vLLM's own connector: right tokens, and right figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_vllm.launch import EngineSpec
from tests.plugins.engines import DEV_MODE, ENGINE_ARGS, counter, eventually, plain, prompt, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine

BLOCK_BYTES = 4 * 16384


def child(name: str, **extra: Any) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}


@pytest.fixture(scope="module")
def engine(folder: Path, checkpoint: Path) -> Iterator[Engine]:
    children = [
        child("KVBridgeConnector", reuse={"capacity": 2 * BLOCK_BYTES}),
        child("NixlConnector"),
        child("KVBridgeConnector", reuse={"capacity": "64MiB"}),
    ]
    spec = EngineSpec(
        "multi",
        checkpoint,
        kv_transfer_config=child("MultiConnector", connectors=children),
        cpus="1",
        extra_args=(*ENGINE_ARGS, "--enable-prompt-tokens-details"),
        env=DEV_MODE,
    )
    with running([spec], folder) as engines:
        yield engines[0]


def test_two_of_them_beside_vllms_own(engine: Engine, oracle: Engine) -> None:
    tokens = prompt(300, seed=120)
    assert plain(engine, tokens) == plain(oracle, tokens)
    assert engine.post("/reset_prefix_cache", {})[0] == 200
    answer = engine.complete(tokens, max_tokens=8, return_token_ids=True)
    assert list(answer["choices"][0]["token_ids"]) == plain(oracle, tokens)
    # vLLM takes the first child that has anything: here the one with two slots, which hold the prompt's beginning.
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    plain(engine, prompt(3, seed=121), max_tokens=3)
    assert eventually(lambda: counter(engine, "reuse_loads") == 1)
    assert counter(engine, "reuse_hit_blocks") == 2
    assert counter(engine, "reuse_loaded_bytes") == 2 * BLOCK_BYTES
    assert counter(engine, "reuse_slots") == 2 + (64 << 20) // BLOCK_BYTES
    assert counter(engine, "reuse_kept_blocks") == 2 + 9
    assert counter(engine, "reuse_pins") == 0
    nixl = [name for name in engine.metrics() if name.startswith("vllm:nixl")]
    assert nixl, "the other connector's figures are there too"
