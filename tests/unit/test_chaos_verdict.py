"""What `kvbridge chaos` calls a broken promise, and what it prints of a run."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from kvbridge.cli.main import main
from kvbridge_vllm.chaos import run
from kvbridge_vllm.chaos.aftermath import HELD, what_is_held
from kvbridge_vllm.chaos.clients import _judged
from kvbridge_vllm.chaos.cluster import describe
from kvbridge_vllm.chaos.oracle import margin
from kvbridge_vllm.chaos.outcomes import Outcome, Record, Struck, judge, recovery, share_right, verdict
from kvbridge_vllm.chaos.report import as_json, show
from kvbridge_vllm.chaos.schedule import Fault

if TYPE_CHECKING:
    from pathlib import Path


def outcome(
    result: Any, ended: float = 1.0, number: int = 0, engines: tuple[str, ...] = (), detail: str = ""
) -> Outcome:
    return Outcome(number, "router", ended - 0.5, ended, result, detail, engines)


def record(*outcomes: Outcome, broken: tuple[str, ...] = ()) -> Record:
    return Record(7, "cpu", "recompute", list(outcomes), [], list(broken))


def test_right_answers_errors_that_were_told_and_clients_that_left_keep_the_promise() -> None:
    assert verdict(record(outcome("right"), outcome("error"), outcome("left"), outcome("stranded"))) == []


@pytest.mark.parametrize("result", ["wrong", "hang"])
def test_one_wrong_or_missing_answer_breaks_it(result: str) -> None:
    found = verdict(record(outcome("right"), outcome(result, number=5, detail="said so")))
    assert len(found) == 1
    assert "request 5" in found[0]
    assert "said so" in found[0]


def test_a_wrong_answer_of_a_probe_breaks_it_too() -> None:
    assert verdict(record(outcome("wrong", number=-1)))


def test_what_is_left_breaks_it() -> None:
    assert verdict(record(outcome("right"), broken=("decode-0: values held: 1",))) == ["decode-0: values held: 1"]


def test_an_answer_with_one_other_token_is_wrong_and_both_are_named() -> None:
    assert judge([1, 2, 3], [1, 2, 3]) == ("right", "")
    assert judge([1, 2, 3, 9, 9], [1, 2, 3]) == ("right", ""), "a longer answer begins with the right one"
    result, detail = judge([1, 2, 4], [1, 2, 3])
    assert result == "wrong"
    assert "[1, 2, 4]" in detail
    assert "[1, 2, 3]" in detail
    assert judge([1, 2], [1, 2, 3])[0] == "wrong", "too short without a word"
    assert judge([], [1])[0] == "wrong"


def test_an_answer_that_says_itself_that_it_is_none_is_an_error() -> None:
    def choice(reason: str) -> dict[str, Any]:
        return {"choices": [{"finish_reason": reason, "token_ids": [1]}]}

    assert _judged(choice("error"), [1, 2])[0] == "error"
    assert _judged(choice("abort"), [1, 2])[0] == "error"
    assert _judged(choice("length"), [1, 2])[0] == "wrong"
    assert _judged({}, [1, 2])[0] == "wrong"


def test_an_engine_that_holds_something_is_told_from_one_that_cannot_be_read() -> None:
    nothing = {f'{name}{{engine="0"}}': 0.0 for name in HELD}
    assert what_is_held(nothing) == []
    assert what_is_held({**nothing, 'vllm:kvbridge_held_values{engine="0"}': 2.0}) == [
        "values held for decode requests: 2"
    ]
    assert what_is_held({**nothing, 'vllm:kv_cache_usage_perc{engine="0"}': 0.25})
    assert len(what_is_held({})) == len(HELD)


def test_recovery_is_until_the_next_right_answer_of_that_engine() -> None:
    struck = Struck(Fault("stop", "decode-0", 1.0, 2.0, 0), 1.0, 3.0)
    outcomes = [
        outcome("right", 2.5, engines=("decode-0",)),
        outcome("error", 3.5, engines=("decode-0",)),
        outcome("right", 4.0, engines=("decode-1",)),
        outcome("right", 5.5, engines=("prefill-0", "decode-0")),
        outcome("right", 9.0, engines=("decode-0",)),
    ]
    assert recovery(struck, outcomes) == 2.5
    assert recovery(struck, outcomes[:3]) is None
    assert recovery(Struck(struck.fault, 1.0), outcomes) is None


def test_the_share_is_of_clients_who_waited() -> None:
    assert share_right([outcome("right"), outcome("error"), outcome("left"), outcome("right", number=-1)]) == 0.5
    assert share_right([]) == 1.0


def test_the_report_shows_faults_against_outcomes_and_the_seed() -> None:
    told = "router: HTTP 500: [no] such engine"
    one = record(
        outcome("right", 1.0, engines=("decode-0",)), outcome("error", 2.0, detail=told), outcome("left", 12.0)
    )
    one.struck.append(Struck(Fault("partition", "decode-0", 0.2, 0.5, 0), 0.2, 0.7))
    one.struck.append(Struck(Fault("kill", "prefill-0", 11.0, 0.5, 0), 11.0))
    out = io.StringIO()
    show(one, Console(file=out, width=120))
    said = out.getvalue()
    for part in ("·e", "0.2 s partition: decode-0", told, "50.0%", "--seed 7", "The promise held", "never"):
        assert part in said
    found = json.loads(json.dumps(as_json(one)))
    assert found["held"] is True
    assert found["seed"] == 7
    assert found["faults"][0]["recovery"] == pytest.approx(0.3)


def test_the_report_says_what_was_broken() -> None:
    out = io.StringIO()
    show(record(outcome("wrong", detail="tokens [1], expected [2]")), Console(file=out, width=120))
    assert "broken: request 0" in out.getvalue()
    assert "tokens [1], expected [2]" in out.getvalue()
    assert "The promise was broken" in out.getvalue()


def test_errors_of_one_kind_are_one_kind() -> None:
    said = {"error": {"message": "request cmpl-0123456789abcdef-7 was\n refused"}}
    assert describe(said) == "request ID was refused"
    assert describe("plain text") == "plain text"


def test_an_answer_is_as_clear_as_its_closest_token() -> None:
    tops = [{"t1": -0.1, "t2": -3.0}, {"t3": -0.5, "t4": -0.51}]
    assert margin({"logprobs": {"top_logprobs": tops}}) == pytest.approx(0.01)


def test_a_backend_that_does_not_exist_is_named_and_nothing_is_started() -> None:
    result = CliRunner().invoke(main, ["chaos", "cpv", "--seed", "1"])
    assert result.exit_code == 3
    assert "did you mean 'cpu'" in result.output


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("{", 2, "the backend's options are no JSON"),
        ('{"capacitx": 1}', 3, "did you mean 'capacity'"),
        ('{"capacity": "1PiB"}', 3, "options.capacity"),
    ],
)
def test_options_that_are_wrong_are_named_and_nothing_is_started(options: str, code: int, said: str) -> None:
    result = CliRunner().invoke(main, ["chaos", "cpu", "--seed", "1", "--options", options])
    assert result.exit_code == code
    assert said in result.output


def test_the_command_that_runs_it_again_has_its_options() -> None:
    made = record(outcome("right"))
    made.options = {"capacity": "1MiB"}
    console = Console(record=True, width=200)
    show(made, console)
    assert """--options '{"capacity": "1MiB"}'""" in console.export_text()
    assert as_json(made)["options"] == {"capacity": "1MiB"}


def test_a_report_that_cannot_be_written_does_not_cost_what_was_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "carry_out", lambda *_, **__: record(outcome("right")))
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    wanted = {"seed": 7, "requests": 1, "policy": "recompute"}
    assert run.run("cpu", {}, **wanted, json_file=str(tmp_path / "none" / "report.json")) == 1
    said = capsys.readouterr()
    assert "The promise held" in said.out
    assert "the report was not written" in said.err
    assert run.run("cpu", {}, **wanted, json_file=str(tmp_path / "report.json")) == 0
    assert json.loads((tmp_path / "report.json").read_text())["seed"] == 7
