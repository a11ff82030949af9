"""Options of the conformance suite for pytest. Loaded in every run of pytest: imports it and the standard library.

With `--kvbridge-backend=NAME` the suite joins whatever else is run, from any folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

OPTIONS = (
    ("backend", "NAME", "test the backend NAME against kvbridge's contract"),
    ("options", "JSON", "options of the backend, over those of its rig"),
    ("peers", "KIND", "process, thread, or auto (default): processes where the backend reaches that far"),
    ("waivers", "FILE", "requirements that are known to fail, each with its reason"),
    ("timeout", "SECONDS", "seconds for one requirement (default 60)"),
    ("json", "FILE", "write the report as JSON"),
    ("html", "FILE", "write the report as a page"),
    ("journal", "FILE", "write each result as a line of JSON at once; for kvbridge conformance"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("kvbridge", "kvbridge: conformance of a backend")
    for name, value, text in OPTIONS:
        group.addoption(f"--kvbridge-{name}", dest=f"kvbridge_{name}", metavar=value, default=None, help=text)
    group.addoption(
        "--kvbridge-select",
        dest="kvbridge_select",
        metavar="PREFIX",
        action="append",
        default=[],
        help="only requirements whose id starts so; may be given several times",
    )
    group.addoption(
        "--kvbridge-strict",
        dest="kvbridge_strict",
        action="store_true",
        default=False,
        help="let a SHOULD that fails count, and a requirement that cannot be run here",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the suite to the run when a backend was named."""
    if config.getoption("kvbridge_backend") is None:
        return
    from kvbridge.conformance.plugin import Suite  # noqa: PLC0415 - only where it is wanted

    config.pluginmanager.register(Suite(config), "kvbridge-suite")
