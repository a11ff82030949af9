"""How a process ends that used the library: with the exit code it should have, and nothing on its standard output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TCP: dict[str, Any] = {"transports": "tcp"}
READ: dict[str, Any] = {"direction": "read"}
LONG = 120


def _run(name: str, options: dict[str, Any], **environment: str) -> tuple[int, str]:
    """Run a program; return its exit code and what it said on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.nixl.programs", name, json.dumps(options)],
        cwd=Path(__file__).parents[2],
        env={**_clean(), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("UCX_", "NIXL_"))}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("closed", {}),
        ("links_up", {}),
        ("links_up", READ),
        ("in_flight", {}),
        ("in_flight", TCP),
        ("dead_peer", {}),
        ("dead_peer", TCP),
        ("errors", {}),
        ("with_torch", {}),
        ("closes_fully", {}),
    ],
)
def test_a_process_that_ends_normally_has_exit_code_0(name: str, options: dict[str, Any]) -> None:
    code, said = _run(name, options)
    assert code == 0, said[-3000:]


def test_the_library_speaks_on_standard_error_however_much_it_says() -> None:
    code, said = _run("closed", {}, UCX_LOG_LEVEL="info", NIXL_LOG_LEVEL="INFO")
    assert code == 0, said[-3000:]
    assert "UCX  INFO" in said
    assert "NIXL INFO" in said


def test_an_exception_has_exit_code_1() -> None:
    code, said = _run("exception", {})
    assert code == 1, said[-3000:]
    assert said.rstrip().endswith("KeyError: 'by order of a test'")


def test_sigterm_ends_a_process_as_ever() -> None:
    code, said = _run("terminated", {})
    assert code == -signal.SIGTERM, said[-3000:]


@pytest.mark.parametrize("options", [{}, TCP], ids=["cma", "tcp"])
def test_a_fork_leaves_the_parent_alone_and_may_not_use_its_backend(options: dict[str, Any]) -> None:
    for name in ("forks", "forks_before", "fork_under_load"):
        code, said = _run(name, options)
        assert code == 0, said[-3000:]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"plugin": "NOPE"}, ["NOPE", "nixlNotFoundError"]),
        ({"plugin": ""}, ["options.plugin is empty"]),
        ({"transports": "cma"}, ["options.transports is 'cma'", "tcp"]),
        ({"transports": "sm,self"}, ["options.transports is 'sm,self'", "tcp"]),
        ({"transports": "tcp,self", "direction": "read"}, ["'read'", "'tcp,self'", "cma", "'write'"]),
        ({"net_devices": "nope0"}, ["cannot work here", "nope0"]),
    ],
)
def test_what_cannot_work_says_why(options: dict[str, Any], expected: list[str]) -> None:
    code, said = _run("unavailable", options)
    assert code == 0, said[-3000:]
    last = said.rstrip().splitlines()[-1]
    assert last.startswith("BackendUnavailableError")
    assert [word for word in expected if word not in last] == []
