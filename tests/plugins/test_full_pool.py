"""A prefill engine whose pool has room for one prompt: the KV of the others stays in its blocks until there is room."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from kvbridge_vllm.launch import Engine, EngineSpec
from tests.plugins.engines import (
    DEV_MODE,
    ENGINE_ARGS,
    blocks_in_use,
    counter,
    decode,
    eventually,
    plain,
    prefill,
    prompt,
    transfer_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.engine

PROMPTS = 6


@pytest.fixture(scope="module")
def tight(folder: Path, checkpoint: Path) -> Iterator[Engine]:
    config = transfer_config("kv_producer", options={"capacity": "1MiB"}, lease=15)
    spec = EngineSpec("tight", checkpoint, kv_transfer_config=config, cpus="0", extra_args=ENGINE_ARGS, env=DEV_MODE)
    with Engine(spec, folder) as engine:
        engine.wait_ready(300)
        yield engine


def test_nothing_that_was_prefilled_is_computed_again(tight: Engine, consumer: Engine, oracle: Engine) -> None:
    prompts = [prompt(300, seed=700 + index) for index in range(PROMPTS)]
    loads, recomputed = counter(consumer, "loads"), counter(consumer, "recomputed")
    params = [prefill(tight, tokens) for tokens in prompts]
    assert eventually(lambda: counter(tight, "delayed") == PROMPTS - 1), tight.log_text()[-2000:]
    assert blocks_in_use(tight) > 0
    with ThreadPoolExecutor(PROMPTS) as clients:
        found = list(clients.map(lambda one: decode(consumer, *one), zip(prompts, params, strict=True)))
    assert found == [plain(oracle, tokens) for tokens in prompts]
    assert eventually(lambda: counter(consumer, "loads") == loads + PROMPTS)
    assert counter(consumer, "recomputed") == recomputed

    def everything_is_back() -> bool:
        plain(tight, prompt(3, seed=1), max_tokens=1)  # statistics flow with the engine's steps
        return not (counter(tight, "delayed") or counter(tight, "held_values") or blocks_in_use(tight))

    assert eventually(everything_is_back)
    assert counter(tight, "delayed_inserts") == PROMPTS - 1
    assert counter(tight, "failed_saves") == 0


def test_what_nobody_asks_for_gives_its_blocks_back_when_its_lease_ends(tight: Engine) -> None:
    lost = counter(tight, "failed_saves") + counter(tight, "expired")  # one may get in when the one before it expires
    for index in range(3):
        prefill(tight, prompt(300, seed=720 + index))

    def everything_is_back() -> bool:
        plain(tight, prompt(3, seed=2), max_tokens=1)
        found = counter(tight, "failed_saves") + counter(tight, "expired")
        return found == lost + 3 and not blocks_in_use(tight)

    assert eventually(everything_is_back, 60)
