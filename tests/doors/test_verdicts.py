"""No silent green: waivers, what is not claimed, what was not run and what does not count are said in words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from kvbridge.conformance.results import Outcome, read_report
from tests.doors.running import acts

if TYPE_CHECKING:
    from tests.doors.running import Done, Doors

SUMMARY = (
    *("core requirements run: ", "claimed requirements run: ", "claimed, not tested here: "),
    *("not claimed: ", "waived: ", "not run: "),
)
"""How the lines start that are always there."""

FAR = [
    "backend/02",
    "fault/05",
    "fault/06",
    "perf/03",
    "--peers",
    "thread",
    "--options",
    acts({"init@perf/03": "zero"}),
]
"""A SHOULD that fails, two requirements that threads cannot try, and one that passes."""

RUNS = {
    "waived": [
        *("backend/05", "backend/20", "backend/23", "--waivers", "good.txt", "--json", "good.json"),
        *("--options", acts({"init@backend/05": "zero"}, claims={"cuda": True})),
    ],
    "wrong": [
        *("backend/02", "backend/05", "backend/06", "fault/01", "--waivers", "bad.txt"),
        *("--options", acts(claims={"buffer": False, "shared": True}, extra=True)),
    ],
    "maxfail": [
        "backend/02",
        "backend/05",
        "backend/06",
        "--maxfail",
        "1",
        "--options",
        acts({"init@backend/05": "zero"}),
    ],
    "lenient": FAR,
    "strict": [*FAR, "--strict"],
}


@pytest.fixture(scope="module")
def ran(doors: Doors) -> dict[str, Done]:
    """Run all the commands of this module."""
    (doors.folder / "good.txt").write_text("# known\n\nbackend/05-flags-known: the library is old (issue 12)\n")
    (doors.folder / "bad.txt").write_text("backend/02-names: it used to fail\nbackend/99-none: a slip of the pen\n")
    return doors.all({what: partial(doors.kvbridge, "odd", *arguments) for what, arguments in RUNS.items()})


def test_a_waived_failure_is_shown_with_its_reason_and_does_not_count(doors: Doors, ran: dict[str, Done]) -> None:
    done = ran["waived"]
    assert done.code == 0, done.said
    said = "backend/05-flags-known: the library is old (issue 12) (found: ZeroDivisionError: division by zero)"
    assert done.line("waived: ") == f"waived: {said}"
    report = read_report(doors.folder / "good.json")
    assert report.results[0].outcome is Outcome.WAIVED
    assert "ZeroDivisionError" in report.results[0].details
    assert done.line("core requirements") == "core requirements run: 1, passed: 0"
    refusals = "2 requirements, backend/20-refuses-pipe to backend/23-refuses-cuda (about backends without cuda, pipe)"
    assert done.line("does not apply: ") == f"does not apply: {refusals}"
    assert done.line("not claimed: ") == "not claimed: nothing"
    assert done.line("claimed, not tested here: ").endswith("cross_process, detaches, max_value_bytes, capacity_bytes")


def test_a_waiver_that_is_wrong_is_a_failure_and_says_so(ran: dict[str, Done]) -> None:
    done = ran["wrong"]
    assert done.code == 1, done.said
    assert "wrong with this run: 'backend/02-names' is waived but passes: delete the waiver" in done.out
    assert "wrong with this run: the waivers name 'backend/99-none', which is no requirement" in done.out


def test_flags_that_are_unknown_or_disagree_are_failures_by_name(ran: dict[str, Done]) -> None:
    done = ran["wrong"]
    said = "failed: backend/05-flags-known: found Extended with ['telepathy'], expected Capabilities itself\n"
    assert f"{said}    MUST: Capabilities are of the contract's own type: " in done.out
    assert done.said.count("found Extended with ['telepathy']") == 1
    assert done.line("failed: backend/06").startswith("failed: backend/06-flags-agree: a transport's buffers are the")
    assert done.line("not claimed: ") == "not claimed: buffer (fault/01-waiting-for-the-dead)"
    assert done.line("odd: ") == "odd: fails 2 requirements"


def test_the_first_failure_may_end_the_run(ran: dict[str, Done]) -> None:
    done = ran["maxfail"]
    assert done.code == 1, done.said
    assert done.line("not run: ") == "not run: backend/06-flags-agree (the run ended before it)"
    assert done.line("wrong with ") == "wrong with this run: incomplete: it ended after 1 failure, as --maxfail says"
    assert done.line("odd: ") == "odd: incomplete; so far it fails 1 requirement"


@pytest.mark.parametrize("strict", [False, True])
def test_a_should_and_what_was_not_run_count_in_a_strict_run_only(ran: dict[str, Done], *, strict: bool) -> None:
    done = ran["strict" if strict else "lenient"]
    assert done.code == (1 if strict else 0), done.said
    not_run = "not run: 2 requirements, fault/05-sender-dies to fault/06-receiver-dies ("
    assert done.line("not run: ").startswith(not_run)
    assert "it needs peers in processes of their own" in done.line("not run: ")
    assert done.line("core requirements") == "core requirements run: 1, passed: 1"
    assert done.line("claimed ") == "claimed requirements run: 1, passed: 0 (buffer 1, tensors 1)"
    shown = "failed: perf/03-flat: " if strict else "SHOULD, does not count: perf/03-flat: "
    assert done.line(shown) == f"{shown}ZeroDivisionError: division by zero"
    verdict = "fails 1 requirement" if strict else "passes what was selected, but 2 requirements did not run"
    assert done.line("odd: ") == f"odd: {verdict}"


@pytest.mark.parametrize("what", RUNS)
def test_the_summary_always_says_what_was_tried_and_what_was_not(ran: dict[str, Done], what: str) -> None:
    lines = ran[what].out.splitlines()
    for start in SUMMARY:
        assert any(line.startswith(start) for line in lines), start
