"""Places come from peers: whatever is in them ends as an error of kvbridge, before the library sees it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvbridge.control.messages import MAX_MESSAGE_BYTES
from kvbridge.errors import CapacityError, KVBridgeError, ProtocolError
from kvbridge.memory.places import MAX_BLOCKS, MAX_BYTES, Place, decode_place, digest_of, encode_ids
from kvbridge_nixl import NixlBackend, NixlOptions
from kvbridge_nixl.card import decode_card
from kvbridge_nixl.memory import bases
from kvbridge_nixl.transfer import pair

NAME = "a" * 32
END = 1 << 64
BIG = st.integers(min_value=0, max_value=END - 1)


def _place(rows: Any = ((4096, 512, 0, 512, 16),), blocks: Any = ((3, 1, 2),), **changes: Any) -> Place:
    fields = {
        "owner": NAME,
        "kind": "DRAM",
        "metadata": b"meta",
        "rows": np.array(rows, dtype=np.uint64).reshape(-1, 5).tobytes(),
        "which": tuple(range(len(blocks))),
        "ids": encode_ids([np.array(one, dtype=np.int64) for one in blocks]),
        "skip": 0,
        **changes,
    }
    return Place(digest=digest_of(fields["metadata"], fields["rows"]), **fields)


class Side:
    """The local side of a transfer: a region of 16 blocks of 512 bytes, and some of its blocks."""

    def __init__(self, *blocks: int) -> None:
        self.table = self
        self.rows = np.array([(8192, 512, 0, 512, 16)], dtype=np.uint64)
        self.bases = bases(self.rows)
        self.which = (0,)
        self.ids = (np.array(blocks, dtype=np.int64),)


def _take(descriptor: bytes) -> None:
    """Do with a place what a transfer does before it calls the library."""
    pair(Side(0, 1, 2), decode_place(descriptor, NAME), 0)  # type: ignore[arg-type]


def test_a_place_comes_as_it_was() -> None:
    place = _place()
    assert decode_place(place.encode(), NAME) == place
    _take(place.encode())


@settings(max_examples=300)
@given(st.data())
def test_a_place_that_was_changed_or_cut_raises_nothing_else(data: st.DataObject) -> None:
    descriptor = bytearray(_place().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(descriptor) - 1))
        descriptor[at] = data.draw(st.integers(0, 255))
    del descriptor[data.draw(st.integers(0, len(descriptor))) :]
    try:
        _take(bytes(descriptor))
    except KVBridgeError:
        return


ROWS = st.lists(st.tuples(BIG, BIG, BIG, BIG, BIG) | st.tuples(*[st.integers(0, 5000)] * 5), max_size=4)
ARRAYS = st.binary(max_size=40) | st.sampled_from(
    [b"i", b"r", b"i" + b"\xff" * 4, b"r" + b"\xff" * 8, b"r" + b"\xff" * 800]
)


@settings(max_examples=500)
@given(
    rows=ROWS,
    which=st.lists(st.integers(0, 70_000), max_size=4),
    uses=st.lists(st.integers(0, 70_000), max_size=4),
    arrays=st.lists(ARRAYS, max_size=4),
    skip=BIG,
    agent=st.sampled_from([NAME, "", "b" * 32]),
)
@example(rows=[(4096, 512, 0, (1 << 64) - 512, 2)], which=[0], uses=[0], arrays=[b"i"], skip=0, agent=NAME)
@example(rows=[(4096, 512, 0, 1 << 63, 3)], which=[0], uses=[0], arrays=[b"i"], skip=0, agent=NAME)
@example(rows=[(4096, 0, 0, 0, 1 << 60)], which=[0], uses=[0], arrays=[b"i"], skip=0, agent=NAME)
@example(rows=[(4096, 512, 0, 512, 1 << 40)], which=[0], uses=[0], arrays=[b"i"], skip=0, agent=NAME)
def test_absurd_fields_raise_nothing_else(rows: Any, which: Any, uses: Any, arrays: Any, skip: int, agent: str) -> None:
    place = _place(rows, which=tuple(which), ids=(tuple(uses), tuple(arrays)), skip=skip, owner=agent)
    try:
        found = decode_place(msgspec.msgpack.encode(place), NAME)
    except KVBridgeError:
        return
    for address, nbytes, _, stride, count in found.table().tolist():
        assert nbytes > 0
        assert stride >= nbytes
        assert address + (count - 1) * stride + nbytes <= END
    assert sum(len(one) for one in found.blocks()[:1]) <= MAX_BLOCKS
    try:
        _take(msgspec.msgpack.encode(place))
    except KVBridgeError:
        return
    assert found.blocks()[0].max() < found.table()[found.which[0]][4]


@given(st.binary(max_size=400))
def test_noise_is_no_place(noise: bytes) -> None:
    with pytest.raises(ProtocolError):
        _take(noise)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (_place(owner="b" * 32), "names the owner"),
        (msgspec.structs.replace(_place(), metadata=b"mete"), "changed on their way"),
        (msgspec.structs.replace(_place(), digest=bytes(16)), "changed on their way"),
        (_place(rows=[(4096, 512, 0, 512, 0)]), "0 blocks"),
        (_place(which=(1,)), "a row"),
        (_place(ids=((0,), (b"i123",))), "cut"),
        (_place(ids=((0,), (b"r1234",))), "cut"),
        (_place(ids=((1,), (b"i",))), "for each of its regions"),
        (_place(ids=((0,), (b"r" + np.array([0, 1 << 31], dtype=np.uint32).tobytes(),))), "at most"),
        (_place(ids=((0,), (b"i" + np.array([1, 2, 16], dtype=np.uint32).tobytes(),))), "beyond the end"),
        (_place(ids=((0,), (b"i",))), "named 0 blocks of 512 bytes for 3 of 512"),
        (_place(which=(), ids=((), ())), "named 0 regions"),
    ],
)
def test_what_is_wrong_with_a_place_is_said(place: Place, expected: str) -> None:
    with pytest.raises(ProtocolError, match=expected):
        _take(msgspec.msgpack.encode(place))


def test_the_library_is_not_called_for_nonsense() -> None:
    backend = NixlBackend(NixlOptions())
    link = mock.Mock()
    link.peer.card = msgspec.structs.replace(decode_card(backend.card()), name=NAME).encode()
    held = backend.hold(np.zeros(100, dtype=np.uint8))
    mover = backend.movers.get()
    lib, mover.lib = mover.lib, mock.Mock(side_effect=AssertionError("the library was called"))
    for descriptor in (b"", b"\xff" * 50, _place(owner="b" * 32).encode(), _place(which=(9,)).encode()):
        with pytest.raises(ProtocolError):
            held.write(link, descriptor)
    assert mover.lib.mock_calls == []
    mover.lib = lib
    held.release()
    backend.close()


IDS = st.lists(st.integers(0, 200), max_size=60) | st.builds(
    lambda runs: [block for start, length in runs for block in range(start, start + length)],
    st.lists(st.tuples(st.integers(0, 1 << 31), st.integers(1, 30)), max_size=10),
)


@given(st.lists(IDS, max_size=5), st.lists(st.integers(0, 4), max_size=8), st.integers(0, 70))
def test_ids_come_as_they_were(arrays: list[list[int]], uses: list[int], skip: int) -> None:
    distinct = [np.array(one, dtype=np.int64) for one in arrays]
    ids = [distinct[use % len(distinct)] for use in uses] if distinct else []
    place = _place(ids=encode_ids(ids), which=(0,) * len(ids))
    found = decode_place(place.encode(), NAME)
    assert [one.tolist() for one in found.blocks()] == [one.tolist() for one in ids]
    assert [one.tolist() for one in found.less(skip).blocks()] == [one.tolist()[skip:] for one in ids]
    assert len(place.ids[1]) <= len(distinct)


def test_runs_are_short_on_the_wire() -> None:
    assert len(_place(blocks=(range(100_000),)).encode()) < 500


def test_too_many_scattered_blocks_are_refused_with_the_limit() -> None:
    scattered = np.random.default_rng(1).permutation(100_000)
    with pytest.raises(CapacityError, match=str(MAX_BYTES)):
        _place(blocks=(scattered,)).encode()
    with pytest.raises(CapacityError, match=str(MAX_BLOCKS)):
        _place(blocks=(range(MAX_BLOCKS + 1),)).encode()


def test_the_description_fits_into_a_message() -> None:
    assert MAX_BYTES < MAX_MESSAGE_BYTES // 4
