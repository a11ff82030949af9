"""Engines of one host share slots: what one keeps another finds, and any of them may be killed at any time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.conformance.resources import resources
from kvbridge.errors import TransportError
from kvbridge.memory.shared import SharedMemory
from kvbridge.reuse.common import CommonSlots
from kvbridge.reuse.processes import lives, process_start, this_process
from kvbridge.reuse.shared_catalog import SharedCatalog
from tests.backends.slot_sharer import PAGE, SLOTS, content, key

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNNING: list[subprocess.Popen[str]] = []

PROGRAM = Path(__file__).with_name("slot_sharer.py")


def sharer(name: str, seed: int, seconds: float, what: str = "") -> subprocess.Popen[str]:
    for old in list(RUNNING):
        if old.poll() is not None and old.stdout is not None:
            old.stdout.close()
            RUNNING.remove(old)
    root = str(PROGRAM.parent.parent.parent)
    command = [sys.executable, str(PROGRAM), name, str(seed), str(seconds), what]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": root, "PATH": ""})
    RUNNING.append(started)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    output = process.stdout.read()
    process.wait(60)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def joined(name: str) -> SharedCatalog:
    catalog = SharedCatalog(CommonSlots(name, [PAGE], SLOTS, 1))
    catalog.joined([this_process()])
    return catalog


@pytest.fixture
def name() -> Iterator[str]:
    yield uuid.uuid4().hex
    for process in RUNNING:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    RUNNING.clear()


def test_what_one_process_keeps_another_finds(name: str) -> None:
    first = sharer(name, 1, 1.0)
    second = sharer(name, 2, 1.0)
    answers = [said(first), said(second)]
    assert [answer["wrong"] for answer in answers] == [0, 0]
    assert all(answer["hits"] > 100 for answer in answers)
    assert all((answer["pinned"], answer["filling"]) == (0, 0) for answer in answers)


def test_processes_are_killed_at_random_and_nobody_reads_a_wrong_byte(name: str) -> None:
    before = resources()
    survivor = sharer(name, 0, 6.0)
    deadline = time.monotonic() + 5
    seed = 1
    while time.monotonic() < deadline:
        victim = sharer(name, seed, 30)
        time.sleep(0.01 * (seed % 7))
        victim.kill()
        victim.wait()
        seed += 1
    answer = said(survivor)
    assert answer["wrong"] == 0
    assert answer["kept"] > SLOTS // 2, "slots of dead processes did not come back"
    assert set(resources().shared) <= set(before.present)


@pytest.mark.parametrize("what", ["filling", "pinning"])
def test_slots_of_a_killed_process_come_back(name: str, what: str) -> None:
    catalog = joined(name)
    victim = sharer(name, 3, 60, what)
    assert victim.stdout is not None
    assert victim.stdout.readline() == f"{what}\n"
    keys = [key(number) for number in range(1000, 1000 + SLOTS)]
    alive = catalog.reserve(keys)
    assert len(alive) < SLOTS, "a living process's slots were taken from it"
    catalog.abandon(alive)
    victim.kill()
    victim.wait()
    time.sleep(1.1)
    assert len(catalog.reserve(keys)) == SLOTS
    catalog.close()


def test_slots_stay_with_a_dead_scheduler_as_long_as_its_worker_lives(name: str) -> None:
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        row = joined(name)
        other = SharedCatalog(CommonSlots(name, [PAGE], SLOTS, 1))
        other.joined([(worker.pid, process_start(worker.pid))])
        taken = other.reserve([key(1), key(2)])
        assert len(taken) == 2
        other._table._engines[other._me, 0] = (2**22 + 5, 1)  # its scheduler is dead, as the others see it
        row._swept = 0
        assert len(row.reserve([key(number) for number in range(100, 100 + SLOTS)])) == SLOTS - 2
        worker.kill()
        worker.wait()
        row._swept = 0
        assert len(row.reserve([key(1), key(2)])) == 2
        other.close()
        row.close()
    finally:
        worker.kill()


def test_the_memory_outlives_the_process_that_made_it(name: str) -> None:
    maker = sharer(name, 4, 60)
    catalog = joined(name)
    places = catalog.reserve([key(7777)])
    catalog._common.of_rank(0).reshape(SLOTS, PAGE)[places[0].slot] = content(7777)
    catalog.publish(places)
    maker.kill()
    maker.wait()
    deadline = time.monotonic() + 5
    while not catalog._common.memory.held and time.monotonic() < deadline:
        time.sleep(0.02)
    assert catalog._common.memory.held, "nobody took the name over"
    late = joined(name)
    assert late.leading([key(7777)]) == 1
    found = late.pin([key(7777)])
    assert np.array_equal(late._common.of_rank(0).reshape(SLOTS, PAGE)[found[0].slot], content(7777))
    late.close()
    catalog.close()


def test_a_second_start_after_a_crash_begins_with_nothing(name: str) -> None:
    alone = sharer(name, 5, 60)
    alone.kill()
    alone.wait()
    catalog = joined(name)
    assert (len(catalog), catalog.used) == (0, 0)
    catalog.close()


def test_a_stopped_process_with_the_table_delays_nobody(name: str) -> None:
    catalog, other = joined(name), joined(name)
    keys = [key(number) for number in range(3)]
    places = catalog.reserve(keys)
    with other._locked():
        started = time.monotonic()
        assert catalog.reserve([key(9)]) == []
        assert catalog.hold([key(0)]) == []
        assert catalog.publish(places) == []
        assert time.monotonic() - started < 1
    assert catalog.counters["busy"] == 3
    catalog.leading(keys)
    assert len(catalog.reserve([key(10)])) == 1  # what was late is done with the next that gets the table
    assert catalog.leading(keys) == 3
    other.close()
    catalog.close()


def test_a_pinned_slot_is_not_given_up_by_another_process(name: str) -> None:
    catalog, other = joined(name), joined(name)
    catalog.publish(catalog.reserve([key(number) for number in range(SLOTS)]))
    pins = catalog.pin([key(0), key(1)])
    assert len(other.reserve([key(number) for number in range(100, 100 + SLOTS)])) == SLOTS - 2
    assert other.counters["no_room"] == 1
    assert catalog.leading([key(0), key(1), key(2)]) == 2
    catalog.unpin(pins)
    assert len(other.reserve([key(500), key(501)])) == 2
    assert catalog.leading([key(0)]) == 0
    assert set(catalog.drain()) == {key(number) for number in range(SLOTS)}
    other.close()
    catalog.close()


def test_another_kind_of_kv_or_size_is_another_memory(name: str) -> None:
    first = CommonSlots(name, [PAGE], SLOTS, 1)
    second = CommonSlots(name, [PAGE], SLOTS + 1, 1)
    third = CommonSlots(name + "x", [PAGE], SLOTS, 1)
    assert [first.memory.held, second.memory.held, third.memory.held] == [True] * 3
    for one in (first, second, third):
        one.close()


def test_who_makes_new_memory_in_between_is_left_alone() -> None:
    name = uuid.uuid4().hex
    memory = SharedMemory(name, 4096)
    same = SharedMemory(name, 4096)
    assert (memory.held, same.held) == (True, False)
    memory.memory[7] = 9
    assert same.memory[7] == 9
    memory.close()
    deadline = time.monotonic() + 5
    while not same.held and time.monotonic() < deadline:
        time.sleep(0.02)
    assert same.held
    same.close()
    again = SharedMemory(name, 4096)
    assert again.memory[7] == 0
    again.close()


def test_a_name_that_somebody_else_has_is_refused_with_a_reason() -> None:
    name = uuid.uuid4().hex
    memory = SharedMemory(name, 4096)
    with pytest.raises(TransportError, match="cannot share"):
        SharedMemory(name, 1 << 62)
    memory.close()


def test_a_process_is_known_by_its_start_too() -> None:
    pid, start = this_process()
    assert lives(pid, start)
    assert not lives(pid, start + 1)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    time.sleep(0.5)
    assert not lives(child.pid, 1), "a zombie counts as dead"
    child.wait()
