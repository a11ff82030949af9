"""After close nothing is left: no thread, descriptor, file, mapping or memory, also if the objects are kept."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import KeyConsumedError
from tests.nodes import MIB, Node, eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import Peer


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def files_in_dev_shm(pid: int | str = "self") -> list[str]:
    """Files there that a process has open or mapped: other processes of this machine may have files of their own."""
    opened = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]  # noqa: PTH115
    mapped = Path(f"/proc/{pid}/maps").read_text(encoding="ascii", errors="replace").splitlines()
    return [line for line in (*opened, *mapped) if "/dev/shm/" in line]  # noqa: S108 - only looked at


def mappings() -> int:
    """Shared memory of kvbridge that this process has mapped."""
    return Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").count("memfd:kvbridge")


def resident() -> int:
    """Bytes of kvbridge's shared memory that this process has in memory."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if "-" in name and " " in name:  # the head of a mapping: its address range
            ours = "memfd:kvbridge" in line
        elif ours and name == "Rss":
            found += 1024 * int(value.split()[0])
    return found


def work(producer: Node, consumer: Node) -> None:
    """A bit of everything."""
    producer.insert("k", 1, 100_000)
    consumer.take(Key("k", *producer.where()), 1, 100_000)
    consumer.begin("never", "drop_select", Key("never", *producer.where()), 1, 10)
    consumer.open_pipe("c", "recv")
    producer.open_pipe("c", "send")
    producer.begin_send("s", "c", 2, 1000)
    consumer.recv("c", 2, 1000)
    producer.insert("left", 1, 1000)


def test_fifty_cycles_of_open_and_close_leave_descriptors_threads_and_mappings_as_they_were() -> None:
    def cycle() -> None:
        producer, consumer = Node(capacity="1MiB"), Node(capacity="1MiB")
        work(producer, consumer)
        for one in (consumer, producer):
            assert one.close() < 2
            assert one.close() < 2

    cycle()
    gc.collect()
    before = descriptors(), threading.active_count(), mappings()
    for _ in range(50):
        cycle()
    gc.collect()
    assert (descriptors(), threading.active_count(), mappings()) == before
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kvbridge-")]


def test_no_file_is_made_in_dev_shm(pair: tuple[Node, Node], peer: Callable[..., Peer]) -> None:
    """Neither by this process nor by one that is killed: what it never made it cannot leave behind."""
    before = files_in_dev_shm()
    work(*pair)
    victim = peer()
    victim.do("insert", "k", 1, MIB)
    pair[1].take(Key("k", victim.address), 1, MIB, verb="select")
    assert files_in_dev_shm(victim.pid) == []
    assert files_in_dev_shm() == before


def test_threads_carry_the_projects_name_while_they_live(pair: tuple[Node, Node]) -> None:
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    assert sum(name.startswith("kvbridge-") for name in names) == 2
    for one in pair:
        one.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvbridge-")]


def test_the_memory_of_a_large_pool_is_given_back_although_its_owner_keeps_the_objects(
    node: Callable[..., Node],
) -> None:
    source = np.full(60 * MIB, 3, dtype=np.uint8)
    producer = node(capacity=256 * MIB)
    for number in range(4):
        producer.buffer.insert(Key(f"k{number}"), source).wait(60)
    assert resident() >= 240 * MIB
    producer.close()
    eventually(lambda: resident() == 0, 5.0, lambda: "the pool is still in memory")


def test_a_consumer_lets_go_of_its_producers_memory_when_the_link_ends(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    own = mappings()
    producer.insert("k", 1, 1000)
    consumer.take(Key("k", *producer.where()), 1, 1000)
    assert mappings() == own + 1
    producer.endpoint.close()
    eventually(lambda: mappings() == own, 3.0, lambda: f"{mappings()} mappings, {own} before")


def test_nothing_keeps_the_callers_arrays_once_a_transfer_is_finished(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    source, out = pattern(1, 5000), np.zeros(5000, dtype=np.uint8)
    producer.buffer.insert(Key("k"), source).wait(5)
    kept = weakref.ref(source)
    del source
    producer.flush()
    gc.collect()
    assert kept() is None, "the source of a finished insert is kept"
    consumer.buffer.drop_select(Key("k", *producer.where()), out).wait(5)
    kept = weakref.ref(out)
    del out
    consumer.flush()
    gc.collect()
    assert kept() is None, "the destination of a finished select is kept"


def test_questions_that_fail_leave_nothing_behind(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    link = consumer.dial(producer.endpoint.address)
    producer.insert("k", 1, 10)
    consumer.take(Key("k", producer.endpoint.address), 1, 10)
    for _ in range(20):
        with pytest.raises(KeyConsumedError):
            consumer.buffer.claim(Key("k", producer.endpoint.address)).wait(5)
        waiting = consumer.buffer.claim(Key("never", producer.endpoint.address))
        consumer.flush()
        waiting.cancel()
    eventually(lambda: not consumer.buffer._seeker._questions, 3.0, lambda: "open questions")
    eventually(lambda: not len(producer.buffer._shelf._questions), 3.0, lambda: "waiting questions")
    consumer.flush()
    assert len(consumer.buffer._seeker.inbox(link).asked) == 0
    assert len(link._on_down) < 10
