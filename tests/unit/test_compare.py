"""`kvbridge conformance compare`: what differs is shown, what cannot be compared is said, and the exit code follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from kvbridge.capabilities import Capabilities
from kvbridge.conformance.compare import compare
from kvbridge.conformance.results import Outcome, Report, write_reports
from tests.sample_reports import HOSTILE, conforming, failing, modest, report

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "dumb")


def written(folder: Path, *reports: Report) -> list[Path]:
    paths = [folder / f"run-{number}.json" for number in range(len(reports))]
    for path, one in zip(paths, reports, strict=True):
        write_reports(path, [one])
    return paths


def changed(**outcomes: Any) -> Report:
    """The conforming run, with other fields for some of its results: `pipe_03={"outcome": ...}`."""
    results = []
    for result in conforming().results:
        change = outcomes.get(result.id[: result.id.index("-")].replace("/", "_"), {})
        results.append(msgspec.structs.replace(result, **change))
    return conforming(results=tuple(results))


def test_equal_runs_have_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(written(tmp_path, conforming(), conforming()), None) == 0
    printed = capsys.readouterr().out
    count = len(conforming().results)
    assert f"Nothing differs: {count} requirements with the same outcome in every run." in printed
    assert "that differ" not in printed
    assert "compared one to one" not in printed


def test_each_run_has_its_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = written(tmp_path, conforming(), failing())
    compare(paths, None)
    printed = capsys.readouterr().out
    for shown in (
        "cpu",
        "kvbridge-rdma 0.3.1",
        "conforms to contract 1.0",
        "fails 3 requirements",
        "46 passed, 4 failed, 1 unclaimed, 1 not run",
        '"device": "mlx5_0"',
        "processes",
        paths[1].name,
    ):
        assert shown in printed


def test_different_outcomes_are_shown_with_the_reason_and_nothing_else_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(written(tmp_path, conforming(), failing()), None) == 1
    printed = capsys.readouterr().out
    assert "buffer/06-lease-late-read" in printed
    assert "MUST: Bytes that were read after the lease ended do not count." in printed
    assert "the lease ended at 1.00 s, the read at 1.41 s, and the fill succeeded." in printed
    assert "LeaseExpiredError" not in printed, "the first line of a reason is enough"
    assert "pipe/01-bytes" not in printed, "it passes in both"
    assert "SHOULD: Importing the backend" in printed
    assert "failed (does not count)" in printed
    assert "7 of 52 requirements differ." in printed


def test_what_one_backend_lost_and_won_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed, unclaimed = {"outcome": Outcome.FAILED}, {"outcome": Outcome.UNCLAIMED}
    before = changed(pipe_04=failed, pipe_05=failed, buffer_01=failed)
    after = changed(pipe_03=failed, pipe_04=unclaimed, buffer_01=failed)
    assert compare(written(tmp_path, before, after), None) == 1
    printed = capsys.readouterr().out
    assert "cpu (run 1)" in printed
    assert "cpu (run 2)" in printed
    assert (
        "3 of 52 requirements differ. From the first run to the second, 1 newly failed and 1 newly passed." in printed
    )


def test_a_requirement_of_one_run_only_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shorter = conforming(results=conforming().results[:-1])
    assert compare(written(tmp_path, conforming(), shorter), None) == 1
    printed = capsys.readouterr().out
    assert "perf/02-threads" in printed
    assert "not in this run" in printed
    assert "1 of 52 requirements differs." in printed


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"contract": "1.1"}, "Different contract versions: 1.0 for cpu (run 1); 1.1 for cpu (run 2)."),
        ({"peers": "thread"}, "Different peers: processes for cpu (run 1); threads for cpu (run 2)."),
        ({"strict": True}, "Different strictness: not strict for cpu (run 1); strict for cpu (run 2)."),
        (
            {"selected": ("pipe/", "fault/05")},
            "Different selection: all for cpu (run 1); pipe/, fault/05 for cpu (run 2).",
        ),
    ],
)
def test_what_cannot_be_compared_one_to_one_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], sentence: str
) -> None:
    assert compare(written(tmp_path, conforming(), conforming(**other)), None) == 0
    assert f"Not to be compared one to one. {sentence}" in capsys.readouterr().out


def test_different_capabilities_are_shown_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(written(tmp_path, conforming(), failing(), modest()), None)
    rows = [line.split() for line in capsys.readouterr().out.partition("Capabilities that differ")[2].splitlines()]
    shown = {row[1]: " ".join(row[2:]) for row in rows if len(row) > 2}
    assert shown["cuda"] == "│ no │ yes │ no │"
    assert shown["mover"] == "│ consumer │ both │ both │"
    assert shown["max_value_bytes"] == "│ no limit but memory │ 4 GiB │ no limit but memory │"
    assert shown["capacity_bytes"] == "│ 2 GiB │ values stay with the caller │ 64 GiB │"
    assert "buffer" not in shown, "all claim it"


def test_capabilities_alone_are_no_difference_of_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = conforming(capabilities={**conforming().capabilities, "a_new_flag": True})
    assert compare(written(tmp_path, conforming(), other), None) == 0
    printed = capsys.readouterr().out
    assert "a_new_flag" in printed
    assert "not said" in printed


def test_the_order_is_the_contracts_whichever_run_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = conforming().results
    compare(written(tmp_path, conforming(results=results[::2]), conforming(results=results[1::2])), None)
    printed = capsys.readouterr().out
    places = [printed.index(result.id) for result in results]
    assert places == sorted(places)


def test_what_a_reason_holds_does_nothing_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = {"outcome": Outcome.FAILED, "reason": f"{HOSTILE} \x9b2J \u202e \x1b]0;title\x07"}
    compare(written(tmp_path, conforming(), changed(pipe_03=change)), None)
    printed = capsys.readouterr().out
    assert "[bold]x[/bold]" in printed
    assert "消えた, red, ␀" in printed
    assert not set("\x1b\x00\x07\x9b\u202e") & set(printed)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot read {path}: No such file or directory"),
        (b"", "{path} is no report: "),
        (b"{not json", "{path} is no report: "),
        (b'{"backend": "cpu"}', "{path} is no report: Object missing required field `distribution`"),
        (b'"\xff"', "{path} is no report: "),
        (b'{"options": ' + b'{"a":' * 100_000, "{path} is no report: "),
        (b"[]", "{path} holds no report: expected at least one"),
        (msgspec.json.encode(conforming(format=2)), "{path} has a report of format 2, expected 1: run the suite again"),
    ],
)
def test_what_is_no_report_is_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, sentence: str
) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    assert compare([*written(tmp_path, conforming()), path], None) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(sentence.format(path=path))
    assert printed.err.count("\n") == 1


def test_one_report_is_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(written(tmp_path, conforming()), None) == 2
    assert capsys.readouterr().err == "found 1 report, expected two or more: name another file\n"


def test_a_file_may_hold_several_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "all.json"
    write_reports(path, [conforming(), failing()])
    assert compare([path], None) == 1
    assert "7 of 52 requirements differ." in capsys.readouterr().out


def test_the_page_has_every_run(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert compare(written(tmp_path, conforming(), failing(), modest()), page) == 1
    text = page.read_text(encoding="utf-8")
    assert all(f"<h3>{name}</h3>" in text for name in ("cpu", "rdma", "files"))


def test_a_page_that_cannot_be_written_is_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "missing" / "page.html"
    assert compare(written(tmp_path, conforming(), conforming()), page) == 2
    assert capsys.readouterr().err == (
        f"cannot write {page}: No such file or directory; name a file in a folder that exists\n"
    )


@pytest.mark.parametrize("columns", ["40", "80", "120"])
def test_a_narrow_terminal_cuts_nothing_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    compare(written(tmp_path, report("cpu", Capabilities()), failing()), None)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert all(line[0] == "│" and line[-1] == "│" for line in lines if "│" in line)
