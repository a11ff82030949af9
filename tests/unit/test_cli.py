"""The command `kvbridge`: what it prints and how it exits."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from kvbridge.capabilities import Capabilities
from kvbridge.cli import backends
from kvbridge.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def config(role: str = "kv_producer", **changes: Any) -> str:
    extra = {"backend": "cpu", **changes.pop("extra", {})}
    return json.dumps(
        {"kv_connector": "KVBridgeConnector", "kv_role": role, "kv_connector_extra_config": extra, **changes}
    )


def test_backends_lists_the_embedded_one_with_its_probe() -> None:
    result = run("backends", "--json")
    assert result.exit_code == 0
    rows = {row["name"]: row for row in json.loads(result.output)}
    assert rows["cpu"]["available"] is True
    assert rows["cpu"]["distribution"] == "kvbridge"
    assert rows["cpu"]["capabilities"]["detaches"] is True


def test_backends_can_be_listed_without_a_probe() -> None:
    result = run("backends", "--no-probe")
    assert result.exit_code == 0
    assert "not probed" in result.output


def test_the_table_of_backends_can_be_read_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    claimed = msgspec.to_builtins(Capabilities.of_transport(mover="producer", cuda=True, cross_host=True))
    row = {"name": "rdma", "available": True, "distribution": "kvbridge-rdma", "version": "10.11.12"}
    backends._table([{**row, "reason": "the library answers, " * 9, "capabilities": claimed}])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "kvbridge-rdma 10.11.12 " in said
    assert {*claimed} & set(re.findall(r"\w+", said)) >= {name for name, value in claimed.items() if value is True}


def test_two_configurations_that_fit_together() -> None:
    result = run("check", config("kv_producer"), config("kv_consumer"))
    assert result.exit_code == 0
    assert "fit together" in result.output
    assert "  configuration 2: kv_consumer, backend cpu, default options\n" in result.output


def reuse(tiers: Any, **extra: Any) -> str:
    wanted = {"kv_connector": "KVBridgeConnector", "kv_role": "kv_both"}
    return json.dumps({**wanted, "kv_connector_extra_config": {"reuse": tiers, **extra}})


def test_what_is_kept_for_reuse_is_said(tmp_path: Path) -> None:
    files = {"backend": "files", "options": {"folder": str(tmp_path)}}
    result = run("check", reuse([{"capacity": "1MiB"}, files], handoff={"backend": "cpu"}))
    assert result.exit_code == 0, result.output
    assert "kv_both, backend cpu, default options; reuse cpu, default options, then files, {" in result.output


@pytest.mark.parametrize(
    ("tiers", "sentence"),
    [
        ({"policy": "lfu"}, "no installed package brings a policy 'lfu'; did you mean 'lru'?"),
        ([{"backend": "cpu"}, {"backend": "cpu"}], "reuse[1].backend: 'cpu' is not a store"),
        ([{"backend": "cpu"}, {"backend": "files"}], "the backend 'files' cannot work on this machine: options.folder"),
        ({"backend": "cpu", "options": {"capacty": 1}}, "reuse[0].options.capacty: unknown option"),
    ],
)
def test_what_is_wrong_with_reuse_is_said(tiers: Any, sentence: str) -> None:
    result = run("check", reuse(tiers))
    assert result.exit_code == 1
    assert sentence in result.output


def test_a_store_cannot_be_the_first_tier(tmp_path: Path) -> None:
    result = run("check", reuse({"backend": "files", "options": {"folder": str(tmp_path)}}))
    assert result.exit_code == 1
    assert "'files' has no slots for blocks" in result.output


def test_a_configuration_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "prefill.json").write_text(config())
    result = run("check", str(tmp_path / "prefill.json"))
    assert result.exit_code == 0
    assert "prefill.json" in result.output


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"extra": {"backend": "cpv"}}, "did you mean 'cpu'?"),
        ({"extra": {"options": {"capacty": 1}}}, "options.capacty: unknown option; did you mean 'capacity'?"),
        ({"extra": {"options": {"capacity": "much"}}}, "found 'much', expected a number of bytes"),
        ({"extra": {"lease": "long"}}, "kv_connector_extra_config.lease: expected `float`, got `str`"),
        ({"extra": {"leese": 1}}, "kv_connector_extra_config.leese: unknown option; did you mean 'lease'?"),
        ({"extra": {"port": 70000}}, "kv_connector_extra_config.port: found 70000, expected 0 to 65535"),
        ({"extra": {"layers": -1}}, "kv_connector_extra_config.layers: found -1, expected 0 to 65536"),
        ({"kv_role": "kv_prefill"}, "kv_role: found 'kv_prefill'"),
        ({"kv_connector": "KVBrigdeConnector"}, "did you mean 'KVBridgeConnector'?"),
        (
            {"kv_connector": "NixlConnector"},
            "kv_connector_module_path: found None, expected 'kvbridge_vllm.nixl_alias'",
        ),
        ({"kv_conector": "x"}, "kv_conector: unknown field"),
        ({"kv_connector_extra_config": None}, "kv_connector_extra_config: missing"),
    ],
)
def test_what_is_wrong_is_said_with_what_was_meant(changed: dict[str, Any], sentence: str) -> None:
    result = run("check", config(**changed))
    assert result.exit_code == 1
    assert sentence in result.output


def test_two_configurations_that_do_not_fit() -> None:
    result = run(
        "check",
        config("kv_producer", engine_id="one", extra={"model_id": "a", "layers": 2}),
        config("kv_producer", engine_id="one", extra={"model_id": "b", "mode": "PUT", "checksum": True}),
    )
    assert result.exit_code == 1
    assert "both are kv_producer" in result.output
    assert "engine_id: both are 'one'" in result.output
    found = " ".join(result.output.split())
    for name, one, other in (
        ("model_id", "a", "b"),
        ("layers", "2", "all"),
        ("mode", "GET", "PUT or PUT_ASYNC"),
        ("checksum", "false", "true"),
    ):
        assert f"{name}: {one!r} against {other!r}" in found


@pytest.mark.parametrize("text", ["/no/such/file.json", "{not json", "[1]"])
def test_what_cannot_be_read_is_usage(text: str) -> None:
    assert run("check", text).exit_code == 2


def test_the_benchmark_of_an_unknown_backend_ends_with_a_sentence() -> None:
    result = run("bench", "transfer", "cpv")
    assert result.exit_code == 1
    assert "did you mean 'cpu'?" in " ".join(result.output.split())
