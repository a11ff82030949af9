"""A prefill engine of another kind, whose decode never comes, and which is killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kvbridge_vllm.launch import Engine, EngineSpec
from tests.plugins.engines import blocks_in_use, counter, decode, eventually, plain, prefill, prompt, transfer_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.engine

LEASE = 2.0


@pytest.fixture(scope="module")
def unlike(folder: Path, checkpoint: Path) -> Iterator[Engine]:
    """A prefill engine with another dtype and block size, and a short lease."""
    spec = EngineSpec(
        "unlike",
        checkpoint,
        kv_transfer_config=transfer_config("kv_producer", lease=LEASE),
        block_size=64,
        dtype="bfloat16",
        cpus="0",
    )
    with Engine(spec, folder) as engine:
        engine.wait_ready(300)
        yield engine


def test_another_block_size_is_recomputed(unlike: Engine, consumer: Engine, oracle: Engine) -> None:
    tokens = prompt(140, seed=80)
    assert decode(consumer, tokens, prefill(unlike, tokens)) == plain(oracle, tokens)
    assert "the params are for block_size 64, this request or engine has 32" in consumer.log_text()


def test_a_refused_handshake_names_every_difference_with_both_values(
    unlike: Engine, consumer: Engine, oracle: Engine
) -> None:
    tokens = prompt(141, seed=81)
    params = prefill(unlike, tokens)
    params["kvbridge"]["block_size"] = 32  # past the first check, so that the engines themselves must find out
    refused = counter(consumer, "misses", reason="handshake")
    assert decode(consumer, tokens, params) == plain(oracle, tokens)
    assert eventually(lambda: counter(consumer, "misses", reason="handshake") == refused + 1)
    log = consumer.log_text()
    assert "block_size: 32 here, 64 at the peer" in log
    assert "dtype: float32 here, bfloat16 at the peer" in log
    assert "page_bytes: 16384 here, 16384 at the peer" not in log


def test_a_prefill_whose_decode_never_comes_is_forgotten_after_its_lease(unlike: Engine) -> None:
    expired = counter(unlike, "expired")
    for index in range(5):
        prefill(unlike, prompt(200, seed=82 + index))
    assert eventually(lambda: counter(unlike, "held_values") >= 1)

    def blocks_are_free() -> bool:
        plain(unlike, prompt(3, seed=2), max_tokens=1)  # statistics flow with the engine's steps
        return not blocks_in_use(unlike)

    assert eventually(blocks_are_free), "the engine's blocks are still taken"
    time.sleep(LEASE + 1.5)  # no traffic
    plain(unlike, prompt(3, seed=1), max_tokens=1)  # statistics flow with the engine's steps
    assert eventually(lambda: counter(unlike, "expired") >= expired + 5)
    assert eventually(lambda: counter(unlike, "held_values") == 0)


def test_killed_between_prefill_and_decode(unlike: Engine, consumer: Engine, oracle: Engine) -> None:
    tokens = prompt(142, seed=90)
    params = prefill(unlike, tokens)
    params["kvbridge"]["block_size"] = 32
    expected = plain(oracle, tokens)
    unlike.kill()
    lost = counter(consumer, "misses", reason="peer-lost")
    started = time.monotonic()
    assert decode(consumer, tokens, params) == expected
    assert time.monotonic() - started < 10
    assert eventually(lambda: counter(consumer, "misses", reason="peer-lost") == lost + 1)
    assert consumer.healthy()
