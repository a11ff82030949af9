"""A path entry for distributions that tests make up."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from tests.plugin_site import Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site folder that this process and its children see."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        if name.startswith("mod_"):
            del sys.modules[name]
    importlib.invalidate_caches()
