"""Every wrong backend dies by the requirement that the table names; the right one passes the same tests."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.conformance.catalogue import catalogue
from kvbridge.conformance.checks import RequirementError
from kvbridge.conformance.deadline import run_test
from kvbridge.conformance.node import Node
from kvbridge.conformance.peers import Hosts
from kvbridge.conformance.world import Subject
from kvbridge.errors import KVBridgeError
from kvbridge.registry import create_backend
from tests.mutants import buffers, instances, moves, pipes, slots
from tests.mutants.table import KILLED_BY, RIGHT
from tests.plugin_site import Site

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = {"capacity": "64MiB"}
ROOM = {"perf/04-slices": {"capacity": "256MiB"}}
"""Options of requirements that need large values."""

BASES = {"Mutant", "Wrapping", "CpuBackend"}
TESTS = catalogue()


def entry_name(mutant: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", mutant.__name__).lower() + "-" + mutant.__module__.rpartition(".")[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install every mutant, here and in every peer's process."""
    folder = tmp_path_factory.mktemp("mutants")
    made = Site(folder)
    for mutant in (RIGHT, *KILLED_BY):
        name = entry_name(mutant)
        module = f"mutant_{name.replace('-', '_')}"
        made.write(
            module,
            f"from {mutant.__module__} import {mutant.__name__} as Wrong\n\n\n"
            f"class Named(Wrong):\n    name = {name!r}\n",
        )
        made.install(f"dist-{name}", name, f"{module}:Named")
    before = os.environ.get("PYTHONPATH")
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(Path.cwd()), *([before] if before else [])])
    yield folder
    sys.path.remove(str(folder))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    yield made
    made.close()
    for left in Path("/dev/shm").glob("kvbridge-mutant-*"):  # noqa: S108 - of mutants that were killed
        left.unlink()


def attack(name: str, requirement: str, hosts: Hosts) -> None:
    """Run the test of one requirement against one backend."""
    options = ROOM.get(requirement, OPTIONS)
    backend = create_backend(name, options)
    capabilities = backend.capabilities
    backend.close()
    test, found = TESTS[requirement]
    subject = Subject(name, options, capabilities, processes=found.processes, hosts=hosts)
    run_test(requirement, test, subject, timeout=60)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "wait", 4.0)


def right_capabilities() -> Any:
    backend = create_backend("cpu", OPTIONS)
    backend.close()
    return backend.capabilities


@pytest.mark.parametrize("requirement", sorted(set(KILLED_BY.values())))
def test_the_right_backend_lives(requirement: str, hosts: Hosts) -> None:
    found = TESTS[requirement][1]
    if found.unclaimed(right_capabilities()) is None and not found.processes:
        attack("cpu", requirement, hosts)


@pytest.mark.parametrize("requirement", [name for name, (_, found) in TESTS.items() if found.transport])
def test_what_moves_by_a_thread_lives(requirement: str, site: Path, hosts: Hosts) -> None:
    attack(entry_name(RIGHT), requirement, hosts)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("mutant", "requirement"), KILLED_BY.items(), ids=lambda v: getattr(v, "__name__", v))
def test_the_mutant_dies(mutant: Any, requirement: str, site: Path, hosts: Hosts) -> None:
    with pytest.raises((RequirementError, KVBridgeError)) as error:
        attack(entry_name(mutant), requirement, hosts)
    print(f"{mutant.__name__}: {error.value}")


def test_every_mutant_is_in_the_table() -> None:
    written = {
        value
        for module in (buffers, instances, moves, pipes, slots)
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and any(base.__name__ == "CpuBackend" for base in value.__mro__[1:])
        and name not in BASES
    }
    assert written == {RIGHT, *KILLED_BY}
