"""`pytest --kvbridge-backend=NAME`: from any folder, in any project, with what pytest's options do."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from kvbridge.conformance.results import Outcome, read_report
from tests.doors.running import acts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.doors.running import Doors

CPU = "--kvbridge-backend=cpu"
ODD = "--kvbridge-backend=odd"
PART = "--kvbridge-select=backend/0"

PROJECT = {
    "pyproject.toml": """
[tool.pytest.ini_options]
testpaths = ["checks"]
filterwarnings = ["error"]
addopts = ["--strict-markers", "--strict-config", "--import-mode=importlib"]
python_files = ["check_*.py"]
python_classes = ["Check"]
python_functions = ["check_*"]
norecursedirs = ["*"]
xfail_strict = true
""",
    "checks/conftest.py": """
import pytest

@pytest.fixture
def world():
    return "mine"
""",
    "checks/check_mine.py": "def check_mine(world):\n    assert world == 'mine'\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with ways of its own."""
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_an_empty_folder_is_enough(doors: Doors, tmp_path: Path) -> None:
    done = doors.pytest(CPU, PART, "-v", "--junitxml=own.xml", folder=tmp_path)
    assert done.code == 0, done.said
    assert "::backend/01-made PASSED" in done.out
    assert done.line("core requirements") == "core requirements run: 9, passed: 9"
    assert done.line("selected: ") == "selected: backend/0"
    assert done.line("cpu: ") == "cpu: passes what was selected"
    cases = [case.get("name") for case in ET.parse(tmp_path / "own.xml").iter("testcase")]  # noqa: S314 - ours
    assert len(cases) == 9
    assert "backend/01-made" in cases


def test_the_suite_joins_a_project_with_ways_of_its_own(doors: Doors, project: Path) -> None:
    done = doors.pytest(
        CPU, PART, "--kvbridge-select=fault/05", "--kvbridge-select=buffer/06", "--kvbridge-json=r.json", folder=project
    )
    assert done.code == 0, done.said
    assert "checks/check_mine.py ." in done.out
    assert "12 passed" in done.out
    report = read_report(project / "r.json")
    assert (report.peers, report.exit_code) == ("process", 0)
    assert report.selected == ("backend/0", "fault/05", "buffer/06")
    assert [result.outcome for result in report.results] == [Outcome.PASSED] * 11


def test_a_failing_test_of_the_project_fails_the_run_and_requirements_are_still_summed_up(
    doors: Doors, project: Path
) -> None:
    (project / "checks" / "check_wrong.py").write_text("def check_wrong():\n    assert False\n")
    asked = {"all": ["-p", "no:cacheprovider"], "first": ["-x", "--kvbridge-json=r.json"]}
    select = "--kvbridge-select=backend/02"
    ran = doors.all({what: partial(doors.pytest, CPU, select, *more, folder=project) for what, more in asked.items()})
    done = ran["all"]
    assert done.code == 1, done.said
    assert "FAILED checks/check_wrong.py::check_wrong" in done.out
    assert done.line("cpu: ") == "cpu: passes what was selected"

    done = ran["first"]
    assert done.code == 1, done.said
    assert done.line("not run: ") == "not run: backend/02-names (the run ended before it)"
    assert "wrong with this run: incomplete: it ended before 1 of 1 requirements" in done.out
    assert done.line("cpu: ") == "cpu: incomplete: no verdict"
    assert read_report(project / "r.json").exit_code == 1


def test_what_pytest_leaves_out_is_not_said_to_be_proven(doors: Doors, project: Path) -> None:
    (project / "w.txt").write_text("backend/01-made: left out, and still a requirement\n")
    asked = {
        "part": ["-k", "backend/02", "--kvbridge-waivers=w.txt"],
        "own": ["-k", "mine", "--kvbridge-json=none.json"],
        "collect": ["--collect-only", "--kvbridge-html=none.html"],
    }
    ran = doors.all({what: partial(doors.pytest, CPU, *more, folder=project) for what, more in asked.items()})
    assert [done.code for done in ran.values()] == [0, 0, 0], [done.said for done in ran.values()]
    assert ran["part"].line("selected: ") == "selected: backend/02-names"
    assert ran["part"].line("cpu: ") == "cpu: passes what was selected"

    assert "1 passed" in ran["own"].out
    assert "<Function backend/01-made>" in ran["collect"].out
    for what in ("own", "collect"):
        assert "no requirement was run, nothing is proven" in ran[what].out
        assert "cpu: " not in ran[what].out
    assert not list(project.glob("none.*"))


def test_a_project_cannot_skip_a_requirement_in_silence(doors: Doors, project: Path) -> None:
    (project / "conftest.py").write_text(
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        item.add_marker(pytest.mark.skip(reason='slow'))\n"
    )
    done = doors.pytest(CPU, "--kvbridge-select=backend/02", "--kvbridge-strict", folder=project)
    assert done.code == 1, done.said
    assert done.line("not run: ") == "not run: backend/02-names (slow)"
    assert done.line("cpu: ") == "cpu: not proven: 1 requirement did not run"


