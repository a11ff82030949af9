"""A wrong configuration ends the start of an engine with one clear sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_vllm.launch import Engine, EngineSpec, EngineStartError
from tests.plugins.engines import transfer_config

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine


def _changed(**changes: Any) -> dict[str, Any]:
    return {**transfer_config("kv_producer"), **changes}


CASES = {
    "backend": (
        transfer_config("kv_producer", backend="cpv"),
        "no installed package brings a backend 'cpv'; did you mean 'cpu'?",
    ),
    "option": (
        transfer_config("kv_producer", options={"capacty": "1GiB"}),
        "kv_connector_extra_config.options.capacty: unknown option; did you mean 'capacity'?",
    ),
    "role": (_changed(kv_role="kv_prefill"), "kv_role"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_start_ends_with_a_sentence(case: str, folder: Path, checkpoint: Path) -> None:
    config, sentence = CASES[case]
    with Engine(EngineSpec(f"wrong-{case}", checkpoint, kv_transfer_config=config), folder) as engine:
        with pytest.raises(EngineStartError):
            engine.wait_ready(180)
        assert sentence in engine.log_text()
