"""A clock that stands still until a test moves it."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def stopped_clock(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Clock:
    """Give a module this clock for its `time`."""
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock
