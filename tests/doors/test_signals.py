"""A command that is told to end leaves no process and no file behind, whatever its child is doing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvbridge.conformance.results import Outcome, read_report
from tests.doors.running import DEADLINE, acts, suite

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.doors.running import Doors


def running() -> dict[int, str]:
    """Every process with its command line."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = (folder / "cmdline").read_text(errors="replace")
            except OSError:
                continue
    return found


def of(doors: Doors) -> dict[int, str]:
    """Processes that see the odd backend: the command, its child, peers and probes."""
    mark = f"PYTHONPATH={doors.site.folder}\0".encode()
    found = {}
    for pid, command in running().items():
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes() and command:
                found[pid] = command
        except OSError:
            continue
    return found


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_child_its_peers_and_its_files(doors: Doors, number: signal.Signals, tmp_path: Path) -> None:
    options = acts({"hold@peer": "hold" if number == signal.SIGTERM else "hang"})
    files = ["--json", "ended.json", "--junit", "ended.xml", "--html", "ended.html"]
    command = suite("odd", "backend/02", "buffer/01", "buffer/02", "--options", options, *files)
    process = doors.start(command, TMPDIR=str(tmp_path))
    until(lambda: sum("conformance.peers" in command for command in of(doors).values()) == 2, lambda: f"{of(doors)}")
    assert len(of(doors)) == 4, "the command, the child, two peers"
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + number, out + err
    assert "Traceback" not in err
    until(lambda: not of(doors), lambda: f"left behind: {of(doors)}")
    assert list(tmp_path.iterdir()) == []

    why = f"incomplete: {number.name} ended it while buffer/01-value was running"
    report = read_report(doors.folder / "ended.json")
    assert (report.incomplete, report.faults) == (True, (why,))
    assert [result.outcome for result in report.results] == [Outcome.PASSED, Outcome.NOT_RUN, Outcome.NOT_RUN]
    for file in ("ended.xml", "ended.html"):
        assert why in (doors.folder / file).read_text()
    assert "odd: incomplete: no verdict" in out
