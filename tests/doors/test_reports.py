"""What the command prints and writes: the contract, a run in three forms, two runs side by side."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import msgspec
import pytest

from kvbridge.capabilities import Capabilities
from kvbridge.conformance import CONTRACT
from kvbridge.conformance.junit import write_junit
from kvbridge.conformance.page import write_page
from kvbridge.conformance.results import Outcome, read_report, write_reports
from kvbridge.conformance.run import all_requirements
from kvbridge.conformance.summary import lines
from tests.doors.running import acts
from tests.sample_reports import HOSTILE, failing, report

if TYPE_CHECKING:
    from pathlib import Path

    from tests.doors.running import Doors


@pytest.fixture(scope="module")
def passed(doors: Doors) -> Path:
    """A run of the cpu backend, written in every form. Its folder."""
    files = ["--json", "cpu.json", "--junit", "cpu.xml", "--html", "cpu.html"]
    done = doors.kvbridge("cpu", "backend/0", "backend/23", *files)
    assert done.code == 0, done.said
    assert {path.name for path in doors.folder.iterdir()} == {*files[1::2]}, "nothing but what was asked for"
    assert done.line("core requirements") == "core requirements run: 10, passed: 10"
    assert done.line("cpu: ") == "cpu: passes what was selected"
    return doors.folder


def test_a_run_is_written_in_three_forms_that_agree(passed: Path) -> None:
    found = read_report(passed / "cpu.json")
    assert (found.backend, found.contract, found.peers, found.strict) == ("cpu", CONTRACT, "process", False)
    assert found.distribution.startswith("kvbridge ")
    assert found.options == {"capacity": "64MiB"}
    assert found.selected == ("backend/0", "backend/23")
    assert [result.outcome for result in found.results] == [Outcome.PASSED] * 10

    suite = ET.parse(passed / "cpu.xml").find("testsuite")  # noqa: S314 - ours
    assert suite is not None
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["10", "0", "0"]
    assert [case.get("name") for case in suite.iter("testcase")] == [result.id for result in found.results]

    page = (passed / "cpu.html").read_text(encoding="utf-8")
    assert all(result.id in page for result in found.results)


@pytest.mark.parametrize("strict", [False, True])
def test_junit_counts_what_counts_and_takes_any_text(tmp_path: Path, *, strict: bool) -> None:
    hostile = {"pipe/03-order": {"outcome": Outcome.FAILED, "reason": HOSTILE, "details": HOSTILE + "\ud800\x0b"}}
    found = failing(strict=strict, faults=(HOSTILE,))
    found = msgspec.structs.replace(
        found,
        results=tuple(msgspec.structs.replace(result, **hostile.get(result.id, {})) for result in found.results),
    )
    write_junit(tmp_path / "r.xml", found)
    suite = ET.parse(tmp_path / "r.xml").find("testsuite")  # noqa: S314 - ours
    assert suite is not None
    cases = list(suite.iter("testcase"))
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert {result.id for result in found.failures} <= failed
    assert len(failed) == len(found.failures) + len(found.faults)
    skipped = sum(case.find("skipped") is not None for case in cases)
    assert [int(suite.get(name, "")) for name in ("tests", "failures", "skipped")] == [len(cases), len(failed), skipped]
    assert len(cases) == len(found.results) + 1
    assert "<script>alert(1)</script>" in "".join(suite.itertext()), "as text"


def test_what_is_claimed_and_not_tested_is_said_in_every_form(tmp_path: Path) -> None:
    found = failing()
    about = sum("pages" in result.needs for result in found.results)
    assert "claimed, not tested here: takes, tombstones, cross_host, max_value_bytes" in lines(found)
    write_reports(tmp_path / "r.json", [found])
    written = json.loads((tmp_path / "r.json").read_text())
    assert (written["coverage"]["pages"], written["coverage"]["cross_host"]) == (about, 0)
    assert written["claimed_not_tested"] == ["takes", "tombstones", "cross_host", "max_value_bytes"]
    assert read_report(tmp_path / "r.json") == found
    write_page(tmp_path / "r.html", [found])
    page = (tmp_path / "r.html").read_text()
    assert page.count("yes <small>claimed, not tested here</small>") == 3
    assert f"yes <small>tested by {about} requirements</small>" in page
    assert "Claimed, not tested here: takes, tombstones, cross_host, max_value_bytes." in page


def test_two_runs_are_compared(doors: Doors, passed: Path) -> None:
    same = doors.kvbridge("compare", "cpu.json", "cpu.json", "--html", "both.html")
    assert same.code == 0, same.said
    assert "Nothing differs: 10 requirements" in same.out
    assert "backend/01-made" in (passed / "both.html").read_text(encoding="utf-8")

    broken = read_report(passed / "cpu.json")
    first = msgspec.structs.replace(broken.results[0], outcome=Outcome.FAILED, reason="it fell over")
    write_reports(
        passed / "broken.json", [msgspec.structs.replace(broken, results=(first, *broken.results[1:]), backend="odd")]
    )
    different = doors.kvbridge("compare", "cpu.json", "broken.json")
    assert different.code == 1, different.said
    assert "backend/01-made" in different.out
    assert "it fell over" in different.out


@pytest.mark.parametrize("files", [["cpu.json", "cpu.xml"], ["cpu.json", "none.json"]], ids=str)
def test_what_is_no_report_cannot_be_compared(doors: Doors, passed: Path, files: list[str]) -> None:
    done = doors.kvbridge("compare", *files)
    assert done.code == 2, done.said
    assert files[1] in done.err
    assert "Traceback" not in done.said


def test_the_contract_is_listed_and_a_part_of_it(doors: Doors) -> None:
    known = all_requirements()
    asked = {"all": ["--list"], "part": ["cpu", "--list", "pipe/01", "perf/"], "none": ["cpu", "--list", "pipe/99"]}
    ran = doors.all({what: partial(doors.kvbridge, *arguments) for what, arguments in asked.items()})
    assert [done.code for done in ran.values()] == [0, 0, 2]
    listed = ran["all"].out.splitlines()
    assert listed[0] == f"contract {CONTRACT}, {len(known)} requirements"
    assert {line.split()[0] for line in listed[1:-2:2]} == {requirement.id for requirement in known}
    assert {line.strip() for line in listed[2:-2:2]} == {requirement.sentence for requirement in known}
    processes = sum(requirement.processes for requirement in known)
    assert f", cross_process {processes}" in listed[-2]
    assert listed[-1] == "tested by none of them: cross_host"

    chosen = [requirement.id for requirement in known if requirement.selected(("pipe/01", "perf/"))]
    assert [line.split()[0] for line in ran["part"].out.splitlines()[1:-2:2]] == chosen
    assert "no requirement's id starts with pipe/99" in ran["none"].err


def test_a_traceback_of_a_peers_process_travels(doors: Doors) -> None:
    options = acts({"hold@peer": "zero"})
    done = doors.kvbridge("odd", "buffer/01", "--options", options, "--json", "peer.json")
    assert done.code == 1, done.said
    [result] = read_report(doors.folder / "peer.json").results
    assert result.outcome is Outcome.FAILED
    assert "ZeroDivisionError" in result.reason
    there = result.details.index("RemoteTraceback")
    assert there < result.details.index("return 1 / 0"), "the line that raised, in the peer's process"
    assert "in hold" in result.details
    assert "test_buffer_values.py" in result.details, "and the line here that was waiting for it"


def test_a_hostile_reason_moves_no_cursor() -> None:

    found = report("x", Capabilities(), {"backend/01-probe": {"outcome": Outcome.FAILED, "reason": HOSTILE}})
    text = "\n".join(lines(msgspec.structs.replace(found, faults=(HOSTILE,))))
    assert "\x1b" not in text
    assert "\x00" not in text
