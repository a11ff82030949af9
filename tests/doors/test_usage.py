"""`kvbridge conformance`: 0 conforms, 2 wrong usage, 3 not available here; and 1 for a backend that cannot be made."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.conformance.configuration import SuiteConfig, read_waivers
from kvbridge.conformance.results import Outcome, read_report
from kvbridge.conformance.setting import BrokenError, Setting
from kvbridge.errors import ConfigError
from tests.doors.running import acts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.doors.running import Done, Doors

CONFORMS, FAILED, USAGE, UNAVAILABLE = 0, 1, 2, 3

WAIVERS = {
    "without a reason": ("backend/01-made:\n", "w.txt:1: found 'backend/01-made:', expected 'id: reason'"),
    "without a colon": ("# known\n\nbackend/01-made\n", "w.txt:3: found 'backend/01-made'"),
    "twice": ("backend/01-made: a\nbackend/01-made: b\n", "w.txt:2: 'backend/01-made' is waived twice"),
    "binary": ("\udcff\udcfe", "cannot read the waivers"),
    "none": (None, "cannot read the waivers"),
}

WRONG: dict[str, tuple[list[str], str]] = {
    "an unknown option of the command": (["cpu", "--no-such"], "No such option"),
    "no backend": ([], "name a backend"),
    "an unknown backend": (["cpp", "backend/01"], "did you mean 'cpu'"),
    "options that are no JSON": (["cpu", "--options", "{capacity: 1}"], "the backend's options are no JSON"),
    "options that are no object": (["cpu", "--options", "[1]"], "a JSON list, expected an object"),
    "a timeout that is none": (["cpu", "--timeout", "0"], "timeout"),
    "peers that are none": (["cpu", "--peers", "rank"], "'rank' is not one of"),
    "a prefix of nothing": (["cpu", "pipe/99", "nothing/"], "no requirement's id starts with pipe/99 or nothing/"),
    "a folder that is not there": (["cpu", "--html", "no/such/page.html"], "no folder for the report"),
    "an unknown option of the backend": (["odd", "backend/02", "--options", '{"capcity": 1}'], "'capacity'"),
    "waivers that are not there": (["cpu", "backend/01", "--waivers", "none.txt"], "cannot read the waivers"),
    "a backend of two distributions": (
        ["double", "backend/01"],
        "comes from first 1.0 (odd:OddBackend) and second 1.0",
    ),
}

ENDS: dict[str, tuple[list[str], str, int, str]] = {
    "a probe that says no": (
        ["odd", "backend/0", "--options", acts({"no": "this machine has no fabric"})],
        "",
        UNAVAILABLE,
        "the backend 'odd' is not available here: this machine has no fabric",
    ),
    "a rig that cannot work here": (["odd", "backend/0"], "unavailable", UNAVAILABLE, "server is not installed"),
    "a backend that cannot be imported": (
        ["broken", "backend/0"],
        "",
        UNAVAILABLE,
        "'broken' of broken-dist 1.0 (broken:Broken) cannot be imported: ModuleNotFoundError: No module named 'no_such",
    ),
    "a rig that crashes": (["odd"], "abort", FAILED, "before its first requirement the process was ended by SIGABRT"),
    "a rig that does not stop": (["odd", "backend/02"], "stop", FAILED, "rig raised ValueError in its stop: no such"),
    "a backend that crashes where it is made": (
        ["odd", "backend/0", "--options", acts({"init": "abort"})],
        "",
        FAILED,
        "backend/01-made failed, and with it everything: the backend cannot be made: its probe was ended by SIGABRT",
    ),
}
"""Arguments, what the rig does, exit code, what is said."""

FORMS = ("json", "junit", "html")


@pytest.fixture(scope="module")
def ran(doors: Doors) -> dict[str, Done]:
    """Run all the commands of this module."""
    doors.site.install("first", "double", "odd:OddBackend")
    doors.site.install("second", "double", "odd:OddBackend")
    doors.site.write("broken", "import no_such_library\n")
    doors.site.install("broken-dist", "broken", "broken:Broken")
    doors.site.install("broken-rig", "broken", "broken:BrokenRig", group="kvbridge.rigs")
    runs = {what: partial(doors.kvbridge, *arguments) for what, (arguments, _) in WRONG.items()}
    for what, (arguments, rig, _, _) in ENDS.items():
        files = [f"--{kind}={what}.{kind}" for kind in FORMS]
        runs[what] = partial(doors.kvbridge, *arguments, *files, ODD_RIG=rig)
    return doors.all(runs)


@pytest.mark.parametrize("what", WRONG)
def test_wrong_usage_is_said_in_words(ran: dict[str, Done], what: str) -> None:
    assert ran[what].code == USAGE, ran[what].said
    assert WRONG[what][1] in ran[what].err
    assert "Traceback" not in ran[what].said
    assert not ran[what].out


@pytest.mark.parametrize("what", ENDS)
def test_unavailable_is_told_from_broken(ran: dict[str, Done], what: str) -> None:
    _, _, code, said = ENDS[what]
    assert ran[what].code == code, ran[what].said
    assert said in ran[what].said
    assert "conforms" not in ran[what].said


@pytest.mark.parametrize("what", ENDS)
def test_the_reports_of_a_run_that_could_not_begin_say_why(doors: Doors, ran: dict[str, Done], what: str) -> None:
    report = read_report(doors.folder / f"{what}.json")
    assert report.exit_code == FAILED
    assert all((doors.folder / f"{what}.{kind}").exists() for kind in FORMS)
    if what == "a rig that does not stop":
        return
    assert report.incomplete
    assert {result.outcome for result in report.results} == {Outcome.NOT_RUN}
    assert ENDS[what][3] in report.faults[0]


@pytest.mark.parametrize("what", WAIVERS)
def test_waivers_that_cannot_be_read_say_why(what: str, tmp_path: Path) -> None:
    text, said = WAIVERS[what]
    file = tmp_path / "w.txt"
    if text is not None:
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_waivers(file)


@pytest.fixture
def enter(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(doors.site.folder))
    monkeypatch.syspath_prepend(str(doors.site.folder))
    monkeypatch.setenv("ODD_RIG_WAS_HERE", "")
    return lambda peers="auto", **options: Setting.enter(SuiteConfig("odd", options, peers=peers))


@pytest.mark.parametrize("does", [{"init": "zero"}, {"init": "unavailable"}, {"probe": "leave"}], ids=str)
def test_no_end_of_a_constructor_or_a_probe_counts_as_unavailable(enter: Any, does: dict[str, str]) -> None:
    with pytest.raises(BrokenError, match="backend/01-made failed, and with it everything"):
        enter(acts=does)


@pytest.mark.parametrize("what", ["zero", "options", "skip", "exit"])
def test_whatever_a_rig_raises_is_told_from_a_fault_of_the_suite(
    enter: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_RIG", what)
    with pytest.raises(BrokenError, match="the backend's rig raised"):
        enter()


def test_process_peers_need_a_backend_that_reaches_so_far(enter: Any) -> None:
    with pytest.raises(ConfigError, match="'odd' does not claim cross_process"):
        enter(peers="process", claims={"cross_process": False})
