"""The same on engines whose KV moves by Mooncake, from cache to cache and by way of its store, and by gloo."""

from __future__ import annotations

import os
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_mooncake.services import Services
from kvbridge_vllm.launch import EngineSpec, client
from kvbridge_vllm.launch.process import free_port
from kvbridge_vllm.launch.router import Router
from tests.plugins.engines import (
    DEV_MODE,
    ENGINE_ARGS,
    PREFILL_PARAMS,
    counter,
    decode,
    eventually,
    plain,
    prefill,
    prompt,
    running,
    transfer_config,
)
from tests.plugins.test_router import *  # noqa: F403 - these tests again, with the engines of this module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine

LAYERS = 4
"""Of the model."""

PATIENT = pytest.mark.skipif(
    bool(os.environ.get("CI")) and not os.environ.get("KVBRIDGE_LONG"), reason="continuous integration runs PUT_ASYNC"
)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    made = Services("1GB")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def discovery() -> str:
    """Where a router will listen for engines that make themselves known."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(
    scope="module",
    params=[
        ("mooncake", "GET", 0),
        ("mooncake-store", "GET", 0),
        ("nccl", "GET", 0),
        pytest.param(("nccl", "PUT", 0), marks=PATIENT),
        pytest.param(("nccl", "PUT", 1), marks=PATIENT),
        ("nccl", "PUT_ASYNC", 2),
    ],
    ids=lambda kind: " ".join(map(str, kind)),
)
def duo(
    request: pytest.FixtureRequest, folder: Path, checkpoint: Path, services: Services, discovery: str
) -> Iterator[tuple[Engine, Engine]]:
    backend, mode, layers = request.param
    options = {"master": services.master} if backend == "mooncake-store" else {}
    secret = folder / "secret"  # here, so that it is seen to work between engines
    secret.write_text("a secret that both engines know")
    secret.chmod(0o600)
    extra: dict[str, Any] = {"options": options, "lease": 60, "secret_file": str(secret)}
    extra.update(mode=mode, layers=layers)
    ports = [free_port(), free_port()]
    specs = [
        EngineSpec(
            f"{backend}-{mode}-{layers}-{role}",
            checkpoint,
            kv_transfer_config=transfer_config(
                role,
                backend=backend,
                discovery={"router": discovery, "http": f"127.0.0.1:{ports[index]}"},
                **extra,
            ),
            port=ports[index],
            cpus=str(index),
            extra_args=ENGINE_ARGS,
            env=DEV_MODE,
        )
        for index, role in enumerate(("kv_producer", "kv_consumer"))
    ]
    with running(specs, folder) as engines:
        yield engines[0], engines[1]


def parts(engine: Engine) -> int:
    """How many values a request's KV is."""
    layers = extra_config(engine)["layers"]
    return LAYERS // layers if layers else 1


def extra_config(engine: Engine) -> Any:
    config = engine.spec.kv_transfer_config
    assert config is not None
    return config["kv_connector_extra_config"]


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["text"])


@pytest.mark.parametrize("length", [33, 200, 1000])
def test_what_was_prefilled_elsewhere_is_decoded_alike(duo: tuple[Engine, Engine], oracle: Engine, length: int) -> None:
    producer, consumer = duo
    tokens = prompt(length, seed=920)
    loads = counter(consumer, "loads")
    assert decode(consumer, tokens, prefill(producer, tokens)) == plain(oracle, tokens)
    assert eventually(lambda: counter(consumer, "loads") == loads + 1)


def test_a_prefill_engine_may_generate_more_than_one_token(duo: tuple[Engine, Engine], oracle: Engine) -> None:
    producer, consumer = duo
    tokens = prompt(100, seed=925)
    loads = counter(consumer, "loads")
    answer = producer.complete(tokens, max_tokens=3, kv_transfer_params=PREFILL_PARAMS)
    assert decode(consumer, tokens, answer["kv_transfer_params"]) == plain(oracle, tokens)
    assert eventually(lambda: counter(consumer, "loads") == loads + 1)
    assert producer.healthy()


def test_params_of_another_prompt_are_of_no_use(duo: tuple[Engine, Engine], oracle: Engine) -> None:
    producer, consumer = duo
    mine, other = prompt(200, seed=921), prompt(200, seed=922)
    recomputed = counter(consumer, "recomputed")
    assert decode(consumer, mine, prefill(producer, other)) == plain(oracle, mine)
    assert eventually(lambda: counter(consumer, "recomputed") == recomputed + 1)


def test_what_is_pushed_is_there_before_its_request(duo: tuple[Engine, Engine], oracle: Engine) -> None:
    producer, consumer = duo
    if "PUT" not in producer.spec.name:
        pytest.skip("this pair does not push")
    (address,) = re.findall(r"control address tcp://([^\s,]+),", consumer.log_text())
    taken, loads = counter(consumer, "push_taken"), counter(consumer, "loads")
    prompts = [prompt(300 + index, seed=928) for index in range(3)]
    named = [f"___prefill_addr_x:1___decode_addr_{address}_{uuid.uuid4().hex}" for _ in prompts]
    params = [prefill(producer, tokens, request_id=name) for tokens, name in zip(prompts, named, strict=True)]
    time.sleep(1)
    plain(consumer, prompt(3, seed=1), max_tokens=1)  # statistics flow with the engine's steps
    values = 3 * parts(producer)
    assert eventually(lambda: counter(consumer, "push_taken") == taken + values)
    assert counter(consumer, "received_values") == values
    answers = [decode(consumer, tokens, each) for tokens, each in zip(prompts, params, strict=True)]
    assert answers == [plain(oracle, tokens) for tokens in prompts]
    assert eventually(lambda: counter(consumer, "loads") == loads + 3)
    assert eventually(lambda: counter(consumer, "received_values") == 0)


