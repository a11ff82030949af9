"""`Loop`: a named thread that stops in time and does not die in silence."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from kvbridge.errors import KVBridgeError
from kvbridge.threads import Loop


def nothing() -> None:
    time.sleep(0.001)


def test_it_runs_under_the_projects_name_until_it_is_stopped() -> None:
    steps: list[str] = []
    enough = threading.Event()

    def step() -> None:
        steps.append(threading.current_thread().name)
        if len(steps) >= 3:
            enough.set()
        time.sleep(0.001)

    loop = Loop("x", step, nothing)
    assert enough.wait(5)
    assert not loop.current
    loop.check()
    assert loop.stop(5)
    count = len(steps)
    time.sleep(0.02)
    assert len(steps) == count
    assert set(steps) == {"kvbridge-x"}
    assert loop.stop(5)


def test_stopping_wakes_a_step_that_waits() -> None:
    woken = threading.Event()
    loop = Loop("x", lambda: woken.wait(30) and None, woken.set)
    start = time.monotonic()
    assert loop.stop(5)
    assert time.monotonic() - start < 3


def test_a_step_that_hangs_is_told_and_does_not_hang_the_caller() -> None:
    go_on = threading.Event()
    loop = Loop("x", lambda: go_on.wait(30) and None, nothing)
    start = time.monotonic()
    assert not loop.stop(0.1)
    assert time.monotonic() - start < 3
    go_on.set()
    assert loop.stop(5)


@pytest.mark.parametrize("error", [ValueError("a bug"), SystemExit(3), KeyboardInterrupt()])
def test_what_ends_the_thread_reaches_the_next_caller_again_and_again(error: BaseException) -> None:
    def step() -> None:
        raise error

    loop = Loop("x", step, nothing)
    loop._thread.join(5)
    for _ in range(2):
        with pytest.raises(KVBridgeError, match="kvbridge-x") as found:
            loop.check()
        assert found.value.__cause__ is error
    assert loop.stop(5)


def test_a_loop_may_be_stopped_from_its_own_thread() -> None:
    found: list[bool] = []
    ready = threading.Event()

    def step() -> None:
        if ready.wait(5):
            found.append(loop.current)
            loop.stop(1)

    loop = Loop("x", step, nothing)
    ready.set()
    loop._thread.join(5)
    assert not loop._thread.is_alive()
    assert found == [True]


def test_the_thread_does_not_keep_the_process_alive() -> None:
    loop = Loop("x", nothing, nothing)
    assert loop._thread.daemon
    loop.stop(5)


def test_the_threads_last_act_is_done_when_it_ends_and_not_when_it_is_told_to() -> None:
    go_on, ended = threading.Event(), threading.Event()
    loop = Loop("x", lambda: go_on.wait(30) and None, nothing, ended.set)
    assert not loop.stop(0.1)
    assert not ended.is_set()
    go_on.set()
    assert loop.stop(5)
    assert ended.is_set()


def test_a_thread_that_dies_does_its_last_act() -> None:
    def step() -> None:
        raise ValueError("a bug")

    ended = threading.Event()
    loop = Loop("x", step, nothing, ended.set)
    assert ended.wait(5)
    assert loop.stop(5)


EXITS = """
import time
from kvbridge.threads import Loop, Pool

def step():
    time.sleep(0.01)

loop = Loop("forgotten", step, lambda: None, lambda: print("ended", flush=True))
stubborn = Loop("stubborn", lambda: time.sleep(60), lambda: 1 / 0)
pool = Pool("some", 2)
pool.run(lambda: None)  # its thread waits for more
"""


def test_loops_that_nobody_stopped_end_before_the_interpreter_does_and_do_not_hold_it_up() -> None:
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


STARTS = """
import sys, time
from kvbridge.threads import Loop

def start():
    try:
        Loop("second", lambda: time.sleep(0.01), lambda: None, lambda: print("ended", flush=True))
    except RuntimeError as error:  # of Pythons that start no thread any more
        print("ended" if sys.version_info >= (3, 12) else error, flush=True)

first = Loop("first", lambda: time.sleep(0.2), lambda: None, start)
"""


def test_a_loop_that_another_one_starts_at_the_end_ends_as_well() -> None:
    done = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


POOLED = """
import atexit, threading, time
atexit.register(lambda: print([thread.name for thread in threading.enumerate()], flush=True))  # after ours
from kvbridge.threads import Pool

pool = Pool("some", 2)
task = pool.run(lambda: None)
time.sleep(0.3)
"""


def test_threads_that_wait_for_calls_end_before_the_interpreter_does() -> None:
    done = subprocess.run([sys.executable, "-c", POOLED], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['MainThread']\n", "")


FORKS = """
import os, sys, time
from kvbridge.threads import Loop

loop = Loop("here", lambda: time.sleep(0.01), lambda: print("woken", os.getpid() == parent, flush=True))
parent = os.getpid()
if os.fork() == 0:
    sys.exit(3)
os.wait()
"""


def test_a_fork_that_ends_leaves_the_loops_of_its_parent_alone() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, set(done.stdout.splitlines()), done.stderr) == (0, {"woken True"}, "")
