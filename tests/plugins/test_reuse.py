"""Real engines keep what they computed, and load it back: the same tokens, and exactly so many of them from there."""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_vllm.launch import EngineSpec
from tests.plugins.engines import DEV_MODE, ENGINE_ARGS, counter, eventually, plain, prompt, running
from tests.plugins.kv_events import Events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine

BLOCK_BYTES = 4 * 16384
DETAILS = (*ENGINE_ARGS, "--enable-prompt-tokens-details")


def config(**extra: Any) -> dict[str, Any]:
    return {"kv_connector": "KVBridgeConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


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


def forget(engine: Engine, *, kept: bool = False) -> None:
    """Empty an engine's own cache; with `kept` what the connector keeps as well."""
    path = "/reset_prefix_cache" + ("?reset_external=true" if kept else "")
    assert eventually(lambda: engine.post(path, {})[0] == 200)


def ask(engine: Engine, tokens: list[int], max_tokens: int = 8, **fields: Any) -> tuple[list[int], int]:
    """Return the answer and how many tokens of the prompt were not computed."""
    answer = engine.complete(tokens, max_tokens=max_tokens, return_token_ids=True, **fields)
    details = answer["usage"].get("prompt_tokens_details") or {}
    return list(answer["choices"][0]["token_ids"]), details.get("cached_tokens") or 0


def settled(engine: Engine) -> bool:
    """Whether nothing is under way: no slot is pinned or being filled."""
    return counter(engine, "reuse_pins") == 0 and counter(engine, "reuse_used_slots") == counter(
        engine, "reuse_kept_blocks"
    )


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
    assert all(len(events.there["CPU"]) > 100 for events in heard)
    assert [events.wrong for events in heard] == [[], []]


def test_an_engine_dies_and_the_other_one_still_hits(pair: tuple[Engine, Engine], oracle: Engine) -> None:
    first, second = pair
    tokens = prompt(260, seed=92)
    ask(first, tokens)
    first.kill()
    assert ask(second, tokens) == (plain(oracle, tokens), 256)
    assert eventually(lambda: counter(second, "reuse_pins") == 0)


@pytest.fixture(scope="module")
def told() -> Iterator[Events]:
    """What the tight engine says of its blocks."""
    with Events() as events:
        yield events


@pytest.fixture(scope="module")
def tight(folder: Path, checkpoint: Path, told: Events, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with blocks for five prompts of eight, slots for twelve blocks, and files below."""
    files = {"folder": str(tmp_path_factory.mktemp("kept")), "capacity": "64MiB"}
    reuse = [{"backend": "cpu", "capacity": 12 * BLOCK_BYTES}, {"backend": "files", "options": files}]
    spec = EngineSpec(
        "reuse-tight",
        checkpoint,
        kv_transfer_config=config(handoff={"backend": "cpu"}, reuse=reuse),
        cpus="0",
        max_model_len=640,
        extra_args=(*DETAILS, "--num-gpu-blocks-override", "44", *told.arguments),
        env=DEV_MODE,
    )
    with running([spec], folder) as engines:
        yield engines[0]


def test_what_the_slots_gave_up_comes_back_from_files(tight: Engine, oracle: Engine) -> None:
    prompts = [prompt(257, seed=70 + index) for index in range(4)]
    for tokens in prompts:
        assert ask(tight, tokens)[0] == plain(oracle, tokens)
        assert eventually(lambda: settled(tight))
    forget(tight)
    for tokens in prompts:
        assert ask(tight, tokens) == (plain(oracle, tokens), 256)
        forget(tight)
    assert eventually(lambda: counter(tight, "reuse_tier_promoted_blocks") >= 24)
    assert any('"disk"' in name and value > 0 for name, value in tight.metrics().items() if "source" in name)


def test_preempted_requests_are_right_and_nothing_stays_pinned(tight: Engine, oracle: Engine) -> None:
    prompts = [prompt(200, seed=80 + index) for index in range(8)]
    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda tokens: ask(tight, tokens, max_tokens=40)[0], prompts))
        assert answers == [plain(oracle, tokens, max_tokens=40) for tokens in prompts]
        forget(tight)
    preempted = [value for name, value in tight.metrics().items() if name.startswith("vllm:num_preemptions_total")]
    assert sum(preempted) > 0, "the test is too easy: nobody was preempted"
    assert eventually(lambda: settled(tight))


def test_soak_with_a_tight_cap(tight: Engine, oracle: Engine) -> None:
    chooser = random.Random(90)
    documents = [prompt(chooser.randrange(40, 300), seed=900 + index) for index in range(12)]
    expected = {json.dumps(one): plain(oracle, one, max_tokens=4) for one in documents}
    deadline = time.monotonic() + (180 if os.environ.get("KVBRIDGE_LONG") else 15)

    def ask_on(seed: int) -> int:
        mine, count = random.Random(seed), 0
        while time.monotonic() < deadline:
            tokens = mine.choice(documents)
            assert ask(tight, tokens, max_tokens=4)[0] == expected[json.dumps(tokens)]
            count += 1
        return count

    with ThreadPoolExecutor(6) as pool:
        resets = 0
        asking = [pool.submit(ask_on, seed) for seed in range(6)]
        while not all(one.done() for one in asking):
            tight.post("/reset_prefix_cache", {})
            resets += 1
            time.sleep(0.5)
        assert sum(one.result() for one in asking) > 50
    plain(tight, prompt(5, seed=91), max_tokens=3)
    assert eventually(lambda: settled(tight))
    assert counter(tight, "reuse_failed_loads") == 0
    assert counter(tight, "reuse_failed_saves") == 0


def test_a_reset_reaches_what_is_kept(tight: Engine, oracle: Engine) -> None:
    tokens = prompt(100, seed=58)
    ask(tight, tokens)
    assert eventually(lambda: settled(tight))
    forget(tight, kept=True)
    assert ask(tight, tokens) == (plain(oracle, tokens), 0)
    forget(tight)
    assert ask(tight, tokens)[1] == 96, "what it computed since then is kept under its new epoch"


def test_events_tell_exactly_what_is_kept(tight: Engine, told: Events) -> None:
    for index in range(6):
        ask(tight, prompt(200, seed=950 + index))
    assert eventually(lambda: settled(tight))
    plain(tight, prompt(5, seed=91), max_tokens=3)
    kept = counter(tight, "reuse_kept_blocks")
    assert told.wrong == []
    assert eventually(lambda: len(told.there["CPU"]) == kept), (len(told.there["CPU"]), kept)
    assert len(told.there["STORAGE"]) > kept
    assert told.wrong == []
