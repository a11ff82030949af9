"""What arrives is byte for byte what left; and the negative control: without it the tokens are others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_vllm.launch import EngineSpec
from tests.plugins.engines import ENGINE_ARGS, decode, eventually, plain, prefill, prompt, running, transfer_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge_vllm.launch import Engine

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def probe_folder(folder: Path) -> Path:
    path = folder / "probe"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def probed(folder: Path, checkpoint: Path, probe_folder: Path) -> Iterator[tuple[Engine, Engine]]:
    specs = []
    for index, role in enumerate(("kv_producer", "kv_consumer")):
        config = transfer_config(role)
        config["kv_connector"] = "ProbeConnector"
        config["kv_connector_module_path"] = "tests.plugins.probe_connector"
        specs.append(
            EngineSpec(
                f"probed-{role}",
                checkpoint,
                kv_transfer_config=config,
                cpus=str(index),
                extra_args=ENGINE_ARGS,
                env={"KVBRIDGE_TEST_PROBE": str(probe_folder), "PYTHONPATH": str(ROOT)},
            )
        )
    with running(specs, folder) as engines:
        yield engines[0], engines[1]


def _read(folder: Path, side: str) -> dict[str, Any]:
    files = list(folder.glob(f"{side}-*.json"))
    assert len(files) == 1
    return dict(json.loads(files[0].read_text()))


def test_pages_arrive_byte_for_byte_and_matter(
    probed: tuple[Engine, Engine], probe_folder: Path, oracle: Engine
) -> None:
    producer, consumer = probed
    decode(consumer, prompt(96, seed=70), None)  # so that the two engines use different blocks
    tokens = prompt(300, seed=71)
    assert decode(consumer, tokens, prefill(producer, tokens)) == plain(oracle, tokens)
    assert eventually(lambda: len(list(probe_folder.glob("loaded-*.json"))) == 1)
    saved, loaded = _read(probe_folder, "saved"), _read(probe_folder, "loaded")
    assert saved["blocks"] != loaded["blocks"]
    assert len(saved["digests"]) == 4
    assert all(len(digests) == 10 for digests in saved["digests"])
    assert loaded["digests"] == saved["digests"]
    assert len({digest for digests in saved["digests"] for digest in digests}) == 40, "pages are not distinct"

    (probe_folder / "zero").touch()
    try:
        other = prompt(300, seed=72)
        assert decode(consumer, other, prefill(producer, other)) != plain(oracle, other)
    finally:
        (probe_folder / "zero").unlink()
