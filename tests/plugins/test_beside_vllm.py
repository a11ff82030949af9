"""Four requests for which vLLM's own NIXL connector gives wrong text, or dies, and kvbridge on NIXL does neither.

Takes minutes: KVBRIDGE_LONG=1 runs it. Run it with `-s` for what each of them answered.
"""

from __future__ import annotations

import contextlib
import importlib.util
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_vllm.launch import EngineSpec, LaunchError
from kvbridge_vllm.launch.process import free_port
from tests.plugins.engines import DEV_MODE, ENGINE_ARGS, LONG, decode, plain, prefill, prompt, running, transfer_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine

pytestmark = [
    pytest.mark.engine,
    LONG,
    pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="pip install --no-deps nixl"),
]

THEIRS = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}


def specs(name: str, checkpoint: Path, configs: list[dict[str, Any]]) -> list[EngineSpec]:
    return [
        EngineSpec(
            f"{name}-{config['kv_role']}",
            checkpoint,
            kv_transfer_config=config,
            cpus=str(index),
            extra_args=ENGINE_ARGS,
            env={**DEV_MODE, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())},
        )
        for index, config in enumerate(configs)
    ]


@pytest.fixture(scope="module", params=["kvbridge", "vllm"])
def pair(request: pytest.FixtureRequest, folder: Path, checkpoint: Path) -> Iterator[tuple[str, Engine, Engine]]:
    roles = ("kv_producer", "kv_consumer")
    if request.param == "kvbridge":
        configs = [transfer_config(role, backend="nixl") for role in roles]
    else:
        configs = [{**THEIRS, "kv_role": role} for role in roles]
    with running(specs(f"beside-{request.param}", checkpoint, configs), folder) as engines:
        yield request.param, engines[0], engines[1]


def judge(who: str, what: str, found: Any, expected: Any) -> None:
    right = found == expected
    print(f"{who}: {what}: {'right' if right else 'WRONG'}")
    assert right == (who == "kvbridge"), f"{who}: {found}, right is {expected}"


def asked(engine: Engine, tokens: Any, params: Any) -> Any:
    with contextlib.suppress(LaunchError, OSError, HTTPException):
        return decode(engine, tokens, params)
    return "no answer"


def test_one_params_object_for_a_batch(pair: tuple[str, Engine, Engine], oracle: Engine) -> None:
    who, producer, consumer = pair
    prompts = [prompt(120, seed=30 + index) for index in range(3)]
    params = prefill(producer, prompts)
    answer = consumer.complete(prompts, max_tokens=8, kv_transfer_params=params, return_token_ids=True)
    found = [choice["token_ids"] for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]
    judge(who, "one params object for a batch of prompts", found, [plain(oracle, tokens) for tokens in prompts])


def test_params_that_were_used_before(pair: tuple[str, Engine, Engine], oracle: Engine) -> None:
    who, producer, consumer = pair
    tokens = prompt(220, seed=25)
    params, expected = prefill(producer, tokens), plain(oracle, tokens)
    first = decode(consumer, tokens, params)
    assert first == expected
    for seed in range(60, 70):  # the blocks that were handed over are used for something else
        plain(producer, prompt(300, seed=seed), max_tokens=1)
    assert producer.post("/reset_prefix_cache", {})[0] == consumer.post("/reset_prefix_cache", {})[0] == 200
    judge(who, "params that were used before", asked(consumer, tokens, params), expected)


def test_params_of_another_prompt(pair: tuple[str, Engine, Engine], oracle: Engine) -> None:
    who, producer, consumer = pair
    mine, other = prompt(200, seed=20), prompt(200, seed=21)
    found = asked(consumer, mine, prefill(producer, other))
    judge(who, "params of another prompt of equal length", found, plain(oracle, mine))


def test_params_of_a_shorter_prompt(pair: tuple[str, Engine, Engine], oracle: Engine) -> None:
    """The last one: vLLM's decode engine dies of it."""
    who, producer, consumer = pair
    long = prompt(400, seed=46)
    found = asked(consumer, long, prefill(producer, long[:200]))
    judge(who, "params of a shorter prompt", found, plain(oracle, long))
    print(f"{who}: the decode engine is {'alive' if consumer.healthy() else 'DEAD'}")
    assert consumer.healthy() or who == "vllm"
