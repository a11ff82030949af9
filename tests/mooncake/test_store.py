"""The distributed store when things go wrong: masters that die, values that are evicted, keys that are contested."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.conformance.node import Node
from kvbridge.conformance.values import Geometry, PagesValue, TensorValue
from kvbridge.errors import BackendUnavailableError, DuplicateKeyError, KeyUnknownError, KVBridgeError
from kvbridge.memory import Pages, Region
from kvbridge_mooncake import MooncakeStore, MooncakeStoreOptions
from kvbridge_mooncake.memory import Blocks
from kvbridge_mooncake.pieces import pieces
from kvbridge_mooncake.services import Services
from tests.nodes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = PagesValue(seed=1, ids=(5, 9, 6, 7), geometry=Geometry(page_bytes=(16 << 10,), num_blocks=16))
SOON = 30.0


@pytest.fixture
def services() -> Iterator[Services]:
    made = Services("128MB")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def node(services: Services) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(**settings: Any) -> Node:
        made.append(Node("mooncake-store", {"master": services.master}, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def store_of(node: Node) -> MooncakeStore:
    found = node.backend
    assert isinstance(found, MooncakeStore)
    return found


def test_a_value_outlives_its_producer(node: Callable[..., Node]) -> None:
    producer, consumer = node(), node()
    producer.insert("k", SMALL)
    producer.close()
    consumer.take(Key("k"), SMALL)


def test_a_dead_master_means_misses_and_hits_return(node: Callable[..., Node], services: Services) -> None:
    producer, consumer = node(), node()
    producer.insert("k", SMALL)
    consumer.take(Key("k"), SMALL, verb="select")
    services.kill_master()
    started = time.monotonic()
    assert consumer.contains([Key("k")]) == [False]
    consumer.begin("s", "select", Key("k"), SMALL, timeout=2)
    assert consumer.await_over("s", SOON) in ("unknown", "timeout")
    with pytest.raises(KVBridgeError):
        producer.insert("other", SMALL)
    assert time.monotonic() - started < SOON
    assert store_of(consumer).client.times_down > 0
    services.start_master()
    deadline = time.monotonic() + SOON
    turn = 0
    while True:  # the owner joins again when it notices
        turn += 1
        try:
            producer.insert(f"again{turn}", SMALL)
            consumer.take(Key(f"again{turn}"), SMALL, verb="select", timeout=2)
        except KVBridgeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def test_what_was_evicted_is_a_miss(node: Callable[..., Node]) -> None:
    """Eleven seconds for the library's own lease on what was looked at, then more than the store can hold."""
    producer = node()
    producer.insert("first", TensorValue(seed=1, shape=(8 << 20,)))
    time.sleep(11)
    for turn in range(24):
        producer.begin_insert("v", f"k{turn}", TensorValue(seed=2, shape=(8 << 20,)))
        producer.await_over("v", SOON)
    assert producer.contains([Key("first")]) == [False]
    producer.insert("first", SMALL)  # its key is free
    producer.take(Key("first"), SMALL)


def test_of_many_who_put_one_key_one_does(node: Callable[..., Node]) -> None:
    nodes = [node() for _ in range(3)]
    values = [np.full(1000, number, dtype=np.uint8) for number in range(3)]
    ended: list[str] = []

    def put(number: int, turn: int) -> None:
        try:
            nodes[number].buffer.insert(Key(f"k{turn}"), values[number]).wait(SOON)
            ended.append(f"{turn} {number}")
        except DuplicateKeyError:
            ended.append("duplicate")

    for turn in range(15):
        threads = [threading.Thread(target=put, args=(number, turn)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        out = np.zeros(1000, dtype=np.uint8)
        nodes[turn % 3].buffer.select(Key(f"k{turn}"), out).wait(SOON)
        assert f"{turn} {out[0]}" in ended
        assert (out == out[0]).all()
    assert len(ended) == 45
    assert ended.count("duplicate") == 30


def test_who_comes_after_a_value_was_taken_and_let_go_of_does_not_have_it(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen the head, and puts its mark when the winner's mark is removed again with the bytes."""
    early, late = node(), node()
    early.insert("k", SMALL)
    client = store_of(late).client
    put, reached, go_on = client.put, threading.Event(), threading.Event()
    marks: list[str] = []

    def put_late(key: str, value: bytes) -> None:
        marks.append(key)
        reached.set()
        go_on.wait(SOON)
        put(key, value)

    monkeypatch.setattr(client, "put", put_late)
    late.begin("t", "drop_select", Key("k"), SMALL, timeout=1)
    assert reached.wait(SOON)
    early.take(Key("k"), SMALL)
    eventually(lambda: not client.exist(marks)[0], SOON, lambda: "the winner's mark is not yet there, or still")
    go_on.set()
    assert late.await_over("t", SOON) == KeyUnknownError.code
    eventually(lambda: not client.exist(marks)[0], SOON, lambda: "it left its mark")


def test_without_a_master_it_says_so_at_once() -> None:
    started = time.monotonic()
    found = MooncakeStore.probe(MooncakeStoreOptions(master="127.0.0.1:1"))
    assert not found.ok
    assert "mooncake_master" in found.reason
    with pytest.raises(BackendUnavailableError, match="start one with `mooncake_master`"):
        MooncakeStore(MooncakeStoreOptions(master="127.0.0.1:1"))
    assert time.monotonic() - started < 10


def test_closing_twice_and_with_a_dead_master(services: Services) -> None:
    made = MooncakeStore(MooncakeStoreOptions(master=services.master))
    services.kill_master()
    started = time.monotonic()
    made.close()
    made.close()
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("page_bytes", [1024, 64 << 10])
@pytest.mark.parametrize("skip", [0, 3])
def test_pages_are_right_whether_they_are_copied_or_not(node: Callable[..., Node], page_bytes: int, skip: int) -> None:
    producer, consumer = node(), node()
    order = tuple(np.random.default_rng(1).permutation(200).tolist())
    value = PagesValue(seed=1, ids=order, geometry=Geometry(page_bytes=(page_bytes, 1000), num_blocks=200))
    producer.insert("k", value)
    consumer.take(Key("k"), value, skip=skip)


def test_pieces_are_the_bytes_in_order() -> None:
    memory = [np.arange(40, dtype=np.uint8), np.arange(100, 180, dtype=np.uint8)]
    regions = [Region.over(memory[0], 4), Region.over(memory[1], 8)]
    value = Pages.of(regions, [3, 4, 9, 0])
    addresses, sizes = pieces(Blocks(value))
    assert sum(sizes) == 4 * 12

    def read(address: int, nbytes: int) -> list[int]:
        for array in memory:
            start = address - array.ctypes.data
            if 0 <= start < array.nbytes:
                return array[start : start + nbytes].tolist()
        raise AssertionError

    found = [byte for address, nbytes in zip(addresses, sizes, strict=True) for byte in read(address, nbytes)]
    expected = []
    for array, size in zip(memory, (4, 8), strict=True):
        for block in (3, 4, 9, 0):
            expected += array[block * size : (block + 1) * size].tolist()
    assert found == expected
