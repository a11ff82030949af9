"""`kvbridge bench serve` without engines: who takes part, under which loads, and what is printed of it."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from kvbridge.cli.main import main
from kvbridge.errors import BackendNotFoundError, ConfigError
from kvbridge_vllm.bench.contenders import contender
from kvbridge_vllm.bench.measure import DISTINCT_BYTES, Cell, Measurement, Samples
from kvbridge_vllm.bench.report import as_json, show


def test_a_backend_takes_part_as_an_engine_would_be_configured() -> None:
    assert contender("cpu").config("kv_producer") == {
        "kv_connector": "KVBridgeConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"backend": "cpu"},
    }


def test_who_is_unknown_is_named() -> None:
    with pytest.raises(BackendNotFoundError, match="did you mean 'cpu'"):
        contender("cpv")
    with pytest.raises(ConfigError, match="vllm:NixlConnector"):
        contender("vllm:SomeConnector")


def test_prompts_leave_one_token_to_compute_and_their_kv_fits() -> None:
    cell = Cell(tokens=512, concurrent=32)
    prompts = cell.prompts(kv_bytes=32 << 10, vocabulary=2048)
    assert {len(prompt) for prompt in prompts} == {513}
    assert len(prompts) * 512 * (32 << 10) <= DISTINCT_BYTES
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts) == 16
    assert prompts == cell.prompts(kv_bytes=32 << 10, vocabulary=2048), "every contender gets the same"
    assert len(Cell(tokens=8192, concurrent=32).prompts(kv_bytes=1 << 20, vocabulary=10)) == 1


def test_what_was_measured_is_shown_with_what_was_wrong() -> None:
    cells = [Cell(512, 1), Cell(512, 8)]
    measured = Measurement([], cells, 32 << 10, 2048, lambda _: None)
    for cell in cells:
        measured.floors[cell] = 0.05
        for name in ("cpu", "nixl"):
            samples = Samples()
            samples.first, samples.between = [0.1, 0.2, 0.3], [0.01]
            samples.rates, samples.cpu, samples.right, samples.wrong = [4.0], [0.5], 2, 1
            measured.samples[name, cell] = samples
    found = as_json(measured, cells, {"rounds": 1, "kv_bytes_per_token": 32 << 10})
    assert found["contenders"]["cpu"][0]["ttft_median"] == 0.2
    out = io.StringIO()
    show(found, Console(file=out, width=120))
    assert "200 ms" in out.getvalue()
    assert "4.00" in out.getvalue(), "of the floor"
    assert out.getvalue().count("2 of 3") == 4


@pytest.mark.parametrize("value", ["", "many", "0", "512,-1"])
def test_loads_that_are_none_are_usage_errors(value: str) -> None:
    result = CliRunner().invoke(main, ["bench", "serve", "cpu", "--tokens", value])
    assert result.exit_code == 2
    assert "--tokens" in result.output
