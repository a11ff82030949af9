"""The report of a run that ended before its last requirement, or before its first one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from kvbridge.conformance import CONTRACT
from kvbridge.conformance.recorder import conclude, machine
from kvbridge.conformance.results import Outcome, Report
from kvbridge.registry import find_backend
from kvbridge.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbridge.conformance.configuration import SuiteConfig
    from kvbridge.conformance.requirement import Requirement
    from kvbridge.conformance.results import Result


def blank(config: SuiteConfig) -> Report:
    """Return the report of a run of which nothing is known yet, not even what the backend claims."""
    entry = find_backend(config.backend)
    return Report(
        backend=config.backend,
        distribution=f"{entry.distribution} {entry.version}".strip(),
        kvbridge=__version__,
        contract=CONTRACT,
        options=dict(config.options),
        capabilities={},
        peers="thread" if config.peers == "thread" else "process",
        strict=config.strict,
        selected=config.prefixes,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        machine=machine(),
        results=(),
        timeout=config.timeout,
    )


def unfinished(
    report: Report, chosen: Sequence[Requirement], known: Mapping[str, Result], why: str, running: str = ""
) -> Report:
    """Complete the report of a run that ended early.

    Args:
        report: What the run is.
        chosen: What was to be run, in the contract's order.
        known: Results so far, by id.
        why: Why it ended.
        running: The requirement whose test was running then; empty where none was.
    """
    results = []
    for requirement in chosen:
        reason = "the run ended while it was running" if requirement.id == running else "the run ended before it"
        results.append(known.get(requirement.id) or conclude(requirement, {}, Outcome.NOT_RUN, 0.0, reason))
    faults = (*report.faults, f"incomplete: {why}")
    return msgspec.structs.replace(report, results=tuple(results), faults=faults, incomplete=True)
