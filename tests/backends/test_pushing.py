"""Values that come to their consumer before he asks, and inserts that end when a copy is made."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import (
    BindingMismatchError,
    BusyError,
    CancelledError,
    ClosedError,
    DuplicateKeyError,
    KeyConsumedError,
    KeyMissError,
    KVBridgeError,
    PeerLostError,
    SpecMismatchError,
    TransferTimeoutError,
)
from kvbridge.layers import packing
from kvbridge.layers.pushing import PushingBuffer
from kvbridge.layers.queued import QueuedBuffer
from kvbridge.memory import Pages, Region
from kvbridge.memory.host_pool import HostPool
from tests.direct import fresh
from tests.fake_gpu import FakeGpu
from tests.nodes import content, eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sides import Side

BLOCKS, PAGE = 16, 512
ROOM = 64 << 10


class Ends:
    """A producer and a consumer with a room of some bytes."""

    def __init__(self, sides: tuple[Side, Side], room: int = ROOM, lease: float = 60.0) -> None:
        self.sides = sides
        self.room = HostPool(room)
        self.here = PushingBuffer(sides[0].buffer, sides[0].endpoint, None, lease=lease)
        self.there = PushingBuffer(sides[1].buffer, sides[1].endpoint, self.room, lease=lease)
        self.flush()

    def flush(self) -> None:
        for side in self.sides:
            done: list[bool] = []
            side.endpoint.call_soon(lambda done=done: done.append(True))
            eventually(lambda done=done: bool(done), 5, str)

    def push(self, name: str, value: Pages, digest: bytes = b"d") -> Any:
        inserted = self.here.insert(Key(name), value, digest=digest)
        self.here.announce(Key(name), value, digest, self.sides[1].endpoint.address)
        return inserted

    def key(self, name: str) -> Key:
        return Key(name, self.sides[0].endpoint.address)

    def arrived(self, count: int = 1) -> None:
        eventually(lambda: self.there.stats().get("push_taken", 0) >= count, 10, lambda: str(self.there.stats()))

    def empty(self) -> None:
        def nothing() -> bool:
            stats = self.there.stats()
            return not (stats["received_values"] or stats["received_bytes"] or self.room.stats().used)

        eventually(nothing, 5, lambda: f"{self.there.stats()} {self.room.stats()}")
        eventually(lambda: not self.here.stats()["entries"], 5, lambda: str(self.here.stats()))


@pytest.fixture
def ends(sides: tuple[Side, Side]) -> Ends:
    return Ends(sides)


def pages(seed: int, ids: list[int]) -> Pages:
    """Blocks of two regions whose pages differ in size."""
    regions = (
        Region.over(pattern(seed, BLOCKS * PAGE), PAGE),
        Region.over(pattern(seed + 1, BLOCKS * PAGE * 2), PAGE * 2),
    )
    return Pages.of(regions, ids)


def test_a_pushed_value_is_there_before_it_is_asked_for(ends: Ends) -> None:
    value, out = pages(1, [3, 1, 2]), pages(50, [4, 9, 0])
    inserted = ends.push("k", value)
    ends.arrived()
    inserted.wait(5)  # the producer's blocks are free although nobody has asked
    assert ends.there.stats()["received_values"] == 1
    ends.there.drop_select(ends.key("k"), out, digest=b"d", timeout=5).wait(5)
    assert content(out) == content(value)
    ends.empty()
    with pytest.raises(KeyConsumedError):
        ends.there.claim(ends.key("k"), digest=b"d", timeout=5).wait(5)


@pytest.mark.parametrize("queued", [False, True])
def test_pages_on_a_gpu_are_pushed_by_way_of_host_memory(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch, queued: bool
) -> None:
    """With a fake GPU. What is not queued leaves it by the backend's own means: here it is in host memory."""
    ends = Ends(sides)
    source, target = (FakeGpu(monkeypatch, (PAGE, 2 * PAGE), BLOCKS, seed) for seed in (1, 50))
    ids, into = [3, 1, 2], [4, 9, 0]
    value = Pages.of(source.regions() if queued else source.seen(), ids)
    buffer = QueuedBuffer(ends.here, sides[0].endpoint, HostPool(ROOM)) if queued else ends.here
    buffer.insert(Key("k"), value, digest=b"d")
    ends.here.announce(Key("k"), value, b"d", sides[1].endpoint.address)
    ends.arrived()
    out = Pages.of(target.regions(), into)
    ends.there.drop_select(ends.key("k"), out, digest=b"d", timeout=5).wait(5)
    assert target.content(into) == source.content(ids)
    ends.empty()


