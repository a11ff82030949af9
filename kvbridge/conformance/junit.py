"""The report as JUnit XML, for continuous integration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from kvbridge.conformance.results import Outcome, counts

if TYPE_CHECKING:
    from pathlib import Path

    from kvbridge.conformance.results import Report

_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(path: Path, report: Report) -> None:
    """Write a report: one test case a requirement, its part as the class."""
    failed = {result.id for result in report.failures}
    cases = len(report.results) + len(report.faults)
    suite = ET.Element(
        "testsuite",
        name=_plain(f"kvbridge conformance of {report.backend}"),
        tests=str(cases),
        failures=str(len(failed) + len(report.faults)),
        skipped=str(sum(r.outcome is not Outcome.PASSED and r.id not in failed for r in report.results)),
        time=str(report.seconds),
        timestamp=report.started,
    )
    for result in report.results:
        case = ET.SubElement(suite, "testcase", classname=result.part, name=result.id, time=str(result.seconds))
        if counts(result, strict=report.strict):
            failure = ET.SubElement(case, "failure", message=_plain(f"{result.reason} [{result.sentence}]"))
            failure.text = _plain(result.details)
        elif result.outcome is not Outcome.PASSED:
            ET.SubElement(case, "skipped", message=_plain(f"{result.outcome.value}: {result.reason}"))
    for fault in report.faults:
        case = ET.SubElement(suite, "testcase", classname="run", name=_plain(fault))
        ET.SubElement(case, "failure", message=_plain(fault))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _plain(text: str) -> str:
    return _UNWRITABLE.sub("?", text)
