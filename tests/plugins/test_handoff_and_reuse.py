"""Hand-over and reuse in one engine: what a load that failed has left unwritten is not kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvbridge_vllm.launch import EngineSpec
from kvbridge_vllm.launch.errors import EngineHTTPError
from tests.plugins.engines import (
    DEV_MODE,
    ENGINE_ARGS,
    counter,
    eventually,
    plain,
    prefill,
    prompt,
    running,
    transfer_config,
)
from tests.plugins.reuse_engines import DETAILS, ask, config, settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def faults(folder: Path) -> Path:
    made = folder / "faults-of-handoff-and-reuse"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def pair(folder: Path, checkpoint: Path, faults: Path) -> Iterator[tuple[Engine, Engine]]:
    """A prefill engine, and a decode engine that keeps what it has."""
    consumer = {
        **config(handoff={"backend": "cpu"}, reuse={"backend": "cpu", "capacity": "64MiB"}, checksum=True),
        "kv_connector": "FaultConnector",
        "kv_connector_module_path": "tests.plugins.fault_connector",
        "kv_role": "kv_consumer",
    }
    specs = [
        EngineSpec(
            "prefill",
            checkpoint,
            kv_transfer_config=transfer_config("kv_producer", checksum=True),
            cpus="0",
            extra_args=ENGINE_ARGS,
            env=DEV_MODE,
        ),
        EngineSpec(
            "decode",
            checkpoint,
            kv_transfer_config=consumer,
            cpus="1",
            extra_args=DETAILS,
            env={**DEV_MODE, "KVBRIDGE_TEST_FAULTS": str(faults), "PYTHONPATH": str(ROOT)},
        ),
    ]
    with running(specs, folder) as engines:
        yield engines[0], engines[1]


@pytest.mark.parametrize("how", ["lost", "mute"])
def test_a_prompt_whose_load_came_to_nothing_is_right_the_next_time(
    pair: tuple[Engine, Engine], oracle: Engine, faults: Path, how: str
) -> None:
    producer, consumer = pair
    tokens = prompt(200, seed=170 + len(how))
    params = prefill(producer, tokens)
    (faults / how).touch()
    if how == "lost":
        with pytest.raises(EngineHTTPError):
            consumer.complete(tokens, max_tokens=8, kv_transfer_params=params)
    else:
        with pytest.raises(OSError, match="timed out"):
            consumer.complete(tokens, max_tokens=8, kv_transfer_params=params, timeout=2)
    (faults / how).unlink()
    plain(consumer, prompt(3, seed=180), max_tokens=3)  # a step in which what is ordered is done
    assert eventually(lambda: settled(consumer))
    found, _ = ask(consumer, tokens)
    assert found == plain(oracle, tokens), "what nobody has written was kept"
    assert counter(consumer, "internal_errors") == 0
