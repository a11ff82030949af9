"""Values that the tests hand over."""

from __future__ import annotations

from kvbridge.conformance.values import Geometry, PagesValue

MIB = 1 << 20
SOON = 20.0

CACHE = Geometry(page_bytes=(64 << 10,), num_blocks=600)
LARGE = PagesValue(seed=1, ids=tuple(range(0, 512, 2)), geometry=CACHE)
"""16 MiB, scattered."""

SMALL = PagesValue(seed=2, ids=(520, 530, 522), geometry=CACHE)
TINY = PagesValue(seed=3, ids=(5, 9, 6), geometry=Geometry(page_bytes=(16 << 10,), num_blocks=16))
TINY_BYTES = 3 * (16 << 10)
