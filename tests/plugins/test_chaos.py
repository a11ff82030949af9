"""`kvbridge chaos` on real engines: the promise holds while they are killed, stopped and cut off, and nothing is left.

A short run; KVBRIDGE_LONG=1 makes it 200 requests on each backend that works here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from kvbridge.registry import probe_backend
from kvbridge_vllm.chaos import run
from kvbridge_vllm.chaos.outcomes import verdict
from kvbridge_vllm.launch.guard import descendants

if TYPE_CHECKING:
    from pathlib import Path

    from kvbridge_vllm.chaos.oracle import Known
    from kvbridge_vllm.launch import Engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2400)]

LONG = bool(os.environ.get("KVBRIDGE_LONG"))
if os.environ.get("CI") and not LONG:
    pytest.skip("takes five minutes on two cores: not in continuous integration", allow_module_level=True)
SEED = 5
REQUESTS = 200 if LONG else 40


@pytest.mark.parametrize("backend", ["cpu", "nixl"] if LONG else ["cpu"])
def test_the_promise_holds_and_the_one_answer_that_was_falsified_is_found(
    backend: str, tmp_path: Path, oracle: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first probe is compared with a wrong answer: were answers not compared at all, nobody would find it."""
    if not probe_backend(backend).probe.ok:
        pytest.skip(f"{backend} does not work here")
    find = run.right_answers

    def falsified(*arguments: object) -> list[Known]:
        known = find(*arguments)  # type: ignore[arg-type]
        prompt, expected = known[REQUESTS]
        known[REQUESTS] = (prompt, [expected[0] ^ 1, *expected[1:]])
        return known

    monkeypatch.setattr(run, "right_answers", falsified)
    before = set(descendants(os.getpid()))
    record = run.carry_out(
        backend, {}, seed=SEED, requests=REQUESTS, policy="recompute", logs=tmp_path, tell=lambda _: None, plain=oracle
    )
    found = verdict(record)
    assert len(found) == 1, found
    assert "probe" in found[0]
    assert "wrong tokens" in found[0]
    assert len(record.outcomes) > REQUESTS
    assert {one.fault.kind for one in record.struck} == {"kill", "stop", "delay", "loss", "partition"}
    assert all(one.ended is not None for one in record.struck)
    assert sum(one.result == "right" for one in record.outcomes) > REQUESTS / 4
    assert record.facts["messages dropped"] > 0
    assert record.facts["messages late"] > 0
    assert set(descendants(os.getpid())) <= before


def test_ctrl_c_ends_everything_that_was_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvbridge", "chaos", "cpu", "--seed", "1", "--requests", "3"]
    child = subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        deadline = time.monotonic() + 120
        while len(started := descendants(child.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(started) >= 2, "no engine was started"
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, said
    assert "Seed: 1" in said
    assert not [line for pid, line in started.items() if os.path.exists(f"/proc/{pid}")]  # noqa: PTH110 - no need of more
