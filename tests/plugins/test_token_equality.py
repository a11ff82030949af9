"""A prompt prefilled in one engine and decoded in another gives the tokens of a single engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.plugins.engines import counter, decode, eventually, plain, prefill, prompt

if TYPE_CHECKING:
    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine

PAGE = 16384
LAYERS = 4


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 65, 200, 1000])
def test_tokens_are_those_of_a_single_engine(producer: Engine, consumer: Engine, oracle: Engine, length: int) -> None:
    tokens = prompt(length, seed=1)
    before, loaded = counter(consumer, "loads"), counter(consumer, "loaded_bytes")
    params = prefill(producer, tokens)
    assert decode(consumer, tokens, params) == plain(oracle, tokens)
    if length == 1:
        return  # its only token is recomputed in any case: nothing is to be loaded
    assert eventually(lambda: counter(consumer, "loads") == before + 1), "the KV was not loaded but recomputed"
    blocks = -(-length // 32)
    assert eventually(lambda: counter(consumer, "loaded_bytes") == loaded + blocks * PAGE * LAYERS)


def test_the_response_speaks_the_convention_of_the_nixl_connector(producer: Engine) -> None:
    params = prefill(producer, prompt(70, seed=2))
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert isinstance(params["remote_engine_id"], str)
    assert isinstance(params["remote_request_id"], str)
    assert len(params["remote_block_ids"]) == 3
    assert params["remote_host"] == "127.0.0.1"
    assert 0 < params["remote_port"] < 65536
    assert params["tp_size"] == 1
    assert params["kvbridge"]["tokens"] == 70


def test_eight_concurrent_requests_are_all_right(producer: Engine, consumer: Engine, oracle: Engine) -> None:
    prompts = [prompt(100 + 37 * index, seed=3) for index in range(8)]
    before = counter(consumer, "loads")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda tokens: decode(consumer, tokens, prefill(producer, tokens)), prompts))
    assert answers == [plain(oracle, tokens) for tokens in prompts]
    assert eventually(lambda: counter(consumer, "loads") == before + 8)


def test_prefill_order_and_decode_order_may_differ(producer: Engine, consumer: Engine, oracle: Engine) -> None:
    prompts = [prompt(90 + index, seed=4) for index in range(3)]
    params = [prefill(producer, tokens) for tokens in prompts]
    for index in (2, 0, 1):
        assert decode(consumer, prompts[index], params[index]) == plain(oracle, prompts[index])


def test_only_what_the_decode_engine_does_not_have_is_loaded(
    producer: Engine, consumer: Engine, oracle: Engine
) -> None:
    shared = prompt(96, seed=5)
    first, second = shared + prompt(40, seed=6), shared + prompt(70, seed=7)
    decode(consumer, first, prefill(producer, first))
    loaded = counter(consumer, "loaded_bytes")
    assert decode(consumer, second, prefill(producer, second)) == plain(oracle, second)
    missing = -(-len(second) // 32) - 96 // 32
    assert eventually(lambda: counter(consumer, "loaded_bytes") == loaded + missing * PAGE * LAYERS)


def test_a_prompt_in_the_decode_engines_own_cache_gives_the_producers_memory_back(
    producer: Engine, consumer: Engine, oracle: Engine
) -> None:
    tokens = prompt(97, seed=8)  # three full blocks, then the one token that is computed in any case
    expected = plain(oracle, tokens)
    assert decode(consumer, tokens, prefill(producer, tokens)) == expected
    hits, held = counter(consumer, "local_hit"), counter(producer, "held_values")
    assert decode(consumer, tokens, prefill(producer, tokens)) == expected
    assert eventually(lambda: counter(consumer, "local_hit") == hits + 1)

    def only_as_many_as_before() -> bool:
        plain(producer, prompt(5, seed=9), max_tokens=1)  # statistics flow with the engine's steps
        return counter(producer, "held_values") <= held

    assert eventually(only_as_many_as_before)
