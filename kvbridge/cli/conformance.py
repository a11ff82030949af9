"""`kvbridge conformance`: run the suite, list the contract, compare runs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from kvbridge.conformance.wording import plain
from kvbridge.errors import ConfigError, KVBridgeError

if TYPE_CHECKING:
    from kvbridge.conformance.configuration import SuiteConfig
    from kvbridge.conformance.results import Report, Result

USAGE = 2

ENDED_BY = 128
"""Exit code of a process that a signal ended, less the signal's number."""


def compare_runs(files: tuple[str, ...], html: str | None) -> int:
    """Compare reports. Returns the exit code."""
    from kvbridge.conformance.compare import compare  # noqa: PLC0415 - each command loads what it needs

    if len(files) < 2:  # noqa: PLR2004 - one report cannot be compared
        print("compare needs two or more reports, written with --json", file=sys.stderr)
        return USAGE
    return compare([Path(file) for file in files], None if html is None else Path(html))


def list_contract(prefixes: tuple[str, ...]) -> int:
    """Print the requirements. Returns the exit code."""
    from kvbridge.conformance import CONTRACT  # noqa: PLC0415 - likewise
    from kvbridge.conformance.run import all_requirements  # noqa: PLC0415 - likewise

    found = [requirement for requirement in all_requirements() if requirement.selected(prefixes)]
    if not found:
        print(f"no requirement's id starts with {' or '.join(prefixes)}", file=sys.stderr)
        return USAGE
    print(f"contract {CONTRACT}, {len(found)} requirements")
    for requirement in found:
        flags = [*requirement.needs, *(f"not {flag}" for flag in requirement.lacks)]
        about = f" [{', '.join(flags)}]" if flags else ""
        print(f"{requirement.id} {requirement.level}{about}\n    {requirement.sentence}")
    return 0


def run_suite(config: SuiteConfig, *, json: str | None, junit: str | None, html: str | None) -> int:
    """Run the suite and write what was asked for. Returns the exit code."""
    from kvbridge.conformance.run import RunError, run  # noqa: PLC0415 - likewise
    from kvbridge.conformance.summary import lines  # noqa: PLC0415 - likewise

    console = Console(highlight=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        _require_folders(json, junit, html)
        report = run(config, lambda result: _show(console, result))
    except RunError as error:
        print(error, file=sys.stderr)
        return error.code
    except KVBridgeError as error:
        print(error, file=sys.stderr)
        return USAGE
    console.print()
    for line in lines(report):
        console.print(line, markup=False, soft_wrap=True)
    try:
        _write(report, json=json, junit=junit, html=html)
    except OSError as error:
        print(f"the report cannot be written: {error}", file=sys.stderr)
        return USAGE
    return report.exit_code


def _end(number: int, frame: Any) -> None:
    """End in order, so that the child and its peers end too."""
    del frame
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a second one must not disturb that
        signal.signal(other, signal.SIG_IGN)
    sys.exit(ENDED_BY + number)


def _require_folders(*files: str | None) -> None:
    """Say now, not after all the tests, that a report cannot be written."""
    for file in files:
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise ConfigError(f"there is no folder for the report {file!r}")


def _write(report: Report, *, json: str | None, junit: str | None, html: str | None) -> None:
    from kvbridge.conformance.junit import write_junit  # noqa: PLC0415 - likewise
    from kvbridge.conformance.page import write_page  # noqa: PLC0415 - likewise
    from kvbridge.conformance.results import write_reports  # noqa: PLC0415 - likewise

    if json is not None:
        write_reports(Path(json), [report])
    if junit is not None:
        write_junit(Path(junit), report)
    if html is not None:
        write_page(Path(html), [report])


def _show(console: Console, result: Result) -> None:
    """Print a line for each requirement as it ends; those that do not apply are summed up in the end."""
    style = {"passed": "green", "failed": "red", "waived": "yellow", "not run": "yellow"}.get(result.outcome.value)
    if style is None:
        return
    words = " ".join(plain(result.reason).split())
    reason = "" if result.outcome.value == "passed" else f"  {escape(words[:200])}"
    console.print(
        f"[{style}]{result.outcome.value:<8}[/] {result.id:<36} {result.seconds:6.2f} s{reason}", soft_wrap=True
    )
