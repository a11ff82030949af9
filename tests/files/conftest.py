"""Stores in one folder, closed with the test."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_files import FilesOptions, FilesStore
from tests.files.driving import Child
from tests.nodes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "values"


@pytest.fixture
def store(folder: Path) -> Iterator[Callable[..., FilesStore]]:
    """Make instances in this process: of one folder, unless it is told otherwise."""
    made: list[FilesStore] = []

    def make(**options: Any) -> FilesStore:
        made.append(FilesStore(FilesOptions(**{"folder": str(folder), "capacity": "64MiB", **options})))
        return made[-1]

    yield make
    for one in made:
        one.close()
    eventually(lambda: not left(), 5, lambda: f"threads are left behind: {left()}")


def left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "-files-" in thread.name]


@pytest.fixture
def child(folder: Path) -> Iterator[Callable[..., Child]]:
    """Start processes; what still runs is killed with the test."""
    made: list[Child] = []

    def make(play: str, *arguments: Any) -> Child:
        made.append(Child(play, folder, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.kill()
