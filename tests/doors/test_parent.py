"""What the parent makes of a child that dies between two tests, never starts, never ends or cannot go on."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.conformance import child, run
from kvbridge.conformance.configuration import SuiteConfig
from kvbridge.conformance.results import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.conformance.results import Report, Result

CHILD = """
import json, os, signal, subprocess, sys, time
given = [argument.partition("=") for argument in sys.argv[1:]]
journal = next(value for name, _, value in given if name == "--kvbridge-journal")
ids = [value for name, _, value in given if name == "--kvbridge-select"]
NUMBER = int(os.environ["COUNT_FILE"] and open(os.environ["COUNT_FILE"], "a").tell())
open(os.environ["COUNT_FILE"], "a").write("x")

def say(**entry):
    with open(journal, "a") as file:
        file.write(json.dumps(entry) + "\\n")

def report():
    say(report=dict(backend="cpu", distribution="d", kvbridge="0", contract="1.0", options={}, capabilities={},
        peers="process", strict=False, selected=[], started="", seconds=0, machine={}, results=[]))

def passed(id_):
    say(start=id_)
    say(result=dict(id=id_, level="MUST", sentence="s", outcome="passed"))

def failed(id_, seconds):
    say(start=id_)
    say(result=dict(id=id_, level="MUST", sentence="s", outcome="failed", seconds=seconds))
"""


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Report]:
    """Run the parent with children that do what some lines say."""
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "count"))

    def go(lines: str, waivers: str = "", told: list[Result] | None = None, maxfail: int = 0) -> Report:
        for name in ("START", "END"):
            monkeypatch.setattr(run, name, 3.0 if "time.sleep(100)" in lines else 60.0)
        script = tmp_path / "child.py"
        script.write_text(CHILD + lines)
        monkeypatch.setattr(child, "_PYTEST", [sys.executable, "-S", "-E", str(script)])
        (tmp_path / "waivers").write_text(waivers)
        config = SuiteConfig(
            "cpu", {}, prefixes=("backend/0",), timeout=60, waivers=tmp_path / "waivers", maxfail=maxfail
        )
        return run.run(config, told=([] if told is None else told).append)

    return go


def test_a_child_that_does_everything_is_the_only_one(parent: Any, tmp_path: Path) -> None:
    told: list[Result] = []
    report = parent("report()\nfor id_ in ids: passed(id_)", told=told)
    assert report.exit_code == 0
    assert tuple(told) == report.results
    assert len((tmp_path / "count").read_text()) == 1


def test_a_death_between_two_tests_is_said_and_the_rest_runs(parent: Any) -> None:
    report = parent(
        """
report()
for id_ in ids:
    passed(id_)
    if id_.startswith("backend/03"): os.kill(os.getpid(), signal.SIGBUS)
"""
    )
    assert all(result.outcome is Outcome.PASSED for result in report.results)
    assert report.faults == ("after backend/03-options the process was ended by SIGBUS; the rest ran in a new one",)
    assert report.exit_code == 1


def test_a_line_that_a_crash_tore_is_not_read(parent: Any) -> None:
    report = parent(
        """
report()
for id_ in ids:
    say(start=id_)
    if id_.startswith("backend/03"):
        open(journal, "a").write('{"result": {"id": "back')
        os.abort()
    passed(id_)
"""
    )
    failed = [result for result in report.results if result.outcome is Outcome.FAILED]
    assert [(result.id, result.reason) for result in failed] == [
        ("backend/03-options", "the process was ended by SIGABRT in this test")
    ]
    assert len(report.results) == 9


def test_a_crash_can_be_waived(parent: Any) -> None:
    lines = """
report()
for id_ in ids:
    say(start=id_)
    if id_.startswith("backend/03"): os.abort()
    passed(id_)
