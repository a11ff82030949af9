"""An engine with few blocks and few slots, and files below: what is given up comes back, and nothing stays pinned."""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from kvbridge_vllm.launch import EngineSpec
from kvbridge_vllm.launch.checkpoints import make_checkpoint
from tests.plugins.engines import DEV_MODE, counter, eventually, plain, prompt, running
from tests.plugins.kv_events import Events
from tests.plugins.reuse_engines import BLOCK_BYTES, DETAILS, ask, config, forget, settled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def told() -> Iterator[Events]:
    """What the tight engine says of its blocks."""
    with Events() as events:
        yield events


@pytest.fixture(scope="module")
def tight(folder: Path, checkpoint: Path, told: Events, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with blocks for five prompts of eight, slots for twelve blocks, and files below."""
    files = {"folder": str(tmp_path_factory.mktemp("kept")), "capacity": "64MiB"}
    reuse = [{"backend": "cpu", "capacity": 12 * BLOCK_BYTES}, {"backend": "files", "options": files}]
    spec = EngineSpec(
        "reuse-tight",
        checkpoint,
        kv_transfer_config=config(handoff={"backend": "cpu"}, reuse=reuse),
        cpus="0",
        max_model_len=640,
        extra_args=(*DETAILS, "--num-gpu-blocks-override", "44", *told.arguments),
        env=DEV_MODE,
    )
    with running([spec], folder) as engines:
        yield engines[0]


def test_what_the_slots_gave_up_comes_back_from_files(tight: Engine, oracle: Engine) -> None:
    prompts = [prompt(257, seed=70 + index) for index in range(4)]
    for tokens in prompts:
        assert ask(tight, tokens)[0] == plain(oracle, tokens)
        assert eventually(lambda: settled(tight))
    forget(tight)
    for tokens in prompts:
        assert ask(tight, tokens) == (plain(oracle, tokens), 256)
        forget(tight)
    assert eventually(lambda: counter(tight, "reuse_tier_promoted_blocks") >= 24)
    assert any('"disk"' in name and value > 0 for name, value in tight.metrics().items() if "source" in name)


def test_preempted_requests_are_right_and_nothing_stays_pinned(tight: Engine, oracle: Engine) -> None:
    prompts = [prompt(200, seed=80 + index) for index in range(8)]
    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda tokens: ask(tight, tokens, max_tokens=40)[0], prompts))
        assert answers == [plain(oracle, tokens, max_tokens=40) for tokens in prompts]
        forget(tight)
    preempted = [value for name, value in tight.metrics().items() if name.startswith("vllm:num_preemptions_total")]
    assert sum(preempted) > 0, "the test is too easy: nobody was preempted"
    assert eventually(lambda: settled(tight))


def test_soak_with_a_tight_cap(tight: Engine, oracle: Engine) -> None:
    chooser = random.Random(90)
    documents = [prompt(chooser.randrange(40, 300), seed=900 + index) for index in range(12)]
    expected = {json.dumps(one): plain(oracle, one, max_tokens=4) for one in documents}
    deadline = time.monotonic() + (180 if os.environ.get("KVBRIDGE_LONG") else 15)

    def ask_on(seed: int) -> int:
        mine, count = random.Random(seed), 0
        while time.monotonic() < deadline:
            tokens = mine.choice(documents)
            assert ask(tight, tokens, max_tokens=4)[0] == expected[json.dumps(tokens)]
            count += 1
        return count

    with ThreadPoolExecutor(6) as pool:
        resets = 0
        asking = [pool.submit(ask_on, seed) for seed in range(6)]
        while not all(one.done() for one in asking):
            tight.post("/reset_prefix_cache", {})
            resets += 1
            time.sleep(0.5)
        assert sum(one.result() for one in asking) > 50
    plain(tight, prompt(5, seed=91), max_tokens=3)
    assert eventually(lambda: settled(tight))
    assert counter(tight, "reuse_failed_loads") == 0
    assert counter(tight, "reuse_failed_saves") == 0


def test_a_reset_reaches_what_is_kept(tight: Engine, oracle: Engine) -> None:
    tokens = prompt(100, seed=58)
    ask(tight, tokens)
    assert eventually(lambda: settled(tight))
    forget(tight, kept=True)
    assert ask(tight, tokens) == (plain(oracle, tokens), 0)
    forget(tight)
    assert ask(tight, tokens)[1] == 96, "what it computed since then is kept under its new epoch"


def test_events_tell_exactly_what_is_kept(tight: Engine, told: Events) -> None:
    for index in range(6):
        ask(tight, prompt(200, seed=950 + index))
    assert eventually(lambda: settled(tight))
    plain(tight, prompt(5, seed=91), max_tokens=3)
    kept = counter(tight, "reuse_kept_blocks")
    assert told.wrong == []
    assert eventually(lambda: len(told.there["CPU"]) == kept), (len(told.there["CPU"]), kept)
    assert len(told.there["STORAGE"]) > kept
    assert told.wrong == []


def test_after_a_reload_of_weights_nothing_of_the_old_ones_is_used(
    tight: Engine, told: Events, oracle: Engine, folder: Path
) -> None:
    other = make_checkpoint(folder / "other-weights", seed=1)
    tokens = prompt(200, seed=59)
    old = plain(oracle, tokens)
    assert ask(tight, tokens) == (old, 0)
    assert eventually(lambda: settled(tight))
    for path in (other, tight.spec.model):
        assert tight.post("/pause?mode=wait", {})[0] == 200
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        assert tight.post("/collective_rpc", reload)[0] == 200
        assert tight.post("/resume", {})[0] == 200
        found, cached = ask(tight, tokens)
        assert cached == 0
        assert (found == old) == (path == tight.spec.model)
        assert eventually(lambda: settled(tight))
        forget(tight)
        assert ask(tight, tokens) == (found, 192), "what was computed since then is kept"
    assert told.wrong == []
