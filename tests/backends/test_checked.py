"""Checksums of values: what differs on arrival is a failure, on pipes' buffers and on stores'."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.control.messages import MAX_NOTE
from kvbridge.errors import (
    CapacityError,
    CorruptedError,
    KeyDroppedError,
    KeyUnknownError,
    KVBridgeError,
    ProtocolError,
    SpecMismatchError,
)
from kvbridge.layers import checked
from kvbridge.layers.checked import CheckedBuffer
from kvbridge.layers.faulty import Fault, Faults, FaultyBuffer
from kvbridge.memory import Pages, Region
from kvbridge.memory.checksums import SUM_BYTES, block_sums
from kvbridge_cpu import CpuBackend, CpuOptions
from kvbridge_files import FilesOptions, FilesStore
from tests.direct import DirectBackend, DirectOptions, fresh
from tests.nodes import eventually, pattern
from tests.sides import Side, two_sides

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCKS, PAGE = 16, 512


@pytest.fixture(params=["cpu", "files"])
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    def make() -> Any:
        if request.param == "cpu":
            return CpuBackend(CpuOptions(capacity="64MiB"))
        return FilesStore(FilesOptions(folder=str(tmp_path / "store")))

    with two_sides(make(), make()) as both:
        yield both


def regions(seed: int) -> tuple[Region, Region]:
    """Two regions whose pages differ in size."""
    return Region.over(pattern(seed, BLOCKS * PAGE), PAGE), Region.over(pattern(seed + 1, BLOCKS * PAGE * 2), PAGE * 2)


def both(sides: tuple[Side, Side], *faults: Fault) -> tuple[CheckedBuffer, CheckedBuffer]:
    """Buffers with checksums; faults strike what the consumer's buffer inside fills."""
    producer, consumer = sides
    faulty = FaultyBuffer(consumer.buffer, select=Faults(*faults, seed=1))
    return CheckedBuffer(producer.buffer, producer.endpoint), CheckedBuffer(faulty, consumer.endpoint)


def bytes_of(pages: Pages) -> list[bytes]:
    return [region.rows()[ids].tobytes() for region, ids in zip(pages.regions, pages.block_ids, strict=True)]


def test_pages_arrive_and_are_verified(sides: tuple[Side, Side]) -> None:
    here, there = both(sides)
    source = Pages.of(regions(1), [3, 1, 2, 9])
    here.insert(Key("k"), source)
    out = Pages.of(regions(50), [5, 0])
    there.drop_select(Key("k", sides[0].endpoint.address), out, skip=2, timeout=5).wait(5)
    assert bytes_of(out) == bytes_of(Pages.of(source.regions, [2, 9]))
    assert there.stats()["verified"] == 1
    assert not there.stats()["corrupted"]


@pytest.mark.parametrize("verb", ["select", "drop_select", "claim"])
def test_damage_is_a_failure_that_says_where(sides: tuple[Side, Side], verb: str) -> None:
    here, there = both(sides, Fault("corrupt"))
    here.insert(Key("k"), Pages.of(regions(1), [3, 1, 2]))
    out = Pages.of(regions(50), [5, 0, 7])
    key = Key("k", sides[0].endpoint.address)
    if verb == "claim":
        filling = there.claim(key, timeout=5).wait(5).fill(out)
    else:
        filling = getattr(there, verb)(key, out, timeout=5)
    with pytest.raises(CorruptedError, match=r"'k' of .*1 of 3 blocks .* the first is block \d"):
        filling.wait(5)
    assert there.stats()["corrupted"] == 1


def test_a_damaged_tensor_is_found(sides: tuple[Side, Side]) -> None:
    here, there = both(sides, Fault("corrupt", at=1))
    key = Key("k", sides[0].endpoint.address)
    value = pattern(1, 3 << 20)
    here.insert(Key("k"), value)
    there.select(key, out := fresh(value.nbytes), timeout=5).wait(5)
    assert np.array_equal(out, value)
    with pytest.raises(CorruptedError):
        there.select(key, out, timeout=5).wait(5)


def test_a_producer_without_checksums_is_refused_at_the_claim(sides: tuple[Side, Side]) -> None:
    _, there = both(sides)
    sides[0].buffer.insert(Key("k"), pattern(1, 100), note=b"something else")
    with pytest.raises(ProtocolError, match="without checksums: both sides need them"):
        there.claim(Key("k", sides[0].endpoint.address), take=False, timeout=5).wait(5)