"""
    report = parent(lines, waivers="backend/03-options: the vendor's library aborts (issue 7)")
    [waived] = [result for result in report.results if result.outcome is Outcome.WAIVED]
    assert waived.reason == (
        "the vendor's library aborts (issue 7) (found: the process was ended by SIGABRT in this test)"
    )
    assert report.exit_code == 0


def test_waivers_of_what_passes_and_of_nothing_are_wrong_and_no_failure_is_needed_for_that(parent: Any) -> None:
    waivers = "backend/02-names: it used to fail\nbackend/99-none: a slip of the pen\n"
    report = parent("report()\nfor id_ in ids: passed(id_)", waivers=waivers)
    assert report.faults == (
        "the waivers name 'backend/99-none', which is no requirement",
        "'backend/02-names' is waived but passes: delete the waiver",
    )
    assert not report.failures
    assert report.exit_code == 1


@pytest.mark.parametrize("how", ['say(refusal="the port is taken", code=3)', "print('the port is taken')"])
def test_what_cannot_be_run_after_a_crash_is_not_run_and_nothing_is_proven(parent: Any, how: str) -> None:
    report = parent(
        f"""
if NUMBER:
    {how}
    sys.exit(1)
report()
passed(ids[0])
say(start=ids[1])
os.abort()
"""
    )
    outcomes = [result.outcome for result in report.results]
    assert outcomes == [Outcome.PASSED, Outcome.FAILED] + [Outcome.NOT_RUN] * 7
    assert len(report.faults) == 1
    assert report.faults[0].startswith("incomplete: it could not go on: ")
    assert "the port is taken" in report.faults[0]
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("lines", "said", "code"),
    [
        ("print('no word')", "before its first requirement the process ended with code 0\nno word", 1),
        ("sys.exit(3)", "ended with code 3", 1),
        ("os.kill(os.getpid(), 40)", "was ended by signal 40", 1),
        ("time.sleep(100)", "was killed: it did nothing for", 1),
        ("say(refusal='it is not here', code=3)", "it is not here", 3),
        ("report()\ntime.sleep(100)", "it could not go on", None),
    ],
)
def test_a_child_that_never_runs_anything_ends_the_run(parent: Any, lines: str, said: str, code: int | None) -> None:
    if code is None:
        assert said in parent(lines).faults[0]
        return
    with pytest.raises(run.RunError, match=said) as error:
        parent(lines)
    assert error.value.code == code


@pytest.mark.parametrize("end", ["time.sleep(100)", "os.abort()", "sys.exit(4)"])
def test_a_bad_end_after_the_last_test_is_said(parent: Any, end: str) -> None:
    report = parent(f"report()\nfor id_ in ids: passed(id_)\n{end}")
    assert len(report.faults) == 1
    assert report.faults[0].startswith("after the last requirement the process ")
    assert report.exit_code == 1


def test_what_a_child_says_is_wrong_with_the_run_counts(parent: Any) -> None:
    report = parent("report()\nfor id_ in ids: passed(id_)\nsay(fault='the server did not stop')")
    assert report.faults == ("the server did not stop",)


def test_enough_failures_end_the_run_crashes_included(parent: Any, tmp_path: Path) -> None:
    report = parent(
        """
report()
failed(ids[0], 1)
say(start=ids[1])
os.abort()
""",
        maxfail=2,
    )
    assert len((tmp_path / "count").read_text()) == 1
    assert [result.outcome for result in report.results] == [Outcome.FAILED] * 2 + [Outcome.NOT_RUN] * 7
    assert report.faults == ("incomplete: it ended after 2 failures, as --maxfail says",)
    assert report.incomplete


def test_a_child_after_three_hangs_is_given_less_time_for_each_requirement(parent: Any) -> None:
    report = parent(
        """
report()
timeout = next(value for name, _, value in given if name == "--kvbridge-timeout")
say(fault=f"{timeout} s")
if NUMBER == 0:
    for id_ in ids[:3]: failed(id_, 60)
    os.abort()
for id_ in ids: passed(id_)
"""
    )
    assert [fault for fault in report.faults if fault.endswith(" s")] == ["60 s", "15.0 s"]
    assert len(report.results) == 9
    assert not report.incomplete


def test_processes_of_a_child_end_with_it(parent: Any, tmp_path: Path) -> None:
    report = parent(
        f"""
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e3)"])
open({str(tmp_path / "left")!r}, "w").write(str(left.pid))
report()
for id_ in ids: passed(id_)
os._exit(0)
"""
    )
    assert report.exit_code == 0
    stat = Path("/proc") / (tmp_path / "left").read_text() / "stat"
    deadline = time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.02)
