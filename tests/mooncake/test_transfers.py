"""What the library would get wrong, and a transfer of ours does not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key, MoveState
from kvbridge.conformance.node import Node
from kvbridge.conformance.resources import growth, resources
from kvbridge.conformance.values import Geometry, PagesValue
from kvbridge.errors import CancelledError, KVBridgeError, PeerLostError, ProtocolError, TransportError
from kvbridge.memory import Pages, Region
from kvbridge.memory.places import decode_place
from kvbridge_mooncake import transfer
from kvbridge_mooncake.card import decode_card
from kvbridge_mooncake.memory import Blocks, merged, place_of
from kvbridge_mooncake.transfer import Transfer, runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge_mooncake import MooncakeBackend

PAGE = 4096
MIB = 1 << 20
SOON = 20.0
OWNER = "a" * 32

CACHE = Geometry(page_bytes=(64 << 10,), num_blocks=600)
LARGE = PagesValue(seed=1, ids=tuple(range(0, 512, 2)), geometry=CACHE)
"""16 MiB, in 256 runs."""

SMALL = PagesValue(seed=2, ids=(520, 530, 522), geometry=CACHE)


TINY = PagesValue(seed=3, ids=(5, 9, 6), geometry=Geometry(page_bytes=(16 << 10,), num_blocks=16))


def pages(count: int, ids: Any, fill: int = 0) -> Pages:
    return Pages.of([Region.over(np.full(count * PAGE, fill, dtype=np.uint8), PAGE)], ids)


def memory_of(value: Pages) -> Any:
    return value.regions[0].rows().view(np.uint8)


def drive(move: Any, timeout: float = SOON) -> KVBridgeError | None:
    """Step a move to its end; return its error."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if move.step() is MoveState.DONE:
                return None
        except KVBridgeError as error:
            return error
        time.sleep(0.0001)
    raise TimeoutError


def reading(reader: MooncakeBackend, source: Pages, owner: MooncakeBackend, out: Pages) -> Transfer:
    card = decode_card(owner.card())
    place = decode_place(place_of(card.name, Blocks(source)), card.name)
    return Transfer(reader.movers, card, "READ", Blocks(out), place, 0)


def test_after_a_failure_was_reported_nothing_lands(backend: Callable[..., MooncakeBackend]) -> None:
    """One run in the middle cannot be read. The library would report that while others still land."""
    owner, reader = backend(), backend()
    count = 2000
    good, bad = pages(count, range(count), fill=7), pages(1, [0], fill=7)
    owner.register(good.regions)
    out = pages(count + 1, range(count + 1), fill=1)
    card = decode_card(owner.card())
    rows = Blocks(Pages((*good.regions, *bad.regions), (np.arange(0, count), np.arange(1))))
    place = decode_place(place_of(card.name, rows), card.name)
    region = out.regions[0]
    order = np.random.default_rng(1).permutation(count)
    wanted = Blocks(Pages((region, region), (order, np.array([count]))))
    move = Transfer(reader.movers, card, "READ", wanted, place, 0)
    error = drive(move)
    assert isinstance(error, TransportError)
    memory_of(out)[:] = 9
    time.sleep(0.5)
    assert (memory_of(out) == 9).all()
    after = pages(count, order)
    assert drive(reading(reader, good, owner, after)) is None, "the peer is met again"
    assert (memory_of(after) == 7).all()


def test_an_abort_in_the_middle_lets_nothing_land_later(backend: Callable[..., MooncakeBackend]) -> None:
    owner, reader = backend(), backend()
    source, out = pages(8000, range(8000), fill=7), pages(8000, np.random.default_rng(1).permutation(8000))
    owner.register(source.regions)
    move = reading(reader, source, owner, out)
    while not move._flying:
        move.step()
    move.abort()
    assert isinstance(drive(move), CancelledError)
    memory_of(out)[:] = 9
    time.sleep(0.3)
    assert (memory_of(out) == 9).all()


def test_nobody_there_is_said_at_once(backend: Callable[..., MooncakeBackend]) -> None:
    owner, reader = backend(), backend()
    source, out = pages(1, [0]), pages(1, [0])
    move = reading(reader, source, owner, out)
    owner.close()
    assert isinstance(drive(move), PeerLostError)


def test_a_peer_that_does_not_answer_holds_up_nobody_else(peer: Callable[..., Any]) -> None:
    """It is stopped before it was ever read from: the library's first words with it would take a minute."""
    mute, healthy, consumer = peer(name="mute"), peer(name="healthy"), peer(name="consumer", peer_timeout=60)
    mute.begin_insert("k", "k", SMALL)
    consumer.begin_claim("c", Key("k", *mute.where()))
    consumer.end("c")
    mute.host.stop()
    consumer.begin_fill("f", "c", SMALL)
    for turn in range(5):
        healthy.begin_insert(f"k{turn}", f"k{turn}", SMALL)
        started = time.monotonic()
        consumer.take(Key(f"k{turn}", *healthy.where()), SMALL)
        assert time.monotonic() - started < SOON
    mute.host.go_on()
    if not consumer.await_over("f", SOON):
        consumer.end("f")
    mute.begin_insert("again", "again", SMALL)
    consumer.take(Key("again", *mute.where()), SMALL)


