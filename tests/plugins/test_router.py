"""The real vllm-router drives prefill and decode engine unmodified."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from kvbridge_vllm.launch import Router
from tests.plugins.engines import counter, eventually, plain, prompt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def router(duo: tuple[Engine, Engine], folder: Path) -> Iterator[Router]:
    with Router([duo[0].url], [duo[1].url], folder) as router:
        router.wait_ready(60)
        yield router


def ask(router: Router, engine: Engine, tokens: Any, **fields: Any) -> Any:
    body = {
        "model": engine.spec.model.name,
        "prompt": tokens,
        "max_tokens": 8,
        "temperature": 0,
        "return_token_ids": True,
        **fields,
    }
    request = Request(f"{router.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with build_opener(ProxyHandler({})).open(request, timeout=120) as answer:
        return json.loads(answer.read())


def test_a_prompt_through_the_router(router: Router, consumer: Engine, oracle: Engine) -> None:
    tokens = prompt(210, seed=110)
    loads = counter(consumer, "loads")
    assert ask(router, consumer, tokens)["choices"][0]["token_ids"] == plain(oracle, tokens)
    assert eventually(lambda: counter(consumer, "loads") == loads + 1), "the router did not hand over"


def test_a_batch_through_the_router_is_right_for_every_prompt(router: Router, consumer: Engine, oracle: Engine) -> None:
    prompts = [prompt(120, seed=111 + index) for index in range(3)]
    answer = ask(router, consumer, prompts)
    found = [choice["token_ids"] for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]
    assert found == [plain(oracle, tokens) for tokens in prompts]


def test_several_samples_through_the_router(router: Router, consumer: Engine, oracle: Engine) -> None:
    tokens = prompt(150, seed=115)
    answer = ask(router, consumer, tokens, n=3, temperature=1, top_k=1)
    assert [choice["token_ids"] for choice in answer["choices"]] == [plain(oracle, tokens)] * 3


def test_eight_clients_at_once(router: Router, consumer: Engine, oracle: Engine) -> None:
    prompts = [prompt(64 + 11 * index, seed=120) for index in range(8)]
    loads = counter(consumer, "loads")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda tokens: ask(router, consumer, tokens), prompts))
    assert [answer["choices"][0]["token_ids"] for answer in answers] == [plain(oracle, p) for p in prompts]
    assert eventually(lambda: counter(consumer, "loads") == loads + 8)


def test_a_client_that_goes_away_leaves_no_trace(router: Router, producer: Engine, consumer: Engine) -> None:
    tokens = prompt(500, seed=130)
    with (
        pytest.raises(TimeoutError),
        build_opener(ProxyHandler({})).open(
            Request(
                f"{router.url}/v1/completions",
                json.dumps({"model": consumer.spec.model.name, "prompt": tokens, "max_tokens": 1500}).encode(),
                {"Content-Type": "application/json"},
            ),
            timeout=1.5,
        ) as answer,
    ):
        answer.read()

    def idle() -> bool:
        metrics = consumer.metrics()
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return not any(value for name, value in metrics.items() if name.split("{")[0] in names)

    assert eventually(idle, 30)
    assert producer.healthy()