def test_failures_hangs_and_attempts_to_skip_are_failures(doors: Doors, tmp_path: Path) -> None:
    bad = {
        "card@backend/01": "hang",
        "init@backend/05": "zero",
        "card@backend/07": "pytest-exit",
        "accepts@backend/08": "unittest-skip",
        "init@backend/10": "skip",
    }
    (tmp_path / "w.txt").write_text("backend/05-flags-known: known\n")
    done = doors.pytest(
        ODD,
        PART,
        "--kvbridge-select=backend/10",
        f"--kvbridge-options={acts(bad)}",
        "--kvbridge-timeout=4",
        "--kvbridge-waivers=w.txt",
        folder=tmp_path,
    )
    assert done.code == 1, done.said
    failed = [line.split()[1] for line in done.out.splitlines() if line.startswith("FAILED ")]
    ids = ["backend/01-made", "backend/07-card", "backend/08-accepts-its-like", "backend/10-close"]
    assert failed == [f"::{id_}" for id_ in ids]
    assert "MUST: A card is bytes, at most 64 KiB, " in done.out, "the sentence"
    assert "failed: " not in done.out, "pytest has said it"
    assert done.line("waived: ") == "waived: backend/05-flags-known: known (found: ZeroDivisionError: division by zero)"
    assert "5 passed" in done.out
    assert "4 failed" in done.out
    assert "1 xfailed" in done.out


def test_after_three_hangs_the_others_get_less_time_and_nothing_is_left(doors: Doors, tmp_path: Path) -> None:
    doors.site.write("impatient", "from kvbridge.conformance import patience\npatience.SHORTEST = 0.2\n")
    (tmp_path / "tmp").mkdir()
    select = [f"--kvbridge-select={id_}" for id_ in ("backend/01", "backend/05", "backend/07", "buffer/01")]
    options = f"--kvbridge-options={acts({'init@backend': 'hang', 'hold@peer': 'hang'})}"
    args = [ODD, *select, options, "--kvbridge-timeout=1", "--kvbridge-json=r.json", "-p", "impatient"]
    done = doors.pytest(*args, folder=tmp_path, TMPDIR=str(tmp_path / "tmp"))
    assert done.code == 1, done.said
    report = read_report(tmp_path / "r.json")
    assert [result.reason.split(";")[0].split()[-2] for result in report.results] == ["1", "1", "1", "0.25"]
    assert done.line("deadline: ") == (
        "deadline: after 3 requirements hung for 0.25 s or more, each had 0.25 s instead of 1 s"
    )
    assert list((tmp_path / "tmp").iterdir()) == []


WRONG: dict[str, tuple[list[str], str]] = {
    "an unknown backend": (["--kvbridge-backend=cpp"], "did you mean 'cpu'"),
    "a prefix of nothing": ([CPU, "--kvbridge-select=pipe/99"], "no requirement's id starts with pipe/99"),
    "a timeout that is none": ([CPU, "--kvbridge-timeout=soon"], "found 'soon', expected seconds"),
    "no folder": ([CPU, "--kvbridge-html=no/such/page.html"], "there is no folder for 'no/such/page.html'"),
    "several workers": ([CPU, "-n", "2"], "run it without pytest-xdist"),
}


def test_wrong_usage_is_said_in_words(doors: Doors) -> None:
    ran = doors.all({what: partial(doors.pytest, *arguments) for what, (arguments, _) in WRONG.items()})
    for what, done in ran.items():
        assert done.code == pytest.ExitCode.USAGE_ERROR, f"{what}: {done.said}"
        assert WRONG[what][1] in done.err, what
        assert "Traceback" not in done.said, what


def test_a_backend_that_is_not_available_has_an_exit_code_of_its_own(doors: Doors) -> None:
    rigs = ("unavailable", "zero")
    ran = doors.all({rig: partial(doors.pytest, ODD, f"--kvbridge-json={rig}.json", ODD_RIG=rig) for rig in rigs})
    done = ran["unavailable"]
    assert done.code == 3, done.said
    assert all(read_report(doors.folder / f"{rig}.json").incomplete for rig in rigs)
    assert "the backend 'odd' is not available here: the metadata server is not installed" in done.said
    assert ran["zero"].code == 1, ran["zero"].said
    assert "the backend's rig raised ZeroDivisionError in its start" in ran["zero"].said


def test_without_the_option_nothing_changes_and_nothing_is_imported(doors: Doors, project: Path) -> None:
    (project / "checks" / "check_loaded.py").write_text(
        "import sys\n"
        "def check_loaded():\n"
        "    assert 'kvbridge.pytest_plugin' in sys.modules\n"
        "    assert not {'numpy', 'msgspec', 'zmq', 'kvbridge.conformance', 'kvbridge_cpu'} & set(sys.modules)\n"
    )
    done = doors.pytest("-q", folder=project)
    assert done.code == 0, done.said
    assert "2 passed" in done.out
    assert "kvbridge" not in done.out

    code = "import sys, json, pytest; before = set(sys.modules); import kvbridge.pytest_plugin; "
    done = doors.run([sys.executable, "-c", code + "print(json.dumps(sorted(set(sys.modules) - before)))"])
    loaded = {name.partition(".")[0] for name in json.loads(done.out)}
    assert loaded - set(sys.stdlib_module_names) == {"kvbridge"}