def test_a_producer_that_is_stopped_in_mid_transfer_holds_up_nobody_else(peer: Callable[..., Any]) -> None:
    land = {"land": [("pause", "moved")]}
    mute, healthy = peer(name="mute"), peer(name="healthy")
    consumer = peer({"patience": 3}, name="consumer", faults=land, peer_timeout=60)
    mute.begin_insert("k", "k", LARGE)
    consumer.begin("s", "select", Key("k", *mute.where()), LARGE)
    consumer.await_paused("land")
    mute.host.stop()
    consumer.resume("land")
    for turn in range(3):
        healthy.begin_insert(f"k{turn}", f"k{turn}", SMALL)
        consumer.take(Key(f"k{turn}", *healthy.where()), SMALL)
    consumer.await_over("s", SOON)
    mute.host.go_on()
    mute.begin_insert("again", "again", SMALL)
    consumer.take(Key("again", *mute.where()), SMALL)


def test_a_peer_that_hangs_gives_its_memory_back_by_force(peer: Callable[..., Any]) -> None:
    """With patience for a minute, the end of the engine is the only end."""
    land = {"land": [("pause", "moved")]}
    mute, other = peer(name="mute"), peer(name="other")
    consumer = peer({"patience": 60}, name="consumer", faults=land, peer_timeout=60)
    mute.begin_insert("k", "k", LARGE)
    consumer.begin("s", "select", Key("k", *mute.where()), LARGE)
    consumer.await_paused("land")
    mute.host.stop()
    consumer.resume("land")
    time.sleep(0.5)
    consumer.cancel("s")
    consumer.await_over("s", SOON)
    consumer.mark("s")
    other.begin_insert("k", "k", SMALL)
    consumer.take(Key("k", *other.where()), SMALL)
    mute.host.go_on()
    time.sleep(0.5)
    consumer.require_marked("s")
    mute.begin_insert("again", "again", SMALL)
    consumer.take(Key("again", *mute.where()), SMALL)


def test_two_thousand_transfers_leave_nothing() -> None:
    producer, consumer = Node("mooncake", {}), Node("mooncake", {})
    home = producer.where()

    def turns(start: int, count: int) -> None:
        for turn in range(start, start + count):
            producer.begin_insert("v", f"k{turn}", TINY)
            consumer.take(Key(f"k{turn}", *home), TINY)

    turns(0, 100)
    before = resources()
    turns(100, 2000)
    more = growth(before, resources(), slack={"descriptors": 2, "tasks": 1, "resident": 16 * MIB})
    consumer.close()
    producer.close()
    assert not more


def test_a_restarted_producer_is_reached_soon(peer: Callable[..., Any]) -> None:
    consumer = peer(name="consumer")
    port = 0
    for turn in range(4):
        producer = peer(name="producer", **({"port": port} if port else {}))
        producer.begin_insert("k", "k", SMALL)
        started = time.monotonic()
        consumer.take(Key("k", *producer.where()), SMALL)
        assert time.monotonic() - started < SOON, turn
        port = int(producer.where()[0].rpartition(":")[2])
        producer.kill()


# -- runs -----------------------------------------------------------------------------------------------------


def paired(local: Pages, remote: Pages, skip: int = 0) -> Any:
    place = decode_place(place_of(OWNER, Blocks(remote)), OWNER)
    return [array.tolist() for array in runs(Blocks(local), place, skip)]


def test_neighbours_on_both_sides_move_as_one() -> None:
    local, remote = pages(10, [1, 2, 3, 7, 5]), pages(20, [11, 12, 13, 17, 0])
    here, there = local.regions[0].address, remote.regions[0].address
    assert paired(local, remote) == [
        [here + PAGE, here + 5 * PAGE, here + 7 * PAGE],
        [there + 11 * PAGE, there, there + 17 * PAGE],
        [3 * PAGE, PAGE, PAGE],
    ]


def test_long_runs_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "RUN_BYTES", 3 * PAGE)
    local, remote = pages(10, range(7)), pages(10, range(3, 10))
    here, there = local.regions[0].address, remote.regions[0].address + 3 * PAGE
    assert paired(local, remote) == [
        [here, here + 3 * PAGE, here + 6 * PAGE],
        [there, there + 3 * PAGE, there + 6 * PAGE],
        [3 * PAGE, 3 * PAGE, PAGE],
    ]


def test_every_byte_is_in_one_run_whatever_the_pages() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        count = int(random.integers(1, 200))
        local, remote = (pages(300, random.permutation(300)[:count]) for _ in range(2))
        here, there = local.regions[0].address, remote.regions[0].address
        found = {
            (a - here + offset, b - there + offset)
            for a, b, n in zip(*paired(local, remote), strict=True)
            for offset in range(0, n, PAGE)
        }
        assert found == {
            (int(x) * PAGE, int(y) * PAGE) for x, y in zip(local.block_ids[0], remote.block_ids[0], strict=True)
        }


@pytest.mark.parametrize(
    ("remote", "message"),
    [
        (pages(5, [1, 2]), "2 blocks"),
        (Pages.of([Region.over(np.zeros(8 * PAGE, dtype=np.uint8), 2 * PAGE)], [0, 1, 2]), "8192 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(remote: Pages, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        paired(pages(5, [1, 2, 3]), remote)


def test_a_block_beyond_the_end_is_refused() -> None:
    place = decode_place(place_of(OWNER, Blocks(pages(5, [1, 4]))), OWNER)
    beyond = pages(9, [1, 8])
    rows = place.table().copy()
    with pytest.raises(ProtocolError, match="beyond"):
        runs(Blocks(pages(5, [1, 2])), decode_place(_with_rows(beyond, rows), OWNER), 0)


def _with_rows(value: Pages, rows: Any) -> bytes:
    blocks = Blocks(value)
    blocks.rows = rows
    return place_of(OWNER, blocks)


def test_spans_that_touch_are_one() -> None:
    assert merged([(100, 50), (0, 10), (150, 10), (5, 10)]) == [(0, 15), (100, 60)]
