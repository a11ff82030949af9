"""Parameters of another prompt, of a batch, used twice, or of another length: right text by recompute, counted."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugins.engines import counter, decode, eventually, plain, prefill, prompt

if TYPE_CHECKING:
    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine


def recomputed(consumer: Engine, tokens: list[int], params: Any, expected: list[int]) -> None:
    before = counter(consumer, "recomputed")
    assert decode(consumer, tokens, params) == expected
    assert eventually(lambda: counter(consumer, "recomputed") == before + 1), "nothing was counted"


def test_params_of_another_prompt_of_equal_length(producer: Engine, consumer: Engine, oracle: Engine) -> None:
    mine, other = prompt(200, seed=20), prompt(200, seed=21)
    recomputed(consumer, mine, prefill(producer, other), plain(oracle, mine))


def test_params_with_the_digest_of_this_prompt_but_the_key_of_another(
    producer: Engine, consumer: Engine, oracle: Engine
) -> None:
    mine, other = prompt(200, seed=22), prompt(200, seed=23)
    forged = copy.deepcopy(prefill(producer, mine))
    forged["kvbridge"]["key"] = prefill(producer, other)["kvbridge"]["key"]
    recomputed(consumer, mine, forged, plain(oracle, mine))


def test_params_that_were_used_before(producer: Engine, consumer: Engine, oracle: Engine) -> None:
    tokens = prompt(220, seed=25)
    params = prefill(producer, tokens)
    expected = plain(oracle, tokens)
    assert decode(consumer, tokens, params) == expected
    consumed = counter(consumer, "misses", reason="consumed")
    status, _ = consumer.post("/reset_prefix_cache", {})  # else the second answer comes from its own cache
    assert status == 200
    recomputed(consumer, tokens, params, expected)
    assert eventually(lambda: counter(consumer, "misses", reason="consumed") == consumed + 1)


@pytest.mark.parametrize(("sent", "asked"), [(200, 400), (400, 200), (64, 65)])
def test_params_longer_or_shorter_than_the_prompt(
    producer: Engine, consumer: Engine, oracle: Engine, sent: int, asked: int
) -> None:
    long = prompt(400, seed=26 + sent)
    recomputed(consumer, long[:asked], prefill(producer, long[:sent]), plain(oracle, long[:asked]))


def test_one_params_object_for_a_batch_of_prompts(producer: Engine, consumer: Engine, oracle: Engine) -> None:
    prompts = [prompt(120, seed=30 + index) for index in range(4)]
    before = counter(consumer, "recomputed")
    params = prefill(producer, prompts)
    answer = consumer.complete(prompts, max_tokens=8, kv_transfer_params=params, return_token_ids=True)
    found = [choice["token_ids"] for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]
    assert found == [plain(oracle, tokens) for tokens in prompts]
    assert eventually(lambda: counter(consumer, "recomputed") == before + 3)


def test_several_samples_of_one_request(producer: Engine, consumer: Engine, oracle: Engine) -> None:
    tokens = prompt(150, seed=40)
    answer = consumer.complete(
        tokens,
        n=3,
        temperature=1,
        top_k=1,
        max_tokens=8,
        kv_transfer_params=prefill(producer, tokens),
        return_token_ids=True,
    )
    assert [choice["token_ids"] for choice in answer["choices"]] == [plain(oracle, tokens)] * 3


def test_a_salted_prompt_is_handed_over_under_its_salt_only(producer: Engine, consumer: Engine, oracle: Engine) -> None:
    tokens = prompt(130, seed=41)
    expected = plain(oracle, tokens)
    loads = counter(consumer, "loads")
    assert decode(consumer, tokens, prefill(producer, tokens, cache_salt="one"), cache_salt="one") == expected
    assert eventually(lambda: counter(consumer, "loads") == loads + 1)
    recomputed_params = prefill(producer, tokens, cache_salt="two")
    recomputed(consumer, prompt(130, seed=42), recomputed_params, plain(oracle, prompt(130, seed=42)))


WRONG = [
    {"do_remote_prefill": True},
    {"do_remote_prefill": True, "kvbridge": None},
    {"do_remote_prefill": True, "kvbridge": []},
    {"do_remote_prefill": True, "kvbridge": {"v": "1"}},
    {"do_remote_prefill": True, "kvbridge": {"v": 99}},
    {"do_remote_prefill": True, "kvbridge": {"v": 1, "key": 7}},
    {"do_remote_prefill": "yes", "do_remote_decode": 1},
    {"do_remote_decode": True, "do_remote_prefill": True, "remote_block_ids": "x"},
    {"remote_host": 5},
    {},
]


@pytest.mark.parametrize("params", WRONG, ids=range(len(WRONG)))
def test_params_of_wrong_types_are_answered_by_recompute(consumer: Engine, oracle: Engine, params: object) -> None:
    tokens = prompt(80, seed=50 + WRONG.index(params))
    assert decode(consumer, tokens, params) == plain(oracle, tokens)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("addresses", ["tcp://127.0.0.1:1"]),
        ("addresses", ["tcp://no-such-host.invalid:4242"]),
        ("addresses", ["ipc:///etc/passwd"]),
        ("addresses", []),
        ("generations", [1]),
        ("generations", [-1]),
        ("digest", "%%%"),
        ("block_size", 64),
        ("tokens", 10**9),
        ("key", "no-such-key"),
    ],
)
def test_params_that_lead_nowhere_are_answered_by_recompute(
    producer: Engine, consumer: Engine, oracle: Engine, field: str, value: object
) -> None:
    tokens = prompt(85, seed=hash((field, str(value))) % 1000)
    params = prefill(producer, tokens)
    params["kvbridge"][field] = value
    recomputed(consumer, tokens, params, plain(oracle, tokens))


def test_a_producer_does_not_load(producer: Engine, oracle: Engine) -> None:
    tokens = prompt(88, seed=60)
    params = prefill(producer, tokens)
    assert decode(producer, tokens, params) == plain(oracle, tokens)
    assert producer.healthy()
