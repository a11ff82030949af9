"""The suite inside pytest: which requirements apply, a deadline for each, and what became of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.conformance.catalogue import requirements
from kvbridge.conformance.checks import RequirementError
from kvbridge.conformance.configuration import TIMEOUT, SuiteConfig, parse_options, read_waivers
from kvbridge.conformance.deadline import run_test
from kvbridge.conformance.files import write_files
from kvbridge.conformance.patience import patience
from kvbridge.conformance.recorder import Entry, Recorder, write_entry
from kvbridge.conformance.requirement import Requirement, order, requirement_of
from kvbridge.conformance.results import FAILED, UNAVAILABLE, USAGE, Outcome
from kvbridge.conformance.setting import BrokenError, Setting, UnavailableError
from kvbridge.conformance.summary import lines
from kvbridge.conformance.unfinished import blank, unfinished
from kvbridge.conformance.world import NotRunError
from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import NoReturn

    from kvbridge.conformance.results import Report

SUITE = Path(__file__).parent / "suite"


class Suite:
    """One run, as a plugin of pytest. Made when `--kvbridge-backend` is given."""

    def __init__(self, config: pytest.Config) -> None:
        try:
            self._config = _suite_config(config)
            self._waivers = read_waivers(self._config.waivers)
        except KVBridgeError as error:
            raise pytest.UsageError(str(error)) from error
        if config.getoption("numprocesses", None) or config.getoption("dist", "no") != "no":
            raise pytest.UsageError("the conformance suite looks for leaks and measures: run it without pytest-xdist")
        self._setting: Setting | None = None
        self._recorder: Recorder | None = None
        self._report: Report | None = None
        journal = config.getoption("kvbridge_journal")
        self._journal = None if journal is None else Path(journal)
        self._pages = {kind: _writable(config, kind) for kind in ("json", "html")}
        if self._journal is not None:  # nothing but the suite, whatever the folder
            config.args.clear()
        config.args.extend(str(path) for path in sorted(SUITE.glob("test_*.py")))

    # -- collection -------------------------------------------------------------------------------------------

    @pytest.fixture
    def world(self) -> None:
        """Stand for what a requirement's test is given when it runs."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Start what the backend needs, and see whether it works here."""
        del session
        try:
            self._setting = Setting.enter(self._config)
        except UnavailableError as error:
            self._refuse(f"the backend {self._config.backend!r} is not available here: {error}", UNAVAILABLE)
        except BrokenError as error:
            self._refuse(str(error), FAILED)
        except KVBridgeError as error:
            self._refuse(str(error), USAGE)
        self._recorder = Recorder(self._config, self._setting, self._waivers, self._journal)

    def _refuse(self, why: str, code: int) -> NoReturn:
        write_entry(self._journal, Entry(refusal=why, code=code))
        if code == USAGE:
            raise pytest.UsageError(why)
        if self._journal is None:
            chosen = sorted((r for r in requirements() if r.selected(self._config.prefixes)), key=order)
            write_files(unfinished(blank(self._config), chosen, {}, why), **self._pages)
        pytest.exit(f"kvbridge: {why}", code)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Module | pytest.Class, obj: object) -> pytest.Function | None:
        """Collect the test of a requirement under its id, whatever the names of tests are in the author's project."""
        found = requirement_of(obj)
        if found is None:
            return None
        return pytest.Function.from_parent(collector, name=found.id, callobj=obj)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the requirements that apply, in the contract's order, after the author's own tests."""
        if self._recorder is None or self._setting is None:
            return
        known = requirements()
        if not any(r.selected(self._config.prefixes) for r in known):
            raise pytest.UsageError(f"no requirement's id starts with {' or '.join(self._config.prefixes)}")
        own = [item for item in items if _requirement(item) is None]
        found = {r.id: (r, item) for item in items if (r := _requirement(item)) is not None}
        collected = sorted((r for r, _ in found.values()), key=order)
        chosen = [r for r in collected if r.selected(self._config.prefixes)]
        self._recorder.begin(chosen, known)
        running = [r for r in chosen if self._recorder.applies(r)]
        config.hook.pytest_deselected(items=[found[r.id][1] for r in collected if r not in running])
        items[:] = own + [found[r.id][1] for r in running]

    # -- running ----------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run the test of a requirement on a thread of its own, with a deadline."""
        __tracebackhide__ = True
        requirement = _requirement(pyfuncitem)
        if requirement is None or self._setting is None or self._recorder is None:
            return None
        self._recorder.started(requirement)
        seconds = patience(self._config.timeout, self._recorder.results)
        run_test(requirement.id, pyfuncitem.obj, self._setting.subject, seconds)
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Take note of an outcome; a waived failure, or that of a SHOULD, does not fail the run of pytest."""
        report = yield
        requirement = _requirement(item)
        if requirement is None or self._recorder is None or (report.when != "call" and report.passed):
            return report
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, NotRunError) or report.skipped:  # by the author's project
            self._recorder.ended(requirement, Outcome.NOT_RUN, report.duration, str(error))
            _expected(report, f"not run: {error}", fails=self._config.strict)
            return report
        details = "" if report.passed else report.longreprtext
        outcome = Outcome.PASSED if report.passed else Outcome.FAILED
        result = self._recorder.ended(requirement, outcome, report.duration, _reason(error), details)
        if report.failed:
            report.sections.append(("requirement", f"{requirement.level}: {requirement.sentence}"))
        if result.outcome is Outcome.WAIVED:
            _expected(report, f"waived: {self._waivers[requirement.id]}")
        elif result.outcome is Outcome.FAILED and not self._recorder.counts(result):
            _expected(report, "a SHOULD that fails")
        return report

    # -- the end ----------------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report, and let what is wrong with the run itself count."""
        wrong = self._leave()
        if self._recorder is None or not self._recorder.begun or session.config.option.collectonly:
            return
        if wrong:
            self._recorder.fault(wrong)
        self._report = self._recorder.finish()
        if self._report.exit_code != 0 and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        write_files(self._report, **self._pages)

    def pytest_unconfigure(self) -> None:
        """Leave nothing behind where the run did not get as far as its end."""
        self._leave()

    def _leave(self) -> str:
        return "" if self._setting is None else self._setting.leave()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Always say how much was tried, what is not claimed and what is waived."""
        if self._recorder is None:
            return
        terminalreporter.section(f"kvbridge conformance of {self._config.backend}")
        if self._report is None:
            terminalreporter.write_line("no requirement was run, nothing is proven")
            return
        for line in lines(self._report, failures=False):  # pytest has shown them
            terminalreporter.write_line(line)


def _suite_config(config: pytest.Config) -> SuiteConfig:
    option = config.getoption
    peers: Any = option("kvbridge_peers") or "auto"
    if peers not in ("auto", "process", "thread"):
        raise pytest.UsageError(f"--kvbridge-peers: found {peers!r}, expected process, thread or auto")
    timeout = option("kvbridge_timeout") or TIMEOUT
    try:
        seconds = float(timeout)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:  # noqa: PLR2004 - eleven days
        raise pytest.UsageError(f"--kvbridge-timeout: found {timeout!r}, expected seconds")
    waivers = option("kvbridge_waivers")
    return SuiteConfig(
        backend=option("kvbridge_backend"),
        options=parse_options(option("kvbridge_options") or ""),
        peers=peers,
        prefixes=tuple(option("kvbridge_select")),
        strict=option("kvbridge_strict"),
        waivers=None if waivers is None else Path(waivers),
        timeout=seconds,
    )


def _writable(config: pytest.Config, kind: str) -> str | None:
    """Return the file for a report, whose folder has to be there before an hour of testing, not after it."""
    file: str | None = config.getoption(f"kvbridge_{kind}")
    if file is not None and not Path(file).absolute().parent.is_dir():
        raise pytest.UsageError(f"--kvbridge-{kind}: there is no folder for {file!r}")
    return file


def _requirement(item: pytest.Item) -> Requirement | None:
    return requirement_of(getattr(item, "function", None))


def _reason(error: BaseException | None) -> str:
    if error is None:
        return ""
    named = "" if isinstance(error, RequirementError) else f"{type(error).__name__}: "
    return f"{named}{error}".strip()


def _expected(report: pytest.TestReport, why: str, *, fails: bool = False) -> None:
    """Show a failure as one that was expected."""
    if not fails:
        report.outcome = "skipped"
        report.wasxfail = why
