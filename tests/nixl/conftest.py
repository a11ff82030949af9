"""The library has to be there: where tests run for a release its absence is a failure, elsewhere a reason to skip."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.conformance.node import Node
from tests.nixl.zygote import Early, Zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True, scope="session")
def library() -> None:
    if importlib.util.find_spec("nixl_cu12") is None:
        why = "nixl_cu12 is not installed: pip install 'kvbridge[nixl]'"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture(scope="session")
def zygote(library: None) -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def peer(zygote: Zygote) -> Iterator[Callable[..., Early]]:
    """Start nodes in processes of their own; `ready()` waits for one. They are closed after the test."""
    made: list[Early] = []

    def make(options: dict[str, Any] | None = None, **settings: Any) -> Early:
        made.append(Early(zygote.fork(), options or {}, settings))
        return made[-1]

    yield make
    for one in made:
        one.host.end()


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    """Make nodes in this process, with the library's default settings."""
    made: list[Node] = []

    def make(**settings: Any) -> Node:
        made.append(Node("nixl", settings.pop("options", {}), **settings))
        return made[-1]

    yield make
    for one in reversed(made):
        one.close()