def test_layers_are_handed_over_while_the_next_ones_are_computed(duo: tuple[Engine, Engine], oracle: Engine) -> None:
    producer, consumer = duo
    if not extra_config(producer)["layers"]:
        pytest.skip("this pair hands a request's KV over as one value")
    before = counter(producer, "early_parts")
    prompts = [prompt(130 * index, seed=929) for index in (1, 2, 4)]  # of one chunk, and of several
    params = [prefill(producer, tokens) for tokens in prompts]
    longer = producer.complete(prompts[0], max_tokens=3, kv_transfer_params=PREFILL_PARAMS)["kv_transfer_params"]
    assert eventually(lambda: counter(producer, "early_parts") == before + 3 * parts(producer))
    assert counter(producer, "late_parts") == 0, "the engine did not tell of its layers"
    answers = [decode(consumer, tokens, each) for tokens, each in zip(prompts, params, strict=True)]
    assert answers == [plain(oracle, tokens) for tokens in prompts]
    assert decode(consumer, prompts[0], longer) == plain(oracle, prompts[0])


def test_prompts_that_are_preempted_while_they_are_handed_over_are_right(
    duo: tuple[Engine, Engine], oracle: Engine
) -> None:
    """Their blocks are given to others at once, and they are computed again."""
    producer, consumer = duo
    if not extra_config(producer)["layers"]:
        pytest.skip("this pair hands a request's KV over when it has ended")
    prompts = [prompt(400 + 10 * index, seed=930) for index in range(12)]
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(prefill, producer, tokens) for tokens in prompts]
        while not all(one.done() for one in asked):
            producer.post("/reset_prefix_cache?reset_running_requests=true", {})
            time.sleep(0.05)
    answers = [decode(consumer, tokens, one.result()) for tokens, one in zip(prompts, asked, strict=True)]
    assert answers == [plain(oracle, tokens) for tokens in prompts]
    assert producer.healthy()


def test_a_router_finds_engines_that_make_themselves_known(
    duo: tuple[Engine, Engine], oracle: Engine, discovery: str, folder: Path
) -> None:
    producer, consumer = duo
    prompts = [prompt(150 + 100 * index, seed=926) for index in range(6)]
    loads, pushed, values = counter(consumer, "loads"), counter(producer, "pushed"), 7 * parts(producer)
    came = counter(consumer, "push_taken") + counter(consumer, "push_late")
    expected = [text_of(oracle.complete(tokens, max_tokens=8)) for tokens in prompts]
    router = Router([], [], folder, name="finds", extra_args=["--vllm-discovery-address", discovery])

    def ask(tokens: list[int]) -> tuple[int, Any]:
        body = {"model": consumer.spec.model.name, "prompt": tokens, "max_tokens": 8, "temperature": 0}
        return client.request("POST", f"{router.url}/v1/completions", body)

    try:
        router.wait_ready(60)
        assert eventually(lambda: ask(prompt(40, seed=926))[0] == 200, 30)
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(ask, prompts))
    finally:
        router.stop()
    assert [text_of(answer) for _, answer in answers] == expected
    assert eventually(lambda: counter(consumer, "loads") == loads + 7)
    for engine in duo:
        plain(engine, prompt(3, seed=1), max_tokens=1)  # statistics flow with the engine's steps
    if "PUT" in producer.spec.name:
        # of what was pushed before, some may only be told of now
        assert eventually(lambda: counter(producer, "pushed") >= pushed + values)
        late = ("push_taken", "push_late")  # where its request was sooner, the value is fetched
        assert eventually(lambda: sum(counter(consumer, name) for name in late) >= came + values)
        queued = counter(producer, "handed_over") * parts(producer) if "ASYNC" in producer.spec.name else 0
        assert eventually(lambda: counter(producer, "queued") == queued)
    for name in ("received_values", "received_bytes"):
        assert eventually(lambda name=name: counter(consumer, name) == 0), name


def test_the_decode_engine_survives_the_death_of_the_prefill_engine(
    duo: tuple[Engine, Engine], oracle: Engine, request: pytest.FixtureRequest
) -> None:
    """The last test of a pair: it kills an engine. What it had put into a store is still there."""
    producer, consumer = duo
    tokens, later, last = prompt(200, seed=923), prompt(210, seed=924), prompt(220, seed=927)
    params, unfetched, unasked = (prefill(producer, one) for one in (tokens, later, last))
    assert decode(consumer, tokens, params) == plain(oracle, tokens)
    loads, recomputed = counter(consumer, "loads"), counter(consumer, "recomputed")
    producer.kill()
    assert decode(consumer, later, unfetched) == plain(oracle, later)
    stored = "store" in producer.spec.name
    assert eventually(lambda: counter(consumer, "loads") == loads + stored)
    assert eventually(lambda: counter(consumer, "recomputed") == recomputed + (not stored))
    assert decode(consumer, last, unasked) == plain(oracle, last)
    assert eventually(lambda: counter(consumer, "misses", reason="shunned") == (not stored)), "it was asked again"
    assert consumer.healthy()
