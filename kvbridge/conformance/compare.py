"""`kvbridge conformance compare`: what differs between runs, of one backend over time or of several backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbridge.conformance import wording
from kvbridge.conformance.page import write_page
from kvbridge.conformance.results import FORMAT, USAGE, Outcome, Report, Result, counts
from kvbridge.conformance.wording import first_line, some
from kvbridge.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SAME, DIFFERENT = 0, 1
"""Exit codes of a comparison; the third is `results.USAGE`."""

_STYLES = {
    Outcome.PASSED: "green",
    Outcome.FAILED: "red",
    Outcome.WAIVED: "yellow",
    Outcome.UNCLAIMED: "dim",
    Outcome.NOT_RUN: "yellow",
}
_TONES = {"good": "green", "mixed": "yellow", "bad": "red"}
_FEWEST = 2
"""Reports that a comparison needs."""


class _UnreadableError(Exception):
    """A file holds no report. The message is a sentence that names it."""


def compare(paths: Sequence[Path], html: Path | None) -> int:
    """Print what differs between reports, and write the page that shows them side by side.

    Args:
        paths: Files that `--json` wrote, each with one report or several.
        html: Where to write the page; None for none.

    Returns:
        The exit code: 0 no outcome differs, 1 some requirement has different outcomes or only some runs have it,
        2 a file cannot be read, or cannot be written.
    """
    try:
        found = [(path, report) for path in paths for report in _read(path)]
        if len(found) < _FEWEST:
            raise _UnreadableError(f"found {some(len(found), 'report')}, expected two or more: name another file")  # noqa: TRY301 - one way out
        reports = [report for _, report in found]
        if html is not None:
            write_page(html, reports)
    except _UnreadableError as error:
        click.echo(str(error), err=True)
        return USAGE
    except OSError as error:
        click.echo(f"cannot write {html}: {error.strerror or error}; name a file in a folder that exists", err=True)
        return USAGE
    return _print(Console(highlight=False), [str(path) for path, _ in found], reports)


def _read(path: Path) -> list[Report]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Report | list[Report])
    except OSError as error:
        raise _UnreadableError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise _UnreadableError(
            f"{path} is no report: {first_line(str(error))}; expected a file that `kvbridge conformance --json` wrote"
        ) from error
    reports = found if isinstance(found, list) else [found]
    if not reports:
        raise _UnreadableError(f"{path} holds no report: expected at least one")
    for report in reports:
        if report.format != FORMAT:
            raise _UnreadableError(
                f"{path} has a report of format {report.format}, expected {FORMAT}: run the suite again with the same "
                "version of kvbridge"
            )
    return reports


def _print(console: Console, files: Sequence[str], reports: Sequence[Report]) -> int:
    names = wording.labels(reports)
    console.print(_runs(files, reports, names))
    for sentence in wording.conditions(reports):
        console.print(Text(f"Not to be compared one to one. {sentence}", "yellow"))
    by_id = wording.ordered(reports)
    different = {id_: results for id_, results in by_id.items() if wording.differs(results)}
    if different:
        width = max(min(max(map(len, different)), console.width // 3), console.width // 4)
        console.print(_requirements(different, reports, names, width))
    flags = [name for name in wording.capability_names(reports) if len(set(_claims(reports, name))) > 1]
    if flags:
        console.print(_capabilities(flags, reports, names))
    console.print(Text(_summary(different, len(by_id), reports)))
    return DIFFERENT if different else SAME


def _table(title: str, names: Sequence[str], *, ids: int = 0) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_lines=bool(ids))
    table.add_column("requirement" if ids else "", width=ids or None, overflow="fold")
    for name in names:
        table.add_column(Text(name), overflow="fold")
    return table


def _runs(files: Sequence[str], reports: Sequence[Report], names: Sequence[str]) -> Table:
    asked: list[tuple[str, Callable[[Report], str]]] = [
        ("distribution", lambda report: report.distribution),
        ("kvbridge", lambda report: report.kvbridge),
        ("contract", lambda report: report.contract),
        ("started", lambda report: report.started),
        ("peers", lambda report: "processes" if report.peers == "process" else "threads"),
        ("options", wording.options),
        ("selection", wording.selection),
        ("a SHOULD counts", lambda report: "yes" if report.strict else "no"),
        ("counts", wording.counted),
    ]
    table = _table("Runs", names)
    table.add_row("file", *[Text(file) for file in files])
    for what, ask in asked:
        table.add_row(what, *[Text(plain(ask(report))) for report in reports])
    verdicts = [wording.verdict(report) for report in reports]
    table.add_row("verdict", *[Text(found.headline, _TONES[found.tone]) for found in verdicts])
    if any(report.faults for report in reports):
        table.add_row("faults of the run", *[Text(plain("\n".join(report.faults)), "red") for report in reports])
    return table


def _requirements(
    different: dict[str, list[Result | None]], reports: Sequence[Report], names: Sequence[str], width: int
) -> Table:
    table = _table("Requirements that differ", names, ids=width)
    for id_, results in different.items():
        first = next(result for result in results if result)
        head = Text.assemble((plain(id_), "bold"), "\n", f"{first.level}: {first_line(first.sentence)}")
        table.add_row(head, *[_cell(result, report) for result, report in zip(results, reports, strict=True)])
    return table


def _cell(result: Result | None, report: Report) -> Text:
    if result is None:
        return Text(f"{wording.ABSENT_SYMBOL} {wording.ABSENT}", "dim")
    soft = result.outcome is Outcome.FAILED and not counts(result, strict=report.strict)
    text = Text(f"{wording.SYMBOLS[result.outcome]} {result.outcome.value}", _STYLES[result.outcome])
    text.append(" (does not count)" if soft else "")
    if reason := first_line(result.reason):
        text.append(f"\n{reason}", "default")
    return text


def _claims(reports: Sequence[Report], name: str) -> list[str]:
    return [wording.capability(report.capabilities, name) for report in reports]


def _capabilities(flags: Sequence[str], reports: Sequence[Report], names: Sequence[str]) -> Table:
    table = _table("Capabilities that differ", names)
    for name in flags:
        table.add_row(Text(plain(name)), *[Text(said) for said in _claims(reports, name)])
    return table


def _summary(different: dict[str, list[Result | None]], known: int, reports: Sequence[Report]) -> str:
    if not different:
        return f"Nothing differs: {some(known, 'requirement')} with the same outcome in every run."
    text = f"{len(different)} of {some(known, 'requirement')} {wording.plural(len(different), 'differs', 'differ')}"
    moved = [(results[0], results[-1]) for results in different.values()]
    pairs = [(before.outcome, after.outcome) for before, after in moved if before and after]
    if len({report.backend for report in reports}) == 1 and len(reports) == _FEWEST:
        broken, mended = pairs.count((Outcome.PASSED, Outcome.FAILED)), pairs.count((Outcome.FAILED, Outcome.PASSED))
        text += f". From the first run to the second, {broken} newly failed and {mended} newly passed"
    return f"{text}."
