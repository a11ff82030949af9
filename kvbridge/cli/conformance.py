"""`kvbridge conformance`: run the suite, list the contract, compare runs."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from kvbridge.errors import ConfigError, KVBridgeError

if TYPE_CHECKING:
    from kvbridge.conformance.configuration import SuiteConfig
    from kvbridge.conformance.results import Result

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
    from kvbridge.capabilities import Capabilities  # noqa: PLC0415 - likewise
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
    covered = Counter(flag for requirement in found for flag in requirement.flags)
    names = [name for name in Capabilities.__struct_fields__ if name != "mover"]  # that is no claim
    print(f"requirements about each flag: {', '.join(f'{name} {covered[name]}' for name in names if covered[name])}")
    print(f"tested by none of them: {', '.join(name for name in names if not covered[name])}")
    return 0


def run_suite(config: SuiteConfig, *, json: str | None, junit: str | None, html: str | None) -> int:
    """Run the suite and write what was asked for, also when a signal ends the run. Returns the exit code."""
    from kvbridge.conformance.files import write_files  # noqa: PLC0415 - likewise
    from kvbridge.conformance.run import RunError, run  # noqa: PLC0415 - likewise
    from kvbridge.conformance.summary import lines  # noqa: PLC0415 - likewise

    console = Console(highlight=False)
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.append(number))
    said, code = [], 0
    try:
        _require_folders(json, junit, html)
        report = run(
            config,
            lambda result: _show(console, result),
            lambda: f"{signal.Signals(signals[0]).name} ended it" if signals else "",
        )
        said, code = ["", *lines(report)], report.exit_code
    except RunError as error:
        print(error, file=sys.stderr)
        if error.report is None:
            return error.code
        report, code = error.report, error.code
    except KVBridgeError as error:
        print(error, file=sys.stderr)
        return USAGE
    try:
        write_files(report, json=json, junit=junit, html=html)
    except OSError as error:
        print(f"the report cannot be written: {error}", file=sys.stderr)
        code = USAGE
    for line in said:
        console.print(line, markup=False, soft_wrap=True)
    return ENDED_BY + signals[0] if signals else code


def _require_folders(*files: str | None) -> None:
    """Say now, not after all the tests, that a report cannot be written."""
    for file in files:
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise ConfigError(f"there is no folder for the report {file!r}")


def _show(console: Console, result: Result) -> None:
    """Print a line for each requirement as it ends. The summary has the reasons, and what does not apply."""
    style = {"passed": "green", "failed": "red", "waived": "yellow", "not run": "yellow"}.get(result.outcome.value)
    if style is not None:
        console.print(f"[{style}]{result.outcome.value:<8}[/] {result.id:<36} {result.seconds:6.2f} s", soft_wrap=True)
