"""Every row of docs/faults.md is whole, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvbridge.conformance.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line.startswith("|")][2:]
REQUIREMENTS = {name.partition("-")[0] for name in catalogue()}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_whole_and_names_what_there_is(row: list[str]) -> None:
    assert len(row) == 4
    assert all(row)
    named = re.findall(r"`((?:tests|scripts)/[^`]*)`", row[2])
    required = re.findall(r"\b(?:buffer|fault|pipe)/\d\d\b", row[2])
    assert named or required
    for one in required:
        assert one in REQUIREMENTS, one
    for one in named:
        path, _, test = one.partition("::")
        assert (ROOT / path).exists(), one
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), one


def test_there_are_rows() -> None:
    assert len(ROWS) >= 25
