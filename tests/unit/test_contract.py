"""The contract and the suite say the same: every sentence has a test, every test a sentence, in the same words."""

from __future__ import annotations

import re
from pathlib import Path

from kvbridge.capabilities import Capabilities
from kvbridge.conformance import CONTRACT
from kvbridge.conformance.catalogue import requirements
from kvbridge.conformance.requirement import PARTS, Requirement, order

TEXT = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
LINE = re.compile(
    r"^- \*\*(?P<id>[^*]+)\*\* (?P<level>MUST|SHOULD)(?: \((?P<about>[^)]*)\))?: (?P<sentence>.+)$", re.MULTILINE
)
FOUND = sorted(requirements(), key=order)


def about(requirement: Requirement) -> str:
    words = [*(f"`{flag}`" for flag in requirement.needs), *(f"not `{flag}`" for flag in requirement.lacks)]
    words += ["transport"] * requirement.transport + ["processes"] * requirement.processes
    return ", ".join(words)


def test_every_sentence_has_a_test_and_every_test_a_sentence() -> None:
    written = [(m["id"], m["level"], m["about"] or "", m["sentence"]) for m in LINE.finditer(TEXT)]
    assert written == [(r.id, r.level, about(r), r.sentence) for r in FOUND]


def test_no_line_of_the_contract_is_misspelt() -> None:
    assert len(LINE.findall(TEXT)) == sum(line.startswith("- **") for line in TEXT.splitlines())


def test_the_version_is_the_suites() -> None:
    assert re.search(r"^Contract version (\S+)\.$", TEXT, re.MULTILINE)[1] == CONTRACT  # type: ignore[index]


def test_parts_come_in_order() -> None:
    assert re.findall(r"^## (\S+)$", TEXT, re.MULTILINE) == list(PARTS)


def test_numbers_are_unique_within_a_part() -> None:
    numbers = [requirement.id.partition("-")[0] for requirement in FOUND]
    assert len(numbers) == len(set(numbers))


def test_every_flag_that_a_requirement_names_exists() -> None:
    flags = {flag for requirement in FOUND for flag in (*requirement.needs, *requirement.lacks)}
    assert flags <= set(Capabilities.__struct_fields__)


def test_every_boolean_flag_has_a_requirement_that_tries_it() -> None:
    flags = {name for name in Capabilities.__struct_fields__ if isinstance(getattr(Capabilities(), name), bool)}
    tried = {flag for requirement in FOUND for flag in requirement.needs} | {"cross_process", "cross_host"}
    assert flags <= tried
