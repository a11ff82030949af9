"""Real engines keep what they computed, and load it back: the same tokens, and exactly so many of them from there."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from kvbridge_vllm.launch import EngineSpec
from tests.plugins.engines import DEV_MODE, counter, eventually, plain, prompt, running
from tests.plugins.kv_events import Events
from tests.plugins.reuse_engines import (
    BLOCK_BYTES,
    DETAILS,
    ask,
    config,
    forget,
    kv_aware_router,
    router_answer,
    settled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def probe(folder: Path) -> Path:
    path = folder / "reuse-probe"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def heard() -> Iterator[tuple[Events, Events]]:
    """What the two engines that share say of their blocks."""
    with Events() as first, Events() as second:
        yield first, second


@pytest.fixture(scope="module")
def pair(folder: Path, checkpoint: Path, probe: Path, heard: tuple[Events, Events]) -> Iterator[tuple[Engine, Engine]]:
    """Two engines that share what they keep. The first is told by a file to spoil what it loads."""
    fewer = ("--num-gpu-blocks-override", "300")
    shared = config(backend="cpu", reuse={"capacity": "64MiB", "share": True})
    probing = {**shared, "kv_connector": "ProbeConnector", "kv_connector_module_path": "tests.plugins.probe_connector"}
    specs = [
        EngineSpec(
            "reuse-a",
            checkpoint,
            kv_transfer_config=probing,
            cpus="0",
            extra_args=(*DETAILS, *fewer, *heard[0].arguments),
            env={**DEV_MODE, "KVBRIDGE_TEST_PROBE": str(probe)},
        ),
        EngineSpec(
            "reuse-b",
            checkpoint,
            kv_transfer_config=shared,
            cpus="1",
            extra_args=(*DETAILS, *fewer, *heard[1].arguments),
            env=DEV_MODE,
        ),
    ]
    with running(specs, folder) as engines:
        yield engines[0], engines[1]


@pytest.fixture
def first(pair: tuple[Engine, Engine]) -> Engine:
    return pair[0]


@pytest.fixture
def second(pair: tuple[Engine, Engine]) -> Engine:
    return pair[1]


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 200, 1000])
def test_a_prompt_that_was_computed_is_loaded_up_to_its_last_token(first: Engine, oracle: Engine, length: int) -> None:
    tokens = prompt(length, seed=50)
    expected = plain(oracle, tokens)
    assert ask(first, tokens) == (expected, 0)
    forget(first)
    assert ask(first, tokens) == (expected, (length - 1) // 32 * 32)


def test_the_test_would_see_wrong_bytes(first: Engine, oracle: Engine, probe: Path) -> None:
    tokens = prompt(200, seed=51)
    ask(first, tokens)
    forget(first)
    (probe / "zero").touch()
    try:
        found, cached = ask(first, tokens)
    finally:
        (probe / "zero").unlink()
    assert cached == 192
    assert found != plain(oracle, tokens)
    forget(first)


def test_what_one_engine_computed_another_one_loads(first: Engine, second: Engine, oracle: Engine) -> None:
    tokens = prompt(300, seed=52)
    hits = counter(second, "reuse_hit_blocks")
    assert ask(first, tokens) == (plain(oracle, tokens), 0)
    assert ask(second, tokens) == (plain(oracle, tokens), 288)
    assert eventually(lambda: counter(second, "reuse_hit_blocks") == hits + 9)


def test_vllms_own_figures_are_exact_and_name_the_tier(first: Engine) -> None:
    def external(what: str) -> float:
        return sum(value for name, value in first.metrics().items() if name.startswith(f"vllm:external_{what}_total"))

    tokens = prompt(150, seed=53)
    queries, hits = external("prefix_cache_queries"), external("prefix_cache_hits")
    ask(first, tokens)
    forget(first)
    ask(first, tokens)
    assert eventually(lambda: external("prefix_cache_hits") == hits + 128)
    assert external("prefix_cache_queries") == queries + 2 * 150
    assert any('"host"' in name and value > 0 for name, value in first.metrics().items() if "source" in name)


def test_generated_tokens_are_kept_too(first: Engine, oracle: Engine) -> None:
    tokens = prompt(40, seed=54)
    answer, _ = ask(first, tokens, max_tokens=60)
    longer = tokens + answer
    forget(first)
    assert ask(first, longer) == (plain(oracle, longer), 96)  # of 100 tokens the last one was never computed


def test_requests_that_share_a_prefix_load_it_once(first: Engine, oracle: Engine) -> None:
    shared = prompt(640, seed=55)
    ask(first, shared)
    forget(first)
    loaded = counter(first, "reuse_loaded_bytes")
    prompts = [shared + prompt(20 + index, seed=56) for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda tokens: ask(first, tokens), prompts))
    assert [tokens for tokens, _ in answers] == [plain(oracle, tokens) for tokens in prompts]
    assert [cached for _, cached in answers] == [640] * 8
    assert eventually(lambda: counter(first, "reuse_loaded_bytes") == loaded + 20 * BLOCK_BYTES)


def test_another_salt_is_another_key(first: Engine, oracle: Engine) -> None:
    tokens = prompt(100, seed=57)
    ask(first, tokens, cache_salt="one")
    forget(first)
    assert ask(first, tokens, cache_salt="two") == (plain(oracle, tokens), 0)
    forget(first)
    assert ask(first, tokens) == (plain(oracle, tokens), 0)
    forget(first)
    assert ask(first, tokens, cache_salt="one")[1] == 96


def test_a_client_that_goes_while_its_blocks_are_loaded_leaves_nothing_behind(
    first: Engine, oracle: Engine, probe: Path
) -> None:
    tokens = prompt(260, seed=61)
    ask(first, tokens)
    assert eventually(lambda: settled(first))
    forget(first)
    (probe / "hold").touch()
    try:
        with pytest.raises(OSError, match="timed out"):
            first.complete(tokens, max_tokens=8, timeout=2)
        assert first.metrics()  # alive, and the load is still under way
        assert first.post("/reset_prefix_cache", {}) == (200, {"success": False}), "its blocks are being written to"
    finally:
        (probe / "hold").unlink()
    assert eventually(lambda: counter(first, "reuse_pins") == 0)
    forget(first)
    assert ask(first, tokens) == (plain(oracle, tokens), 256)


def test_many_requests_at_one_time_are_all_right(first: Engine, second: Engine, oracle: Engine) -> None:
    chooser = random.Random(59)
    documents = [prompt(chooser.randrange(64, 400), seed=600 + index) for index in range(6)]
    prompts = [chooser.choice(documents) + prompt(chooser.randrange(1, 60), seed=index) for index in range(48)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda one: ask(one[0], one[1]), zip([first, second] * 24, prompts, strict=True)))
    assert [tokens for tokens, _ in answers] == [plain(oracle, tokens) for tokens in prompts]
    for engine in (first, second):
        plain(engine, prompt(5, seed=60), max_tokens=2)
    assert eventually(lambda: counter(first, "reuse_pins") == 0 and counter(second, "reuse_pins") == 0)


def test_events_are_such_as_a_strict_router_takes(heard: tuple[Events, Events]) -> None:
    assert sum(len(events.there["CPU"]) for events in heard) > 20, "what one keeps, the other need not"
    assert [events.wrong for events in heard] == [[], []]


def test_events_steer_the_router_to_what_is_kept(
    pair: tuple[Engine, Engine], heard: tuple[Events, Events], oracle: Engine, folder: Path
) -> None:
    with kv_aware_router(pair, heard, folder) as router:
        wanted = {0: prompt(257, seed=101), 1: prompt(257, seed=102)}
        for index, tokens in wanted.items():
            ask(pair[index], tokens)
            for seed in range(12):  # enough for the engine's own cache to give those blocks up
                plain(pair[index], prompt(1000, seed=1000 + seed), max_tokens=1)
        time.sleep(1)
        for index, tokens in wanted.items():
            before = [counter(engine, "reuse_hit_blocks") for engine in pair]
            answer = router_answer(router, pair[0].spec.model.name, tokens)
            assert answer == oracle.complete(tokens, max_tokens=8)["choices"][0]["text"]
            after = [counter(engine, "reuse_hit_blocks") for engine in pair]
            assert after[index] - before[index] == 8, (index, before, after)
            assert after[1 - index] == before[1 - index]
    assert heard[0].wrong == []
    assert heard[1].wrong == []


def test_an_engine_dies_and_the_other_one_still_hits(pair: tuple[Engine, Engine], oracle: Engine) -> None:
    first, second = pair
    tokens = prompt(260, seed=92)
    ask(first, tokens)
    first.kill()
    assert ask(second, tokens) == (plain(oracle, tokens), 256)
    assert eventually(lambda: counter(second, "reuse_pins") == 0)
