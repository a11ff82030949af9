"""Whose a file in /dev/shm is: this process's, a stranger's, or nobody's any more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvbridge.conformance.resources import growth, resources

if TYPE_CHECKING:
    from collections.abc import Iterator

SLACK = {"children": 1, "descriptors": 2, "resident": 8 << 20}

HOLD = """
import os, sys, time
if sys.argv[2] == "stranger" and os.fork():
    sys.exit()  # its parent is gone: it came of nobody here
file = open(sys.argv[1], "w")
print("there", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path() -> Iterator[Path]:
    found = Path("/dev/shm") / f"kvbridge-test-{uuid.uuid4().hex}"  # noqa: S108 - removed again
    yield found
    found.unlink(missing_ok=True)


def held(path: Path, who: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), who], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


def end(path: Path) -> None:
    """End whoever has the file open."""
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if any(link.readlink() == path for link in (one / "fd").iterdir()) and int(one.name) != os.getpid():
                os.kill(int(one.name), 9)
        except OSError:
            continue
    time.sleep(0.1)


@pytest.mark.parametrize(("who", "ours"), [("child", True), ("stranger", False)])
def test_what_a_stranger_holds_is_not_ours_and_what_a_child_holds_is(path: Path, who: str, *, ours: bool) -> None:
    before = resources()
    process = held(path, who)
    try:
        assert (path.name in resources().shared) is ours
        assert ("files in /dev/shm" in growth(before, resources(), slack=SLACK)) is ours
    finally:
        end(path)
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def test_what_nobody_holds_any_more_is_a_leak_unless_it_was_there_before(path: Path) -> None:
    before = resources()
    path.touch()
    assert growth(before, resources(), slack=SLACK) == {"files in /dev/shm": [path.name]}
    assert growth(resources(), resources(), slack=SLACK) == {}


def test_a_strangers_file_that_stays_behind_when_he_dies_is_still_not_ours(path: Path) -> None:
    process = held(path, "stranger")
    before = resources()
    end(path)
    process.wait(10)
    if process.stdout is not None:
        process.stdout.close()
    assert path.exists()
    assert growth(before, resources(), slack=SLACK) == {}
