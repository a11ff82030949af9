"""`kvbridge bench serve` without engines: who takes part, under which loads, and what is reported of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kvbridge.bench.report import parse as parse_report
from kvbridge.cli.main import main
from kvbridge.errors import BackendNotFoundError, ConfigError, KVBridgeError
from kvbridge_vllm.bench import measure
from kvbridge_vllm.bench.contenders import contender
from kvbridge_vllm.bench.measure import DISTINCT_BYTES, Cell, Measurement
from kvbridge_vllm.bench.report import describe
from kvbridge_vllm.bench.run import finish, run
from tests.html_tree import Node, parse
from tests.sample_bench_reports import STEADY, serve_report

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_prompt_that_is_to_be_computed_was_asked_by_nobody_before() -> None:
    cells = [Cell(512, 1), Cell(512, 8)]
    known = [prompt for cell in cells for prompt in cell.prompts(32 << 10, 2048)]
    fresh = [cell.fresh_prompt(number, 2048) for cell in cells for number in (1, 2)]
    assert len({tuple(prompt) for prompt in fresh}) == 4
    assert not any(prompt in known for prompt in fresh)
    assert {len(prompt) for prompt in fresh} == {513}


class FakePair:
    """Engines that answer after known times."""

    def __init__(self, name: str, first: float) -> None:
        self.contender = contender(name)
        self.first = first
        self.prefill, self.decode = "prefill", "decode"
        self.known: list[list[int]] = []

    def go_on(self) -> None:
        pass

    stop = go_on

    def cpu_seconds(self) -> float:
        return 0.0

    def compute(self, prompt: list[int]) -> Any:
        return {"do_remote_prefill": True}

    def answer(self, engine: str, prompt: list[int], tokens: int, params: Any = None) -> tuple[list[float], str]:
        if engine == "decode":
            assert params, "the decode engine hears what the prefill engine said"
            return [self.first, self.first + 0.01], "right"
        held = prompt in self.known
        self.known.append(prompt)
        return [0.04 if held else 1.0], "right"


def test_each_round_has_its_own_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SETTLE", 0.0)
    monkeypatch.setattr(measure, "_copy_seconds", lambda _: 0.01)
    cells, pair = [Cell(32, 1), Cell(32, 4)], FakePair("cpu", 0.2)
    found = Measurement([pair], cells, 1024, 2048, lambda _: None)  # type: ignore[list-item]
    pair.known += [prompt for cell in cells for prompt in cell.prompts(1024, 2048)]
    found._expected = {cell: ["right"] * 4 for cell in cells}
    for _ in range(3):
        found.round(lambda _: None)
    for cell in cells:
        assert found.floors[cell].seconds == {"local": [0.04] * 3, "copied": [0.01] * 3, "computed": [1.0] * 3}
        assert found.floors[cell].rounds == pytest.approx([0.05] * 3)
        samples = found.samples["cpu", cell]
        assert samples.first_rounds == [0.2] * 3
        assert (len(samples.first), samples.right, samples.wrong) == (12, 12, 0)


def test_who_fails_under_a_load_is_left_out_of_it_and_the_rest_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "SETTLE", 0.0)
    monkeypatch.setattr(measure, "_copy_seconds", lambda _: 0.01)
    cells = [Cell(32, 1), Cell(32, 4)]
    pairs = [FakePair("cpu", 0.2), FakePair("nccl", 0.3)]
    found = Measurement(pairs, cells, 1024, 2048, lambda _: None)  # type: ignore[arg-type]
    found._expected = {cell: ["right"] * 4 for cell in cells}
    real = found._measure

    def fail(pair: Any, cell: Cell) -> None:
        if pair is pairs[0] and cell is cells[1] and found.samples["cpu", cells[0]].rates[1:]:
            raise TimeoutError("timed out")
        real(pair, cell)

    monkeypatch.setattr(found, "_measure", fail)
    for _ in range(3):
        found.round(lambda _: None)
    told = describe(found, cells, 3, dtype="bfloat16", kv_bytes_per_token=1024, answer_tokens=4, model={})
    assert [(row["connector"], row["concurrent"]) for row in told["rows"]] == [("cpu", 1), ("nccl", 1), ("nccl", 4)]
    assert [len(row["of_floor_rounds"]) for row in told["rows"]] == [3, 3, 3]
    assert told["failed"] == ["cpu, 4 x 32 tokens: TimeoutError: timed out"]
    assert finish(told, None, None) == 1
    assert "left out: cpu, 4 x 32 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [("[]", "expected an object"), ('{"cpv": {}}', "did you mean 'cpu'?"), ('{"cpu": 1}', "expected an object")],
)
def test_options_that_are_none_are_refused(options: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cpu"], [32], [1], rounds=1, dtype="bfloat16", cache_gib=1, options=options) == 3
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_options_reach_the_backend_that_they_are_for() -> None:
    config = contender("cpu", {"capacity": "9GiB"}).config("kv_producer")
    assert config["kv_connector_extra_config"] == {"backend": "cpu", "options": {"capacity": "9GiB"}}


def test_what_was_measured_is_shown_with_what_was_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = serve_report({"cpu": 0.2, "nixl": 0.1})
    found["rows"][0].update(right=3, wrong=1)
    assert finish(found, tmp_path / "report.json", tmp_path / "page.html") == 1
    said = capsys.readouterr().out
    assert "200 ms" in said
    assert "4.00" in said, "of the floor"
    assert "local 40 ms, floor 50 ms, computed 1,000 ms" in said
    assert said.count("3 of 4") == 1
    assert said.count("28 of 28") == 3
    assert json.loads((tmp_path / "report.json").read_text()) == found
    assert finish(serve_report({"cpu": 0.2}), None, None) == 0
    assert finish(serve_report({"cpu": 0.2}), tmp_path / "none" / "report.json", None) == 1
    assert "the report was not written" in capsys.readouterr().out


def test_the_report_has_what_every_report_has() -> None:
    found = serve_report({"cpu": 0.2})
    known = {"benchmark", "kvbridge", "when", "machine", "rounds", "definitions", "rows"}
    assert known <= set(found)
    assert found["benchmark"] == "serve"
    row = found["rows"][0]
    assert row["of_floor_rounds"] == pytest.approx([4.0] * len(STEADY)), "each round has its own floor"
    assert row["of_floor"] == pytest.approx(4.0)


@pytest.fixture
def page(tmp_path: Path) -> Node:
    path = tmp_path / "page.html"
    assert finish(serve_report({"cpu": 0.2, "nixl": 0.1}), None, path) == 0
    return parse(path.read_text())


def test_the_page_has_a_bar_for_each_connector_and_lines_for_what_they_are_compared_with(page: Node) -> None:
    (chart,) = page.all("svg", **{"class": "chart"})
    said = [bar.all("title")[0].words for bar in chart.all("g") if bar.all("path", **{"class": "bar"})]
    single = [words for words in said if "p95" in words]
    assert set(single) == {
        "cpu: 200 ms, p95 322 ms",
        "nixl: 100 ms, p95 161 ms",
        "cpu: 400 ms, p95 644 ms",
        "nixl: 200 ms, p95 322 ms",
    }
    lines = {node.words for node in chart.all("title")}
    assert {"in its own cache: 40.0 ms", "computed: 1.00 s"} <= lines
    heights = {}
    for group in chart.all("g"):
        paths = [node for node in group.all("path", **{"class": "bar"}) if node.parent is group]
        if paths:
            path = paths[0].attributes["d"] or ""
            heights[group.all("title")[0].words.split(",")[0]] = float(path.split("V")[1].split("H")[0])
    assert heights["cpu: 200 ms"] < heights["nixl: 100 ms"], "longer is higher"


def test_a_line_far_above_all_bars_is_left_to_the_table(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert finish(serve_report({"cpu": 0.2}, computed=30.0), None, path) == 0
    found = parse(path.read_text())
    (chart,) = found.all("svg", **{"class": "chart"})
    assert not [node for node in chart.all("title") if node.words.startswith("computed")]
    assert [node for node in found.all("td") if node.words == "30.0 s"]


def compared(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> Any:
    paths = [folder / "a.json", folder / "b.json"]
    for path, one in zip(paths, (before, after), strict=True):
        path.write_text(json.dumps(one))
    return CliRunner().invoke(main, ["bench", "compare", *map(str, paths)])


def test_two_reports_are_compared(tmp_path: Path) -> None:
    before = serve_report({"cpu": 0.2, "nixl": 0.1})
    same = compared(tmp_path, before, before)
    assert same.exit_code == 0, same.output
    assert "Of 8 cases, 0 got slower beyond noise, 0 got faster, 8 stayed within noise." in same.output
    slower = compared(tmp_path, before, serve_report({"cpu": 0.3, "nixl": 0.05}))
    assert slower.exit_code == 1, slower.output
    assert "Of 8 cases, 4 got slower beyond noise, 4 got faster, 0 stayed within noise." in slower.output
    assert "steady" not in slower.output.split("first → second")[1]
    machine = compared(tmp_path, before, serve_report({"cpu": 0.4, "nixl": 0.2}, floor=0.1))
    assert "slower, ratio steady" in machine.output
    cases = ["".join(line.split("│")[2].split()) for line in machine.output.splitlines() if line.startswith("│")]
    assert "512tokens,8atatime:first" in "".join(cases)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"floors": []}, "Expected `array` of length >= 1"),
        ({"floors": serve_report({"cpu": 1})["floors"][:1]}, "each load of a row needs one floor"),
        ({"rows": serve_report({"cpu": 1})["rows"] * 2}, "two rows are about the same connector and load"),
    ],
)
def test_what_is_no_report_is_an_error(change: dict[str, Any], said: str) -> None:
    with pytest.raises(KVBridgeError, match=said):
        parse_report({**serve_report({"cpu": 1}), **change})


@pytest.mark.parametrize("value", ["", "many", "0", "512,-1"])
def test_loads_that_are_none_are_usage_errors(value: str) -> None:
    result = CliRunner().invoke(main, ["bench", "serve", "cpu", "--tokens", value])
    assert result.exit_code == 2
    assert "--tokens" in result.output
