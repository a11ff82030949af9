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
    ("mooncake", "process"),
    ("mooncake-store", "process"),
    ("nixl", "process"),
]


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
    out = tmp_path / "report.json"
    command = suite(backend, "--peers", peers, "--json", str(out))
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report(out)
    assert report.peers == peers
    assert report.count(Outcome.PASSED) > (60 if backend.endswith("store") else 80)
    assert report.count(Outcome.WAIVED) == 0
    assert (report.count(Outcome.NOT_RUN) > 0) == (peers == "thread"), "with threads nobody can be killed"