def test_a_note_of_the_user_travels_too(sides: tuple[Side, Side]) -> None:
    here, there = both(sides)
    here.insert(Key("k"), pattern(1, 100), note=b"mine")
    claim = there.claim(Key("k", sides[0].endpoint.address), timeout=5).wait(5)
    assert claim.note == b"mine"
    claim.fill(fresh(100)).wait(5)


def test_a_wrong_destination_is_refused(sides: tuple[Side, Side]) -> None:
    here, there = both(sides)
    here.insert(Key("k"), pattern(1, 100))
    with pytest.raises(SpecMismatchError):
        there.drop_select(Key("k", sides[0].endpoint.address), fresh(99), timeout=5).wait(5)


def test_more_blocks_than_a_note_has_room_for(sides: tuple[Side, Side]) -> None:
    here, _ = both(sides)
    region = Region.over(np.zeros((checked.SUMS + 1) * 8, dtype=np.uint8), 8)
    with pytest.raises(CapacityError, match=f"{checked.SUMS + 1} blocks: at most {checked.SUMS}"):
        here.insert(Key("k"), Pages.of([region], range(checked.SUMS + 1))).wait(10)
    assert checked.HEAD.size + checked.SUMS * SUM_BYTES <= MAX_NOTE


def test_a_value_that_is_dropped_while_it_is_summed_does_not_come(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "SLICE", 64)
    here, there = both(sides)
    inserted = here.insert(Key("k"), pattern(1, 1 << 20))
    here.drop([Key("k")])
    with pytest.raises(KeyDroppedError):
        inserted.wait(5)
    with pytest.raises(KeyUnknownError):
        there.claim(Key("k", sides[0].endpoint.address), timeout=0.3).wait(5)


def test_cancelling_ends_it_wherever_it_is(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "SLICE", 64)
    here, there = both(sides)
    big = pattern(1, 1 << 20)
    inserted = here.insert(Key("a"), big)
    inserted.cancel()
    with pytest.raises(Exception, match="cancelled"):
        inserted.wait(5)
    here.insert(Key("b"), big, lease=30)
    key = Key("b", sides[0].endpoint.address)
    claim = there.claim(key, timeout=20).wait(20)
    filling = claim.fill(fresh(big.nbytes))
    filling.cancel()
    with pytest.raises(Exception, match="cancelled"):
        filling.wait(5)


def test_closing_ends_what_is_summed(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "SLICE", 64)
    here, _ = both(sides)
    inserted = here.insert(Key("a"), pattern(1, 4 << 20))
    here.close()
    here.close()
    with pytest.raises(Exception, match="closed"):
        inserted.wait(5)
    after = here.insert(Key("b"), pattern(1, 100))
    with pytest.raises(Exception, match="closed"):
        after.wait(5)


@pytest.mark.parametrize("how", ["drop", "close", "cancel"])
def test_a_source_is_its_owners_again_when_nobody_reads_it_and_not_before(how: str) -> None:
    backends = DirectBackend(DirectOptions()), DirectBackend(DirectOptions())
    with two_sides(*backends) as (producer, consumer):
        here = CheckedBuffer(producer.buffer, producer.endpoint)
        there = CheckedBuffer(consumer.buffer, consumer.endpoint)
        reader = backends[1]
        reader.gate.shut_after(3)
        inserted = here.insert(Key("k"), pattern(1, 10_000))
        selected = there.drop_select(Key("k", producer.endpoint.address), fresh(10_000), timeout=10)
        assert reader.gate.reached.wait(5)
        reader.stubborn = True
        {"drop": lambda: here.drop([Key("k")]), "close": here.close, "cancel": inserted.cancel}[how]()
        time.sleep(0.2)
        assert not inserted.poll(), "a consumer's library is in the middle of it"
        reader.gate.open()
        eventually(inserted.poll, 5, lambda: "the insert never ends")
        with contextlib.suppress(KVBridgeError):
            selected.wait(5)


def test_sums_of_a_part_are_the_later_sums_of_the_whole() -> None:
    whole = Pages.of(regions(1), [3, 1, 2, 9])
    later = Pages.of(whole.regions, [2, 9])
    for size in (1, 4000, math.inf):
        sums = b"".join(block_sums(whole, size))
        assert b"".join(block_sums(later, size)) == sums[2 * SUM_BYTES :]
        assert len(sums) == 4 * SUM_BYTES
    assert b"".join(block_sums(Pages.of(whole.regions, [3, 1, 9, 2]), 1)) != sums
