"""However a hand-over ends, the blocks of both engines come back, and whoever gets them next has the right KV.

The backend leaves values in the prefill engine's own blocks until they are taken, so that one that is forgotten shows.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from kvbridge_vllm.launch import EngineHTTPError, EngineSpec
from tests.plugins.engines import (
    DEV_MODE,
    ENGINE_ARGS,
    LONG,
    counter,
    decode,
    eventually,
    plain,
    prefill,
    prompt,
    running,
    transfer_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
LEASE = 20.0
TIGHT = ("--num-gpu-blocks-override", "30")
"""Blocks for four prompts of 200 tokens."""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module", params=["nixl", pytest.param("cpu", marks=LONG)])
def trio(request: pytest.FixtureRequest, folder: Path, checkpoint: Path, faults: Path) -> Iterator[list[Engine]]:
    """A prefill engine and two decode engines: one that recomputes after a failed load, one that fails the request."""
    specs = []
    for name, role, policy in (
        ("paths-prefill", "kv_producer", "recompute"),
        ("paths-decode", "kv_consumer", "recompute"),
        ("paths-fail", "kv_consumer", "fail"),
    ):
        config = transfer_config(role, lease=LEASE, checksum=True, trace=str(folder / f"trace-{request.param}"))
        config["kv_connector_extra_config"]["backend"] = request.param
        config["kv_connector"] = "FaultConnector"
        config["kv_connector_module_path"] = "tests.plugins.fault_connector"
        config["kv_load_failure_policy"] = policy
        specs.append(
            EngineSpec(
                f"{name}-{request.param}",
                checkpoint,
                kv_transfer_config=config,
                max_model_len=640,
                cpus=str(len(specs) % 2),
                extra_args=(*ENGINE_ARGS, *(TIGHT if role == "kv_consumer" else ())),
                env={**DEV_MODE, "KVBRIDGE_TEST_FAULTS": str(faults), "PYTHONPATH": str(ROOT)},
            )
        )
    with running(specs, folder) as engines:
        yield engines


@pytest.fixture(autouse=True)
def everything_comes_back(trio: list[Engine], faults: Path) -> Iterator[None]:
    """After each test nothing is held by any engine that lives, long before a lease would have ended."""
    yield
    for fault in faults.iterdir():
        fault.unlink()
    for engine in trio:
        if engine.alive():
            assert eventually(lambda: held(engine) == {}, LEASE / 2), (engine.name, held(engine))  # noqa: B023
            assert engine.healthy()


def held(engine: Engine) -> dict[str, float]:
    """What an engine has in use: requests, blocks, values for others."""
    names = (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:kvbridge_held_values",
        "vllm:kvbridge_held_bytes",
    )
    return {name: value for name, value in engine.metrics().items() if value and name.partition("{")[0] in names}


@contextlib.contextmanager
def fault(faults: Path, name: str) -> Iterator[None]:
    (faults / name).touch()
    yield
    (faults / name).unlink()


def loading(trio: list[Engine]) -> bool:
    """Whether the prefill engine gave a value away that the decode engine still waits for."""
    return not counter(trio[0], "held_values") and bool(held(trio[1]))


def test_a_request_that_the_decode_engine_rejects(trio: list[Engine]) -> None:
    params = prefill(trio[0], prompt(200, seed=200))
    assert eventually(lambda: counter(trio[0], "held_values") == 1)
    with pytest.raises(EngineHTTPError):
        trio[1].complete(prompt(200, seed=200), max_tokens=10_000, kv_transfer_params=params)


def test_a_prompt_in_the_decode_engines_own_cache(trio: list[Engine], oracle: Engine) -> None:
    tokens = prompt(200, seed=201)
    for _ in range(2):
        assert decode(trio[1], tokens, prefill(trio[0], tokens)) == plain(oracle, tokens)


def test_several_samples(trio: list[Engine]) -> None:
    tokens = prompt(100, seed=202)
    params = prefill(trio[0], tokens)
    trio[1].complete(tokens, n=3, temperature=1, max_tokens=4, kv_transfer_params=params)


def test_two_clients_with_one_request_id(trio: list[Engine], oracle: Engine) -> None:
    prompts = [prompt(150, seed=203), prompt(150, seed=204)]
    params = [prefill(trio[0], tokens, request_id="same") for tokens in prompts]
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(decode, trio[1], tokens, each, request_id="same")
            for tokens, each in zip(prompts, params, strict=True)
        ]
        assert [one.result() for one in asked] == [plain(oracle, tokens) for tokens in prompts]


def leave(engine: Engine, tokens: list[int], params: Any) -> socket.socket:
    """Ask, and return the connection, to be closed without waiting for the answer."""
    body = json.dumps(
        {"model": engine.spec.model.name, "prompt": tokens, "max_tokens": 8, "kv_transfer_params": params}
    ).encode()
    address = urlsplit(engine.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=10)
    lines = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json")
    head = "\r\n".join((*lines, f"Content-Length: {len(body)}", "", ""))
    connection.sendall(head.encode() + body)
    return connection


def test_a_client_that_goes_in_the_middle_of_a_load_and_the_next_one(
    trio: list[Engine], faults: Path, oracle: Engine
) -> None:
    tokens, others = prompt(300, seed=205), [prompt(300, seed=206), prompt(300, seed=207)]
    with fault(faults, "hold"):
        connection = leave(trio[1], tokens, prefill(trio[0], tokens))
        assert eventually(lambda: loading(trio), 15)
        connection.close()
        time.sleep(0.5)
        assert held(trio[1]), "its blocks were given to others while they could still be written"
    for other in others:
        assert decode(trio[1], other, prefill(trio[0], other)) == plain(oracle, other)


def test_a_client_that_goes_before_its_load_begins(trio: list[Engine]) -> None:
    tokens = prompt(300, seed=208)
    params = prefill(trio[0], tokens)
    leave(trio[1], tokens, params).close()


def test_a_reset_of_the_prefix_cache_while_a_load_is_under_way(
    trio: list[Engine], faults: Path, oracle: Engine
) -> None:
    tokens = prompt(300, seed=209)
    expected = plain(oracle, tokens)
    params = prefill(trio[0], tokens)
    with ThreadPoolExecutor(1) as pool:
        with fault(faults, "hold"):
            asked = pool.submit(decode, trio[1], tokens, params)
            assert eventually(lambda: loading(trio), 15)
            for engine in trio[:2]:
                engine.post("/reset_prefix_cache", {})
        assert asked.result() == expected


def test_more_requests_than_there_are_blocks(trio: list[Engine], oracle: Engine) -> None:
    prompts = [prompt(200 + index, seed=210) for index in range(6)]
    before = trio[1].metrics()
    with ThreadPoolExecutor(6) as pool:

        def ask(tokens: list[int]) -> list[int]:
            return decode(trio[1], tokens, prefill(trio[0], tokens), max_tokens=60)

        answers = list(pool.map(ask, prompts))
    assert answers == [plain(oracle, tokens, max_tokens=60) for tokens in prompts]
    preempted = [
        value - before.get(name, 0)
        for name, value in trio[1].metrics().items()
        if name.startswith("vllm:num_preemptions_total")
    ]
    assert sum(preempted) > 0, "nothing was preempted: the test shows nothing"


def test_damage_on_the_way_is_found_and_the_prompt_is_computed(
    trio: list[Engine], faults: Path, oracle: Engine
) -> None:
    tokens = prompt(200, seed=220)
    params, expected = prefill(trio[0], tokens), plain(oracle, tokens)
    with fault(faults, "corrupt"):
        assert decode(trio[1], tokens, params) == expected
    assert eventually(lambda: counter(trio[1], "failures", operation="load", error="CorruptedError") == 1)
    assert "did not arrive as it was sent: 1 of 7 blocks" in trio[1].log_text()
    verified = counter(trio[1], "verified")
    other = prompt(200, seed=221)
    assert decode(trio[1], other, prefill(trio[0], other)) == plain(oracle, other)
    assert eventually(lambda: counter(trio[1], "verified") == verified + 1)


def test_damage_on_the_way_fails_the_request_where_that_is_the_policy(trio: list[Engine], faults: Path) -> None:
    tokens = prompt(200, seed=222)
    params = prefill(trio[0], tokens)
    with fault(faults, "corrupt"), pytest.raises(EngineHTTPError):
        decode(trio[2], tokens, params)
    assert eventually(lambda: counter(trio[2], "failed_loads") == 1)


def test_an_engine_that_is_stopped_in_the_middle_of_a_load(trio: list[Engine], faults: Path) -> None:
    tokens = prompt(300, seed=223)
    params, unused = prefill(trio[0], tokens), prefill(trio[0], prompt(100, seed=224))
    with fault(faults, "hold"):
        connection = leave(trio[2], tokens, params)
        assert eventually(lambda: counter(trio[0], "held_values") == 1 and bool(held(trio[2])), 15)
        trio[2].stop()
        connection.close()
    assert unused
    decode(trio[1], prompt(100, seed=224), unused)


def test_a_prefill_engine_that_is_stopped_with_values_outstanding(trio: list[Engine], oracle: Engine) -> None:
    tokens = prompt(300, seed=225)
    params = prefill(trio[0], tokens)
    assert eventually(lambda: counter(trio[0], "held_values") == 1)
    trio[0].stop()
    assert decode(trio[1], tokens, params) == plain(oracle, tokens)
