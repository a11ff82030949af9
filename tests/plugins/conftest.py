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
def oracle(folder: Path, checkpoint: Path) -> Iterator[Engine]:
    """An engine without connector."""
    with running([EngineSpec("oracle", checkpoint, cpus="0", extra_args=ENGINE_ARGS, env=DEV_MODE)], folder) as engines:
        yield engines[0]


@pytest.fixture(scope="session")
def duo(folder: Path, checkpoint: Path) -> Iterator[tuple[Engine, Engine]]:
    """Prefill engine and decode engine."""
    roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
    specs = [
        EngineSpec(
            name,
            checkpoint,
            kv_transfer_config=transfer_config(role),
            cpus=str(index),
            extra_args=ENGINE_ARGS,
            env=DEV_MODE,
        )
        for index, (name, role) in enumerate(roles.items())
    ]
    with running(specs, folder) as engines:
        yield engines[0], engines[1]


@pytest.fixture
def producer(duo: tuple[Engine, Engine]) -> Engine:
    return duo[0]


@pytest.fixture
def consumer(duo: tuple[Engine, Engine]) -> Iterator[Engine]:
    """The decode engine; every test must leave it alive and idle."""
    yield duo[1]
    if not duo[1].healthy():
        pytest.fail(f"the decode engine is not healthy any more:\n{duo[1].log_text()[-3000:]}")