def test_first_blocks_can_be_left_out(ends: Ends) -> None:
    value, out = pages(1, [3, 1, 2]), pages(50, [4])
    before = content(pages(50, [0, 1, 2, 3, 5, 6, 7, 8]))
    ends.push("k", value)
    ends.arrived()
    ends.there.drop_select(ends.key("k"), out, digest=b"d", skip=2, timeout=5).wait(5)
    assert content(out) == content(Pages.of(value.regions, [2]))
    assert content(Pages.of(out.regions, [0, 1, 2, 3, 5, 6, 7, 8])) == before


def test_who_asks_while_it_is_under_way_gets_it_when_it_is_here(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    value, out = pages(1, [3, 1, 2]), pages(50, [4, 9, 0])
    ends.push("k", value)
    ends.there.drop_select(ends.key("k"), out, digest=b"d", timeout=10).wait(10)  # before or after: it is the same
    assert content(out) == content(value)
    ends.empty()


def test_without_room_the_value_waits_at_its_producer(sides: tuple[Side, Side]) -> None:
    ends = Ends(sides, room=8 << 10)
    values = [pages(seed, [1, 2, 3, 4]) for seed in (1, 3, 5)]  # 6 KiB each
    for index, value in enumerate(values):
        ends.push(f"k{index}", value)
    eventually(lambda: ends.there.stats().get("push_declined", 0) == 2, 10, lambda: str(ends.there.stats()))
    ends.arrived()
    for index, value in reversed(list(enumerate(values))):
        out = pages(50, [4, 9, 0, 7])
        ends.there.drop_select(ends.key(f"k{index}"), out, digest=b"d", timeout=5).wait(5)
        assert content(out) == content(value)
    ends.empty()


def test_another_digest_is_refused_and_the_value_stays(ends: Ends) -> None:
    value = pages(1, [3])
    ends.push("k", value)
    ends.arrived()
    with pytest.raises(BindingMismatchError):
        ends.there.claim(ends.key("k"), digest=b"other", timeout=5).wait(5)
    out = pages(50, [4])
    ends.there.select(ends.key("k"), out, digest=b"d", timeout=5).wait(5)
    ends.there.drop_select(ends.key("k"), out, digest=b"d", timeout=5).wait(5)
    assert content(out) == content(value)
    ends.empty()


def test_a_claim_is_exclusive_is_filled_once_and_gives_up_what_it_took(ends: Ends) -> None:
    ends.push("k", pages(1, [3]))
    ends.arrived()
    claim = ends.there.claim(ends.key("k"), digest=b"d", timeout=5).wait(5)
    with pytest.raises(KeyConsumedError):
        ends.there.claim(ends.key("k"), digest=b"d", timeout=5).wait(5)
    with pytest.raises(SpecMismatchError):
        claim.fill(pages(50, [4, 5])).wait(5)
    claim.fill(pages(50, [4])).wait(5)
    with pytest.raises(BusyError):
        claim.fill(pages(50, [4])).wait(5)
    claim.release()
    ends.push("j", pages(1, [3]))
    ends.arrived(2)
    released = ends.there.claim(ends.key("j"), digest=b"d", timeout=5).wait(5)
    released.release()
    released.release()
    ends.empty()


def test_what_nobody_claims_is_given_up_when_its_lease_ends(sides: tuple[Side, Side]) -> None:
    ends = Ends(sides, lease=0.3)
    ends.push("k", pages(1, [3]))
    ends.arrived()
    eventually(lambda: ends.there.stats().get("push_expired", 0) == 1, 5, lambda: str(ends.there.stats()))
    ends.empty()
    with pytest.raises(KeyMissError):
        ends.there.claim(ends.key("k"), digest=b"d", timeout=0.5).wait(5)


def test_what_nobody_wants_is_dropped(ends: Ends) -> None:
    ends.push("k", pages(1, [3]))
    ends.arrived()
    ends.there.drop([ends.key("k")])
    ends.empty()


def test_an_announcement_of_nothing_and_a_second_one_cost_nothing(ends: Ends) -> None:
    value = pages(1, [3])
    ends.here.announce(Key("nothing"), value, b"d", ends.sides[1].endpoint.address)
    inserted = ends.push("k", value)
    ends.here.announce(Key("k"), value, b"d", ends.sides[1].endpoint.address)
    ends.arrived()
    inserted.wait(5)
    out = pages(50, [4])
    ends.there.drop_select(ends.key("k"), out, digest=b"d", timeout=5).wait(5)
    assert content(out) == content(value)
    assert ends.there.stats()["push_taken"] == 1


def test_a_push_that_comes_after_its_request_is_left_alone(ends: Ends) -> None:
    claim = ends.there.claim(ends.key("k"), digest=b"d", timeout=20)
    value, out = pages(1, [3]), pages(50, [4])
    ends.here.announce(Key("k"), value, b"d", ends.sides[1].endpoint.address)
    eventually(lambda: ends.there.stats().get("push_late", 0) == 1, 5, lambda: str(ends.there.stats()))
    ends.here.insert(Key("k"), value, digest=b"d")
    claim.wait(5).fill(out).wait(5)
    assert content(out) == content(value)
    ends.here.announce(Key("k"), value, b"d", ends.sides[1].endpoint.address)
    eventually(lambda: ends.there.stats().get("push_late", 0) == 2, 5, lambda: str(ends.there.stats()))
    ends.empty()


def test_a_consumer_that_cannot_be_reached_is_counted_and_the_value_waits(ends: Ends) -> None:
    value = pages(1, [3])
    ends.here.insert(Key("k"), value, digest=b"d")
    ends.here.announce(Key("k"), value, b"d", "tcp://127.0.0.1:9")
    eventually(lambda: ends.here.stats().get("push_failed", 0) == 1, 10, lambda: str(ends.here.stats()))
    out = pages(50, [4])
    ends.there.drop_select(ends.key("k"), out, digest=b"d", timeout=5).wait(5)
    assert content(out) == content(value)


def test_a_producer_that_goes_before_the_value_is_here_is_a_failed_claim(ends: Ends) -> None:
    ends.here.announce(Key("k"), pages(1, [3]), b"d", ends.sides[1].endpoint.address)  # it will never be inserted
    eventually(lambda: ends.there.stats()["received_values"] == 1, 5, lambda: str(ends.there.stats()))
    claim = ends.there.claim(ends.key("k"), digest=b"d", timeout=20)
    cancelled = ends.there.claim(ends.key("k"), digest=b"d", timeout=20)
    late = ends.there.claim(ends.key("k"), digest=b"d", timeout=0.2)
    cancelled.cancel()
    with pytest.raises(CancelledError):
        cancelled.wait(5)
    with pytest.raises(TransferTimeoutError):
        late.wait(5)
    ends.sides[0].endpoint.close()
    with pytest.raises((PeerLostError, KeyMissError)):
        claim.wait(10)
    eventually(lambda: not ends.room.stats().used, 5, lambda: str(ends.room.stats()))


def test_closing_ends_everything(ends: Ends) -> None:
    for name in ("a", "b"):
        ends.push(name, pages(1, [3]))
    ends.arrived(2)
    claim = ends.there.claim(ends.key("a"), digest=b"d", timeout=5).wait(5)
    ends.there.close()
    ends.there.close()
    with pytest.raises(KVBridgeError):
        claim.fill(pages(50, [4])).wait(5)
    with pytest.raises(ClosedError):
        ends.there.claim(ends.key("b"), digest=b"d", timeout=5).wait(5)


@pytest.fixture
def queue(sides: tuple[Side, Side]) -> Callable[..., tuple[QueuedBuffer, HostPool]]:
    def make(room: int = ROOM) -> tuple[QueuedBuffer, HostPool]:
        pool = HostPool(room)
        return QueuedBuffer(sides[0].buffer, sides[0].endpoint, pool), pool

    return make


def test_an_insert_ends_when_the_copy_is_made_and_its_source_may_change(
    sides: tuple[Side, Side], queue: Callable[..., tuple[QueuedBuffer, HostPool]]
) -> None:
    here, pool = queue()
    value = pages(1, [3, 1, 2])
    expected = content(value)
    here.insert(Key("k"), value, digest=b"d").wait(5)
    for region in value.regions:
        region.rows()[:] = 0
    out = pages(50, [4, 9, 0])
    sides[1].buffer.drop_select(Key("k", sides[0].endpoint.address), out, digest=b"d", timeout=5).wait(5)
    assert content(out) == expected
    eventually(lambda: not pool.stats().used, 5, lambda: str(pool.stats()))
    assert here.stats()["queued"] == 1


def test_without_room_for_a_copy_the_value_stays_in_its_blocks(
    sides: tuple[Side, Side], queue: Callable[..., tuple[QueuedBuffer, HostPool]]
) -> None:
    here, pool = queue(8 << 10)
    values = [pages(seed, [1, 2, 3, 4]) for seed in (1, 3)]
    for index, value in enumerate(values):
        here.insert(Key(f"k{index}"), value)
    here.insert(Key("tensor"), pattern(1, 100))

    def settled() -> bool:
        queued, full = (here.stats().get(name, 0) for name in ("queued", "queue_full"))
        # a backend that detaches gives the copy's room back at once
        return queued >= 1 and queued + full == 2 and (full == 1 or sides[0].backend.capabilities.detaches)

    eventually(settled, 5, lambda: str(here.stats()))
    for index, value in enumerate(values):
        out = pages(50, [4, 9, 0, 7])
        sides[1].buffer.drop_select(Key(f"k{index}", sides[0].endpoint.address), out, timeout=5).wait(5)
        assert content(out) == content(value)
    sides[1].buffer.drop_select(Key("tensor", sides[0].endpoint.address), out := fresh(100), timeout=5).wait(5)
    assert np.array_equal(out, pattern(1, 100))
    eventually(lambda: not pool.stats().used, 5, lambda: str(pool.stats()))


def test_a_second_insert_of_a_key_is_refused_and_the_first_stays(
    sides: tuple[Side, Side], queue: Callable[..., tuple[QueuedBuffer, HostPool]]
) -> None:
    here, pool = queue()
    first, second = pages(1, [3]), pages(5, [3])
    inserted = [here.insert(Key("k"), value) for value in (first, second)]
    inserted[0].wait(5)
    with pytest.raises(DuplicateKeyError):
        inserted[1].wait(5)
    with pytest.raises(DuplicateKeyError):
        here.insert(Key("k"), second).wait(5)
    out = pages(50, [4])
    sides[1].buffer.drop_select(Key("k", sides[0].endpoint.address), out, timeout=5).wait(5)
    assert content(out) == content(first)
    eventually(lambda: not pool.stats().used, 5, lambda: str(pool.stats()))


def test_a_second_insert_is_refused_while_the_first_is_being_copied(
    queue: Callable[..., tuple[QueuedBuffer, HostPool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "SLICE", 512)
    here, _ = queue(4 << 20)
    big = Pages.of([Region.over(np.zeros(1 << 20, dtype=np.uint8), 512)], range(2048))
    first, second = here.insert(Key("k"), big), here.insert(Key("k"), big)
    with pytest.raises(DuplicateKeyError, match="that is being copied, which stays"):
        second.wait(5)
    first.wait(5)


@pytest.mark.parametrize("end", ["cancel", "drop", "close"])
def test_a_copy_that_is_not_wanted_any_more_ends(
    queue: Callable[..., tuple[QueuedBuffer, HostPool]], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(packing, "SLICE", 512)
    here, pool = queue(1 << 20)
    big = Pages.of([Region.over(np.zeros(1 << 19, dtype=np.uint8), 512)], range(1024))
    started = time.monotonic()
    inserted = here.insert(Key("k"), big)
    {"cancel": inserted.cancel, "drop": lambda: here.drop([Key("k")]), "close": here.close}[end]()
    with contextlib.suppress(KVBridgeError):
        inserted.wait(5)
    assert inserted.poll()
    assert time.monotonic() - started < 5
    if end != "close":
        here.drop([Key("k")])
        eventually(lambda: not pool.stats().used, 5, lambda: str(pool.stats()))
