"""A backend that crashes, hangs or ends the process: a failure with a name, and the requirements after it still run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from kvbridge.conformance import run as running
from kvbridge.conformance.configuration import SuiteConfig
from kvbridge.conformance.results import Outcome, read_report
from tests.doors.running import acts

if TYPE_CHECKING:
    from kvbridge.conformance.results import Report
    from tests.doors.running import Doors

GRIM = {
    "card@backend/01": "hang",
    "close@backend/05": "hang",
    "card@backend/07": "segv",
    "accepts@backend/08": "abort",
    "card@backend/09": "exit",
    "init@backend/10": "interrupt",
    "init@backend/11": "leave",
    "init@backend/12": "skip",
}

REASONS = {
    "backend/01": "backend/01-made did not end within 15 s; it stands at",
    "backend/05": "backend/05-flags-known did not end within 15 s; it stands at",
    "backend/07": "the process was ended by SIGSEGV in this test",
    "backend/08": "the process was ended by SIGABRT in this test",
    "backend/09": "the backend raised SystemExit: 0",
    "backend/10": "the backend raised KeyboardInterrupt",
    "backend/11": "the process ended with code 0 in this test",
    "backend/12": "the backend raised Skipped: not today",
}


def test_every_bad_end_names_its_requirement_and_the_rest_runs(doors: Doors) -> None:
    """One run with all of them: the reports are complete and agree with each other."""
    (doors.folder / "conftest.py").write_text("raise SystemExit('the suite needs nothing of this folder')")
    (doors.folder / "pytest.ini").write_text("[pytest]\nno_such_setting = 1\naddopts = --no-such-option\n")
    files = ["--json", "grim.json", "--junit", "grim.xml", "--html", "grim.html"]
    done = doors.kvbridge(
        "odd", "backend/0", "backend/1", *files, "--timeout", "15", "--options", acts(GRIM), PYTEST_ADDOPTS="--no-such"
    )
    assert done.code == 1, done.said
    report = read_report(doors.folder / "grim.json")
    by_id = {result.id[: len("backend/00")]: result for result in report.results}
    assert list(by_id) == [f"backend/{number:02}" for number in range(1, 13)]
    bad = {name: result.reason for name, result in by_id.items() if result.outcome is Outcome.FAILED}
    assert set(bad) == set(REASONS), "\n".join(f"{name}: {reason}" for name, reason in bad.items())
    for name, reason in REASONS.items():
        assert reason in by_id[name].reason, name
        assert f"failed   {by_id[name].id}" in done.out
    assert by_id["backend/01"].reason.index("odd.py") < by_id["backend/01"].reason.index("test_made"), "innermost first"
    assert "Aborted" in by_id["backend/08"].details
    assert 'odd.py", line' in by_id["backend/08"].details, "where the crash was"
    assert done.line("odd: ") == "odd: fails 8 requirements"
    assert done.line("core requirements") == "core requirements run: 10, passed: 4"

    cases = {case.get("name"): case for case in ET.parse(doors.folder / "grim.xml").iter("testcase")}  # noqa: S314 - ours
    assert set(cases) == {result.id for result in report.results}
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    assert failed == {result.id for result in report.failures}
    page = (doors.folder / "grim.html").read_text(encoding="utf-8")
    assert all(result.id in page for result in report.results)


@pytest.fixture
def run(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the parent here, so that its patience can be shortened."""
    monkeypatch.setenv("PYTHONPATH", str(doors.site.folder))
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(doors.bytecode))
    monkeypatch.syspath_prepend(str(doors.site.folder))
    monkeypatch.setattr(running, "GRACE", 1.0)

    def run(*prefixes: str, **does: str) -> Report:
        acts = {name.replace("__", "@").replace("_", "/"): what for name, what in does.items()}
        config = SuiteConfig("odd", {"acts": acts}, prefixes=prefixes, timeout=5.0)
        return running.run(config, told=lambda _: None)

    return run


def test_a_call_that_holds_the_interpreter_is_killed_and_shows_where_it_was(run: Any) -> None:
    report = run("backend/07", "backend/08", card__backend_07="hold")
    held, after = report.results
    assert held.outcome is Outcome.FAILED
    assert "held the interpreter" in held.reason
    assert "odd.py" in held.details
    assert after.outcome is Outcome.PASSED


def test_a_crash_after_the_last_requirement_is_not_silent(run: Any) -> None:
    report = run("backend/07", card__backend_07="abort-at-exit")
    assert [result.outcome for result in report.results] == [Outcome.PASSED]
    assert report.faults == ("after the last requirement the process was ended by SIGABRT",)
    assert report.exit_code == 1
