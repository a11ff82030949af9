"""The requirement that a probe leaves nothing behind, on a machine where others leave things meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvbridge.conformance import resources
from kvbridge.conformance.catalogue import catalogue
from kvbridge.conformance.checks import RequirementError
from kvbridge_cpu import CpuBackend

NOISE = {"files in /dev/shm": ["somebody's"]}


def judge(monkeypatch: pytest.MonkeyPatch, *looks: dict[str, Any]) -> None:
    found = iter(looks)
    monkeypatch.setattr(resources, "growth", lambda *_, **__: next(found))
    world: Any = SimpleNamespace(subject=SimpleNamespace(load=lambda: CpuBackend, options={"capacity": "1MiB"}))
    catalogue()["backend/04-probe"][0](world)
    assert not list(found)


@pytest.mark.parametrize("noisy", [0, 1, 2])
def test_what_somebody_else_leaves_once_is_not_the_probes(monkeypatch: pytest.MonkeyPatch, noisy: int) -> None:
    judge(monkeypatch, *[NOISE] * noisy, {})


def test_what_is_there_each_time_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequirementError, match=r"after 10 probes.*somebody's"):
        judge(monkeypatch, NOISE, NOISE, NOISE)
