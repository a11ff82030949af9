"""A probe runs in a child: whatever a plugin does there is a finding, in time, and never happens here."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from kvbridge import registry
from kvbridge.registry import probe_backend

if TYPE_CHECKING:
    from tests.plugin_site import Site


def test_a_backend_that_works_says_what_it_can_do_and_is_not_imported_here(site: Site) -> None:
    site.backend("mine")
    found = probe_backend("mine", {"size": 5})
    assert (found.probe.ok, found.probe.reason) == (True, "fine")
    assert found.capabilities is not None
    assert found.capabilities.max_value_bytes == 5
    assert "mod_mine" not in sys.modules


def test_the_cpu_backend_works_here_and_says_what_it_can_do() -> None:
    found = probe_backend("cpu", {"capacity": "1MiB"})
    assert found.probe.ok
    assert found.capabilities is not None
    assert found.capabilities.capacity_bytes == 1 << 20


CRASHES = {
    "abort": ("import os; os.abort()", "SIGABRT"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "exit": ("import os; os._exit(3)", "3"),
    "sys.exit": ("import sys; sys.exit('no driver here')", "no driver here"),
    "raise": ("raise ValueError('no driver here')", "no driver here"),
}


@pytest.mark.parametrize(
    ("how", "where"), [("abort", "import"), ("abort", "probe"), ("sys.exit", "import"), ("raise", "probe")]
)
def test_a_crash_is_a_finding_with_its_reason(site: Site, how: str, where: str) -> None:
    code, reason = CRASHES[how]
    if where == "import":
        site.backend("mine", before=f"{code}\n")
    else:
        site.backend("mine", probe=code)
    found = probe_backend("mine")
    assert not found.probe.ok
    assert found.capabilities is None
    assert reason in found.probe.reason


@pytest.mark.parametrize("how", ["segmentation fault", "exit"])
def test_every_other_end_is_a_finding_too(site: Site, how: str) -> None:
    code, reason = CRASHES[how]
    site.backend("mine", probe=code)
    found = probe_backend("mine")
    assert not found.probe.ok
    assert reason in found.probe.reason


def test_wrong_options_are_a_finding(site: Site) -> None:
    site.backend("mine")
    assert "did you mean 'size'" in probe_backend("mine", {"sise": 1}).probe.reason


def test_what_a_plugin_prints_does_not_hide_its_answer(site: Site) -> None:
    noise = "import os, sys; print('loading'); sys.stderr.write('warning\\n'); os.write(1, b'native noise\\n'); "
    noise += "os.write(1, b'\\xff\\xfe not text\\n'); os.write(2, b'\\xff\\xfe not text\\n')"
    site.backend("mine", before=f"{noise}\n")
    found = probe_backend("mine")
    assert found.probe.ok, found.probe.reason


def test_what_a_plugin_prints_at_its_exit_does_not_hide_its_answer(site: Site) -> None:
    late = "import atexit, os; atexit.register(lambda: (print('freed 3 buffers'), os.write(1, b'unloaded\\n')))"
    site.backend("mine", before=f"{late}\n")
    found = probe_backend("mine")
    assert found.probe.ok, found.probe.reason


@pytest.mark.parametrize("how", ["import time; time.sleep(60)", "import os, time; os.fork() or time.sleep(9)"])
def test_a_probe_that_hangs_or_leaves_a_child_ends_at_its_deadline(
    site: Site, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(registry, "PROBE_TIMEOUT", 1.0)
    site.backend("mine", probe=how)
    start = time.monotonic()
    found = probe_backend("mine")
    assert time.monotonic() - start < 15
    assert found.probe.ok or "1 s" in found.probe.reason
