"""Values in parts: each lies under a key of its own and moves by itself, and they are taken as one value."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.buffers.chain import all_of
from kvbridge.errors import (
    BusyError,
    CancelledError,
    DuplicateKeyError,
    KeyConsumedError,
    KeyDroppedError,
    KeyMissError,
    KeyUnknownError,
    SpecMismatchError,
    TransportError,
)
from kvbridge.layers.checked import CheckedBuffer
from kvbridge.layers.layered import LayeredBuffer, part_sizes
from kvbridge.layers.pushing import PushingBuffer
from kvbridge.memory import Pages, Region
from kvbridge.memory.host_pool import HostPool
from tests.fakes import FakeBuffer, FakeTransfer
from tests.nodes import content, eventually, pattern

if TYPE_CHECKING:
    from tests.sides import Side

BLOCKS, PAGE = 16, 512
SIZES = (2, 2, 1)


class Ends:
    def __init__(self, sides: tuple[Side, Side]) -> None:
        self.sides = sides
        self.here, self.there = (LayeredBuffer(side.buffer, SIZES) for side in sides)

    def key(self, name: str = "k") -> Key:
        return Key(name, self.sides[0].endpoint.address)

    def insert_part(self, index: int, value: Pages, name: str = "k") -> Any:
        return self.here.inner.insert(self.here.keys(Key(name))[index], self.here.split(value)[index], digest=b"d")

    def claim(self, name: str = "k", timeout: float = 5.0) -> Any:
        return self.there.claim(self.key(name), digest=b"d", timeout=timeout)

    def nothing_left(self) -> None:
        eventually(lambda: not self.here.stats()["entries"], 5, lambda: str(self.here.stats()))


@pytest.fixture
def ends(sides: tuple[Side, Side]) -> Ends:
    return Ends(sides)


def pages(seed: int, ids: list[int], regions: int = 5) -> Pages:
    """Blocks of regions whose pages differ in size."""
    sizes = [PAGE * (1 + index % 2) for index in range(regions)]
    made = [Region.over(pattern(seed + index, BLOCKS * size), size) for index, size in enumerate(sizes)]
    return Pages.of(made, ids)


def test_a_value_is_inserted_in_parts_and_taken_as_a_whole(ends: Ends) -> None:
    value, out = pages(1, [3, 1, 2]), pages(50, [4, 9, 0])
    ends.here.insert(Key("k"), value, digest=b"d", note=b"said of it")
    eventually(lambda: ends.here.stats()["entries"] == 3, 5, lambda: str(ends.here.stats()))
    assert [key.id for key in ends.here.keys(Key("k"))] == ["k#0", "k#2", "k#4"]
    claim = ends.claim().wait(5)
    assert (claim.spec, claim.note) == (value.spec, b"said of it")
    claim.fill(out).wait(5)
    assert content(out) == content(value)
    ends.nothing_left()
    with pytest.raises(KeyConsumedError):
        ends.claim().wait(5)


def test_first_blocks_can_be_left_out(ends: Ends) -> None:
    value, out = pages(1, [3, 1, 2]), pages(50, [4])
    ends.here.insert(Key("k"), value, digest=b"d")
    ends.there.drop_select(ends.key(), out, digest=b"d", skip=2, timeout=5).wait(5)
    assert content(out) == content(Pages.of(value.regions, [2]))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_who_asks_before_all_parts_are_there_gets_them_when_they_are(ends: Ends, order: tuple[int, ...]) -> None:
    value, out = pages(1, [3, 1, 2]), pages(50, [4, 9, 0])
    claim = ends.claim(timeout=10)
    for part in order:
        assert not claim.poll()
        ends.insert_part(part, value)
    claim.wait(10).fill(out).wait(5)
    assert content(out) == content(value)
    ends.nothing_left()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_part_that_never_comes_costs_the_claim_and_frees_the_others(ends: Ends, missing: int) -> None:
    value = pages(1, [3, 1, 2])
    inserts = [ends.insert_part(part, value) for part in range(3) if part != missing]
    with pytest.raises(KeyUnknownError):
        ends.claim(timeout=0.3).wait(5)
    if missing == 0:
        ends.there.drop([ends.key()])  # nobody had asked for them yet
    for inserted in inserts:
        eventually(inserted.poll, 5, lambda: "its memory is not given back")
    ends.nothing_left()


def test_a_part_that_was_dropped_costs_the_claim_at_once(ends: Ends) -> None:
    value = pages(1, [3, 1, 2])
    for part in range(3):
        ends.insert_part(part, value)
    ends.here.inner.drop(ends.here.keys(Key("k"))[2:])
    with pytest.raises(KeyDroppedError):
        ends.claim(timeout=60).wait(5)
    ends.nothing_left()


def test_of_many_who_take_it_one_gets_all_of_it(ends: Ends) -> None:
    value = pages(1, [3, 1, 2])
    for turn in range(5):
        claims = [ends.claim(f"k{turn}") for _ in range(6)]
        ends.here.insert(Key(f"k{turn}"), value, digest=b"d")
        for claim in claims:
            eventually(claim.poll, 5, lambda: "a claim goes on and on")
        assert sum(claim.error is None for claim in claims) == 1
        assert all(isinstance(claim.error, KeyMissError) for claim in claims if claim.error is not None)
        out = pages(50, [4, 9, 0])
        next(claim for claim in claims if claim.error is None).result().fill(out).wait(5)
        assert content(out) == content(value)
    ends.nothing_left()


def test_an_insert_of_which_a_part_fails_leaves_no_part(ends: Ends) -> None:
    value = pages(1, [3, 1, 2])
    ends.insert_part(1, value)
    with pytest.raises(DuplicateKeyError):
        ends.here.insert(Key("k"), value, digest=b"d").wait(5)
    eventually(lambda: ends.here.stats()["entries"] == 1, 5, lambda: str(ends.here.stats()))
    with pytest.raises(KeyMissError):
        ends.claim(timeout=0.3).wait(5)


@pytest.mark.parametrize("there", [0, 1, 2])
def test_a_claim_can_be_cancelled_whatever_it_waits_for(ends: Ends, there: int) -> None:
    value = pages(1, [3, 1, 2])
    for part in range(there):
        ends.insert_part(part, value)
    claim = ends.claim(timeout=60)
    time.sleep(0.05)  # until it has what is there
    claim.cancel()
    with pytest.raises(CancelledError):
        claim.wait(5)
    ends.there.drop([ends.key()])
    ends.nothing_left()


def test_parts_of_another_shape_are_refused(ends: Ends) -> None:
    value = pages(1, [3, 1, 2])
    ends.here.insert(Key("k"), value, digest=b"d")
    claim = ends.claim().wait(5)
    for wrong in (pages(50, [1, 2, 3], regions=4), np.zeros(100, dtype=np.uint8)):
        with pytest.raises(SpecMismatchError, match="5 regions"):
            claim.fill(wrong).wait(5)
        with pytest.raises(SpecMismatchError, match="5 regions"):
            ends.here.insert(Key("other"), wrong).wait(5)
    claim.release()
    ends.nothing_left()


def test_a_value_of_a_peer_that_is_no_pages_is_given_back(ends: Ends) -> None:
    for key in ends.here.keys(Key("k")):
        ends.here.inner.insert(key, np.zeros(10, dtype=np.uint8), digest=b"d")
    with pytest.raises(SpecMismatchError, match="are pages"):
        ends.claim().wait(5)
    ends.nothing_left()


def test_a_value_is_there_when_all_parts_are(ends: Ends) -> None:
    value = pages(1, [3, 1, 2])
    ends.here.insert(Key("all"), value)
    ends.insert_part(0, value, "some")
    found = ends.there.contains([ends.key("all"), ends.key("some"), ends.key("none")], timeout=5).wait(5)
    assert found == [True, False, False]
    many = [ends.key(f"{number}") for number in range(1500)]  # more keys of parts than one question may have
    assert ends.there.contains([*many, ends.key("all")], timeout=5).wait(5) == [False] * 1500 + [True]


def test_parts_are_checked_and_pushed_like_any_value(sides: tuple[Side, Side]) -> None:
    checked = [CheckedBuffer(side.buffer, side.endpoint) for side in sides]
    pushing = [
        PushingBuffer(inner, side.endpoint, room, lease=60)
        for inner, side, room in zip(checked, sides, (None, HostPool(1 << 20)), strict=True)
    ]
    here, there = (LayeredBuffer(inner, SIZES) for inner in pushing)
    value, out = pages(1, [3, 1, 2]), pages(50, [4, 9, 0])
    inserts = []
    for key, part in zip(here.keys(Key("k")), here.split(value), strict=True):
        inserts.append(here.inner.insert(key, part, digest=b"d"))
        pushing[0].announce(key, part, b"d", sides[1].endpoint.address)
    for inserted in inserts:
        inserted.wait(10)  # although nobody has asked
    eventually(lambda: there.stats().get("push_taken", 0) == 3, 10, lambda: str(there.stats()))
    there.drop_select(Key("k", sides[0].endpoint.address), out, digest=b"d", timeout=5).wait(5)
    assert content(out) == content(value)
    assert there.stats()["verified"] == 3


def test_one_transfer_of_several_ends_when_all_have() -> None:
    first, second, third = (FakeTransfer(name, obedient=False) for name in "abc")
    whole = all_of([first, second, third], "all")
    first.resolve(1)
    second.fail(TransportError("it broke"))
    assert (whole.poll(), third.cancels) == (False, 1)  # the memory of the third is still in use
    third.fail(CancelledError("cancelled"))
    assert isinstance(whole.error, TransportError)
    assert all_of([], "none").poll()
    over = FakeTransfer("over")
    over.fail(BusyError("before"))
    assert isinstance(all_of([over], "one").error, BusyError)


def test_a_claim_that_is_cancelled_when_its_first_part_comes_leaves_nothing_held() -> None:
    """The first part is granted at the moment of the cancel: what was not asked for yet is not held either."""
    inner = FakeBuffer(obedient=False)
    claim = LayeredBuffer(inner, SIZES).claim(Key("k"))
    claim.cancel()
    inner.grant(0)
    for _, _, _, transfer in inner.claims[1:]:
        assert transfer.cancels
        transfer.fail(CancelledError("cancelled"))
    assert isinstance(claim.error, CancelledError)
    assert inner.given[0].releases == 1


@pytest.mark.parametrize(
    ("layers", "each", "expected"),
    [
        ([1, 1, 1, 1, 1], 2, [2, 2, 1]),
        ([1, 1, 1, 1, 1], 1, [1, 1, 1, 1, 1]),
        ([1, 1, 1], 9, [3]),
        ([4], 1, [1]),
        ([2, 2, 1, 1, 1], 3, [2, 3]),
    ],
)
def test_none_but_the_last_part_has_fewer_layers_than_wanted(layers: list[int], each: int, expected: list[int]) -> None:
    assert part_sizes([("x",) * count for count in layers], each) == expected


def test_a_destination_of_which_one_part_does_not_fit_is_left_alone_and_the_value_is_given_back(ends: Ends) -> None:
    regions = tuple(Region.over(pattern(index, BLOCKS * PAGE), PAGE) for index in range(5))
    other = (*(Region.over(np.zeros(BLOCKS * PAGE, dtype=np.uint8), PAGE) for _ in range(4)),)
    wide = Region.over(np.zeros(BLOCKS * PAGE * 2, dtype=np.uint8), PAGE * 2)
    inserted = ends.here.insert(Key("k"), Pages.of(regions, (1, 2)), digest=b"d")
    with pytest.raises(SpecMismatchError):
        ends.there.drop_select(ends.key(), Pages.of((*other, wide), (1, 2)), digest=b"d").wait(5)
    assert not any(region.rows().any() for region in other)
    inserted.wait(10)
    ends.nothing_left()
