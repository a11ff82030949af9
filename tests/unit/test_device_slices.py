"""Copies between a device's pages and packed host memory, with torch's host memory in place of a GPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvbridge.errors import UnsupportedError
from kvbridge.memory import Pages
from kvbridge.memory.copying import slices
from kvbridge.memory.cuda import device_slices
from tests.fake_gpu import FakeGpu
from tests.nodes import pattern

SIZES = (64, 128)
BLOCKS = 20
IDS = [7, 3, 4, 5, 19, 0, 11]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch, SIZES, BLOCKS)


def packed(pages: Pages) -> np.ndarray[Any, Any]:
    out = np.zeros(pages.nbytes, dtype=np.uint8)
    for part in slices(pages, 1 << 20):
        part.gather(out)
    return out


@pytest.mark.parametrize("most", [1, 200, 1 << 20])
def test_pages_are_gathered_in_packed_order(gpu: FakeGpu, most: int) -> None:
    out = np.zeros(len(IDS) * sum(SIZES), dtype=np.uint8)
    parts = list(device_slices(Pages.of(gpu.regions(), IDS), most))
    for part in parts:
        part.gather(out)
    assert (out == packed(Pages.of(gpu.seen(), IDS))).all()
    assert sum(part.nbytes for part in parts) == out.nbytes
    assert max(part.nbytes for part in parts) <= max(most, *SIZES)


@pytest.mark.parametrize("skip", [0, 3])
def test_pages_are_scattered_without_those_that_are_left_out(gpu: FakeGpu, skip: int) -> None:
    before = [one.copy() for one in gpu.memory]
    value = pattern(9, len(IDS) * sum(SIZES))
    out = IDS[skip:]
    for part in device_slices(Pages.of(gpu.regions(), out), 200, skip):
        part.scatter(value)
    rows = gpu.seen()
    start = 0
    for region, size, old in zip(rows, SIZES, before, strict=True):
        wanted = value[start : start + len(IDS) * size].reshape(len(IDS), size)
        start += wanted.size
        found, kept = region.rows().view(np.uint8), old.reshape(BLOCKS, 2 * size)[:, :size]
        assert (found[out] == wanted[skip:]).all()
        others = [block for block in range(BLOCKS) if block not in out]
        assert (found[others] == kept[others]).all()


def test_pages_of_both_kinds_are_refused(gpu: FakeGpu) -> None:
    mixed = Pages.of((gpu.regions()[0], gpu.seen()[1]), IDS)
    with pytest.raises(UnsupportedError, match="others are not"):
        list(device_slices(mixed, 200))
