"""The same on engines whose KV moves by NIXL: right tokens, bound to their prompts, straight into the other's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvbridge_vllm.launch import EngineSpec
from tests.plugins.engines import DEV_MODE, ENGINE_ARGS, counter, decode, eventually, plain, prefill, prompt, running
from tests.plugins.engines import transfer_config as config_of
from tests.plugins.test_binding import *  # noqa: F403 - these tests again, with the engines of this module
from tests.plugins.test_router import *  # noqa: F403 - likewise
from tests.plugins.test_token_equality import *  # noqa: F403 - likewise

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def duo(folder: Path, checkpoint: Path) -> Iterator[tuple[Engine, Engine]]:
    specs = [
        EngineSpec(
            f"nixl-{role}",
            checkpoint,
            kv_transfer_config=config_of(role, backend="nixl", lease=20),
            cpus=str(index),
            extra_args=ENGINE_ARGS,
            env=DEV_MODE,
        )
        for index, role in enumerate(("kv_producer", "kv_consumer"))
    ]
    with running(specs, folder) as engines:
        yield engines[0], engines[1]


def test_blocks_that_nobody_fetches_come_back_when_their_lease_ends(producer: Engine) -> None:
    before = counter(producer, "expired")
    prefill(producer, prompt(100, seed=900))

    def expired() -> bool:
        plain(producer, prompt(5, seed=901), max_tokens=1)  # statistics flow with the engine's steps
        return counter(producer, "expired") >= before + 1

    assert eventually(expired, 40)


def test_the_decode_engine_survives_the_death_of_the_prefill_engine(duo: tuple[Engine, Engine], oracle: Engine) -> None:
    """The last test of this module: it kills an engine."""
    producer, consumer = duo
    tokens, later = prompt(200, seed=910), prompt(210, seed=911)
    params, unfetched = prefill(producer, tokens), prefill(producer, later)
    assert decode(consumer, tokens, params) == plain(oracle, tokens)
    producer.kill()
    assert decode(consumer, later, unfetched) == plain(oracle, later), "it was not computed again"
    assert consumer.healthy()
