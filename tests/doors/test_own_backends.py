"""The backends that come with kvbridge live by the contract, with peers of both kinds."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kvbridge.conformance.results import Outcome, read_report
from kvbridge.conformance.rig import load_rig
from kvbridge.errors import BackendUnavailableError
from kvbridge.registry import probe_backend
from tests.doors.running import suite

if TYPE_CHECKING:
    from pathlib import Path

CASES = [
    ("cpu", "process"),
    ("cpu", "thread"),
    ("files", "process"),
    ("mooncake", "process"),
    ("mooncake-store", "process"),
    ("nccl", "process"),
    ("nixl", "process"),
]


LONG = bool(os.environ.get("KVBRIDGE_LONG"))

PARTS = {
    "files": ["backend", "buffer/0", "buffer/1", "buffer/26", "buffer/3", "connector", "fault"],
    "mooncake": ["backend/0", "pipe/1", "buffer/0", "buffer/3", "fault/02", "fault/09", "fault/20", "fault/22"],
    "nccl": ["backend/0", "pipe/0", "pipe/1", "buffer/0", "buffer/1", "buffer/3", "fault/02", "fault/03", "fault/09"],
    "mooncake-store": ["backend/0", "buffer/0", "buffer/2", "fault", "connector"],
}
"""What is run of the suite where tests are not to take many minutes: ending an engine of Mooncake's takes a second, and
files have no tombstones, so that each of many who ask for a taken value waits until his deadline."""


def works(backend: str) -> bool:
    rig = load_rig(backend)
    try:
        rig.start()
        return probe_backend(backend, rig.options()).probe.ok
    except BackendUnavailableError:
        return False
    finally:
        rig.stop()


@pytest.mark.parametrize(("backend", "peers"), CASES)
def test_it_conforms(backend: str, peers: str, tmp_path: Path) -> None:
    if not os.environ.get("CI") and not works(backend):
        pytest.skip(f"{backend} does not work on this machine")
    if os.environ.get("CI") and peers == "thread" and not LONG:
        pytest.skip("continuous integration runs it with peers in processes")
    out = tmp_path / "report.json"
    parts = [] if LONG else PARTS.get(backend, [])
    command = suite(backend, *parts, "--peers", peers, "--json", str(out))
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report(out)
    assert report.peers == peers
    assert report.count(Outcome.PASSED) > (30 if parts else 60 if backend.endswith(("store", "files")) else 80)
    assert report.count(Outcome.WAIVED) == 0
    assert (report.count(Outcome.NOT_RUN) > 0) == (peers == "thread"), "with threads nobody can be killed"
