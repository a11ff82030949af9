"""Engines that share a prefix cache by Mooncake's store: hits in another process, and a master that is killed.

Takes minutes: KVBRIDGE_LONG=1 runs it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kvbridge_mooncake.services import Services
from kvbridge_vllm.launch import EngineSpec
from tests.plugins.engines import DEV_MODE, LONG, counter, eventually, plain, prompt, running
from tests.plugins.reuse_engines import DETAILS, ask, config, forget

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine

pytestmark = [
    pytest.mark.engine,
    LONG,
]


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    made = Services("1GB")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def engines(folder: Path, checkpoint: Path, services: Services) -> Iterator[tuple[Engine, Engine, Engine]]:
    """Two that compute the same KV, and one that computes it in another dtype."""
    far = {"backend": "mooncake-store", "options": {"master": services.master}, "timeout": 5, "retry": 1}
    kept = config(reuse=[{"backend": "cpu", "capacity": "64MiB"}, far])
    specs = [
        EngineSpec(
            f"far-{index}",
            checkpoint,
            kv_transfer_config=kept,
            cpus=str(index % 2),
            dtype=dtype,
            max_model_len=2560,
            extra_args=DETAILS,
            env=DEV_MODE,
        )
        for index, dtype in enumerate(("float32", "float32", "bfloat16"))
    ]
    with running(specs, folder) as started:
        yield started[0], started[1], started[2]


def test_a_prefix_computed_by_one_engine_is_a_hit_in_another_process(engines: tuple[Engine, ...]) -> None:
    first, second, other = engines
    tokens = prompt(2048, seed=130)
    expected, cached = ask(first, tokens)
    assert cached == 0
    assert eventually(lambda: _demoted(first) >= 64, 60)
    promoted = counter(second, "reuse_tier_promoted_blocks")
    assert ask(second, tokens) == (expected, 2016)
    assert eventually(lambda: counter(second, "reuse_tier_promoted_blocks") == promoted + 63)
    assert any('"external_unspecified"' in name and value > 0 for name, value in second.metrics().items())
    # The same prompt in another dtype is other KV: a miss, and its own right answer.
    alone, cached = ask(other, tokens)
    assert cached == 0
    forget(other)
    assert ask(other, tokens) == (alone, 2016)


def test_a_master_that_is_killed_costs_time_and_no_wrong_token(engines: tuple[Engine, ...], services: Services) -> None:
    first, second, _ = engines
    tokens = prompt(512, seed=131)
    expected, _ = ask(first, tokens)
    assert eventually(lambda: _demoted(first) >= 16, 60)
    services.kill_master()
    started = time.monotonic()
    for seed in range(132, 138):
        one = prompt(300, seed=seed)
        assert ask(second, one)[0] == plain(second, one)
    assert ask(second, tokens)[0] == expected
    assert time.monotonic() - started < 120
    assert counter(second, "reuse_tier_failures") + counter(second, "reuse_tier_timeouts") > 0
    services.start_master()

    def hits_again() -> bool:
        fresh = prompt(400, seed=140 + int(time.monotonic() * 1000) % 100000)
        before = ask(first, fresh)[0]
        time.sleep(1)
        found, cached = ask(second, fresh)
        assert found == before
        return cached == 384

    assert eventually(hits_again, 120)


def _demoted(engine: Engine) -> float:
    plain(engine, prompt(2, seed=1), max_tokens=2)  # statistics flow with the engine's steps
    return counter(engine, "reuse_tier_demoted_blocks")
