"""Two ranks on both sides; the connector under the name `NixlConnector`; both roles in one engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvbridge_vllm.launch import EngineSpec
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
from tests.plugins.reuse_engines import BLOCK_BYTES, forget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]

PATIENT = {"claim_timeout": 300, "peer_timeout": 300, "lease": 900}
"""Four workers that spin on two cores keep each other from running for seconds: nothing here is about time."""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults-of-ranks")


@pytest.fixture(scope="module", params=["cpu", pytest.param("nixl", marks=LONG)])
def pair(
    request: pytest.FixtureRequest, folder: Path, checkpoint: Path, faults: Path
) -> Iterator[tuple[Engine, Engine]]:
    config = transfer_config("kv_both")
    reuse = {"capacity": "64MiB", "share": True}
    config["kv_connector_extra_config"] = {
        "handoff": {"backend": request.param},
        "reuse": reuse,
        "checksum": True,
        **PATIENT,
    }
    config["kv_connector"] = "NixlConnector"
    config["kv_connector_module_path"] = "tests.plugins.fault_connector"
    config["kv_load_failure_policy"] = "recompute"
    specs = [
        EngineSpec(
            name,
            checkpoint,
            kv_transfer_config=config,
            tensor_parallel_size=2,
            cpus="0|1",
            extra_args=ENGINE_ARGS,
            env={**DEV_MODE, "KVBRIDGE_TEST_FAULTS": str(faults), "PYTHONPATH": str(ROOT)},
        )
        for name in ("two-ranks-a", "two-ranks-b")
    ]
    with running(specs, folder) as engines:
        yield engines[0], engines[1]


def test_two_ranks_hand_over_to_two_ranks(pair: tuple[Engine, Engine]) -> None:
    first, second = pair
    for length in (33, 200):
        tokens = prompt(length, seed=100)
        params = prefill(first, tokens)
        assert params["tp_size"] == 2
        assert len(set(params["kvbridge"]["addresses"])) == 2
        loads = counter(second, "loads")
        found = decode(second, tokens, params)
        assert eventually(lambda loads=loads: counter(second, "loads") == loads + 1)
        assert found == plain(first, tokens), "the oracle is the same engine's own answer"


def test_both_roles_in_one_engine(pair: tuple[Engine, Engine]) -> None:
    first, second = pair
    tokens = prompt(150, seed=101)
    loads = counter(first, "loads")
    found = decode(first, tokens, prefill(second, tokens))
    assert eventually(lambda: counter(first, "loads") == loads + 1)
    assert found == plain(second, tokens)


def test_one_rank_that_cannot_load_makes_the_request_fail_as_a_whole_once(pair: tuple[Engine, Engine]) -> None:
    """The engine hands over to itself here: a second one that computes would only spin against it."""
    first, _ = pair
    prompts = [prompt(70, seed=102 + index) for index in range(3)]
    expected = [plain(first, tokens) for tokens in prompts]
    params = [prefill(first, tokens) for tokens in prompts]
    params[1]["kvbridge"]["generations"][1] += 1
    assert first.post("/reset_prefix_cache", {})[0] == 200  # else the answers come from its own cache
    recomputed, loads = counter(first, "recomputed"), counter(first, "loads")
    assert [decode(first, tokens, each) for tokens, each in zip(prompts, params, strict=True)] == expected
    assert eventually(lambda: counter(first, "recomputed") == recomputed + 1)
    assert eventually(lambda: counter(first, "loads") == loads + 2)
    assert "rank 1: " in first.log_text()
    assert first.healthy()


def test_damage_in_one_rank_makes_the_load_fail_as_a_whole_once(pair: tuple[Engine, Engine], faults: Path) -> None:
    first, _ = pair
    tokens = prompt(90, seed=106)
    expected, params = plain(first, tokens), prefill(first, tokens)
    forget(first)
    failed = counter(first, "failed_loads")
    (faults / "corrupt-1").touch()
    assert decode(first, tokens, params) == expected
    (faults / "corrupt-1").unlink()
    assert eventually(lambda: counter(first, "failed_loads") == failed + 1)
    assert counter(first, "failures", operation="load", error="CorruptedError") == 1
    assert "rank 1 could not load the KV of request" in first.log_text()
    assert "rank 0 could not load the KV of request" not in first.log_text()


def test_two_ranks_keep_blocks_and_load_them_back_in_either_engine(pair: tuple[Engine, Engine]) -> None:
    first, second = pair
    tokens = prompt(200, seed=102)
    expected = plain(first, tokens)
    forget(first)
    for engine in (first, second):
        hits, loaded = counter(engine, "reuse_hit_blocks"), counter(engine, "reuse_loaded_bytes")
        assert plain(engine, tokens) == expected
        assert eventually(lambda: counter(engine, "reuse_hit_blocks") == hits + 6)  # noqa: B023 - run at once
        assert eventually(lambda: counter(engine, "reuse_loaded_bytes") == loaded + 6 * BLOCK_BYTES)  # noqa: B023
        assert eventually(lambda: counter(engine, "reuse_pins") == 0)  # noqa: B023
