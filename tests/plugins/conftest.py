"""Real vLLM engines, started once for all tests that need them, and stopped whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvbridge_vllm.launch import EngineSpec
from kvbridge_vllm.launch.checkpoints import make_checkpoint
from tests.plugins.engines import DEV_MODE, ENGINE_ARGS, running, transfer_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def checkpoint(folder: Path) -> Path:
    return make_checkpoint(folder / "large-weights")


@pytest.fixture(scope="session")
def trio(folder: Path, checkpoint: Path) -> Iterator[tuple[Engine, Engine, Engine]]:
    """Prefill engine, decode engine, and an engine without connector: the oracle."""
    configs = (transfer_config("kv_producer"), transfer_config("kv_consumer"), None)
    names = ("prefill", "decode", "oracle")
    specs = [
        EngineSpec(
            name, checkpoint, kv_transfer_config=config, cpus=str(index % 2), extra_args=ENGINE_ARGS, env=DEV_MODE
        )
        for index, (name, config) in enumerate(zip(names, configs, strict=True))
    ]
    with running(specs, folder) as engines:
        yield engines[0], engines[1], engines[2]


@pytest.fixture
def producer(trio: tuple[Engine, Engine, Engine]) -> Engine:
    return trio[0]


@pytest.fixture
def consumer(trio: tuple[Engine, Engine, Engine]) -> Iterator[Engine]:
    """The decode engine; every test must leave it alive and idle."""
    yield trio[1]
    if not trio[1].healthy():
        pytest.fail(f"the decode engine is not healthy any more:\n{trio[1].log_text()[-3000:]}")


@pytest.fixture
def oracle(trio: tuple[Engine, Engine, Engine]) -> Engine:
    return trio[2]
