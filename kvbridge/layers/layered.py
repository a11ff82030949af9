"""`LayeredBuffer`: any LookupBuffer, whose values are kept in parts: some layers of a request's KV each.

The part from region `n` on (a layer is a region of its own, unless an engine lays the layers of a block side by side)
lies under `id#n`, a value like any other: it is inserted as soon as it was computed, and moves while the next layers
are still computed. Who takes a value takes the first part, and then all the others: it is his as a whole, or it fails
as a whole.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvbridge.abc.buffer import Claim, Key
from kvbridge.buffers.chain import all_of
from kvbridge.control.messages import MAX_KEYS
from kvbridge.errors import SpecMismatchError
from kvbridge.layers.passing_buffer import PassingBuffer
from kvbridge.memory.pages import Pages, PagesSpec
from kvbridge.memory.payload import check_destination
from kvbridge.transfer import Transfer, failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.abc.buffer import LookupBuffer
    from kvbridge.errors import KVBridgeError
    from kvbridge.memory import Payload

LEAST = 0.05
"""Seconds that the parts of a value have at least, where its first one has used up the time."""


def part_sizes(layers: Sequence[Sequence[str]], each: int) -> list[int]:
    """Say how many regions each part has, so that none but the last has fewer than `each` layers.

    Args:
        layers: For each region the names of its layers.
        each: Layers of a part, at least 1.
    """
    sizes: list[int] = []
    count = each
    for names in layers:
        if count >= each:
            sizes.append(0)
            count = 0
        sizes[-1] += 1
        count += len(names)
    return sizes


class LayeredBuffer(PassingBuffer):
    """A buffer of `Pages` in parts. Both ends need the same sizes. Any thread may call any method.

    Args:
        inner: The buffer for the parts. Closing this one closes it.
        sizes: How many regions each part has.
    """

    def __init__(self, inner: LookupBuffer, sizes: Sequence[int]) -> None:
        super().__init__(inner)
        self.sizes = tuple(sizes)
        self._firsts = [sum(sizes[:index]) for index in range(len(sizes))]

    def keys(self, key: Key) -> list[Key]:
        """Return the keys of a value's parts."""
        return [Key(f"{key.id}#{first}", key.home, key.generation) for first in self._firsts]

    def split(self, payload: Payload) -> list[Pages]:
        """Return the parts of a payload, with the same memory.

        Raises:
            SpecMismatchError: It is not `Pages` of so many regions.
        """
        if not isinstance(payload, Pages) or len(payload.regions) != sum(self.sizes):
            found = f"pages of {len(payload.regions)} regions" if isinstance(payload, Pages) else "a tensor"
            raise SpecMismatchError(f"a value in parts is pages of {sum(self.sizes)} regions, found {found}")
        ends = [first + size for first, size in zip(self._firsts, self.sizes, strict=True)]
        return [
            Pages(payload.regions[first:end], payload.block_ids[first:end])
            for first, end in zip(self._firsts, ends, strict=True)
        ]

    def insert(
        self, key: Key, payload: Payload, *, digest: bytes = b"", lease: float = 0.0, note: bytes = b""
    ) -> Transfer[None]:
        """Insert all parts. See `LookupBuffer.insert`; where one fails the others are given up."""
        try:
            parts = self.split(payload)
        except SpecMismatchError as error:
            return failed(f"inserting {key.id!r}", error)
        notes = [note] + [b""] * (len(parts) - 1)
        inserts = [
            self.inner.insert(one, part, digest=digest, lease=lease, note=said)
            for one, part, said in zip(self.keys(key), parts, notes, strict=True)
        ]
        return self.whole(key, inserts)

    def whole(self, key: Key, inserts: Sequence[Transfer[None]]) -> Transfer[None]:
        """Make one insert of those of all parts: where one fails the others are given up, also those that are done."""
        whole = all_of(inserts, f"inserting {key.id!r}")
        keys = self.keys(key)

        def give_up(end: Transfer[None]) -> None:
            if end.error is not None:
                self.inner.drop([one for one, insert in zip(keys, inserts, strict=True) if insert.error is None])

        whole.on_done(give_up)
        return whole

    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        """Ask for the first part and, when it is granted, for the others. See `LookupBuffer.claim`."""

        def ask(one: Key, left: float) -> Transfer[Claim]:
            return self.inner.claim(one, digest=digest, take=take, timeout=left)

        return _Asking(self, key, ask, timeout).whole

    def contains(self, keys: Sequence[Key], *, timeout: float = 0.0) -> Transfer[list[bool]]:
        """Say which keys have all of their parts. See `LookupBuffer.contains`."""
        found: Transfer[list[bool]] = Transfer("asking which keys exist")
        every = [part for key in keys for part in self.keys(key)]
        several = [every[start : start + MAX_KEYS] for start in range(0, len(every), MAX_KEYS)]
        answers = [self.inner.contains(some, timeout=timeout) for some in several]

        def answered(end: Transfer[None]) -> None:
            if end.error is not None:
                found.fail(end.error)
                return
            there = [one for answer in answers for one in answer.result()]
            count = len(self.sizes)
            found.resolve([all(there[start : start + count]) for start in range(0, len(there), count)])

        all_of(answers, found.what).on_done(answered)
        return found

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up all parts. See `LookupBuffer.drop`."""
        self.inner.drop([part for key in keys for part in self.keys(key)])


class _Asking:
    """One claim: its first part, then all others."""

    def __init__(
        self, buffer: LayeredBuffer, key: Key, ask: Callable[[Key, float], Transfer[Claim]], timeout: float
    ) -> None:
        self.whole: Transfer[Claim] = Transfer(f"claiming {key.id!r}", self._cancel)
        self._buffer = buffer
        self._key = key
        self._ask = ask
        self._until = time.monotonic() + timeout if timeout else 0.0
        self._unwanted = False
        self._others = buffer.keys(key)
        self._asked = [ask(self._others.pop(0), timeout)]
        self._asked[0].on_done(self._first_over)

    def _cancel(self) -> None:
        self._unwanted = True
        for one in list(self._asked):
            one.cancel()

    def _first_over(self, done: Transfer[Claim]) -> None:
        left = max(LEAST, self._until - time.monotonic()) if self._until else 0.0
        if done.error is None:
            self._asked.extend(self._ask(one, left) for one in self._others)
        if self._unwanted:
            self._cancel()
        all_of(self._asked, self.whole.what).on_done(self._over)

    def _over(self, end: Transfer[None]) -> None:
        error = end.error
        claims = [one.result() for one in self._asked if one.error is None]
        if error is None:
            try:
                self.whole.resolve(LayeredClaim(self._buffer, self._key.id, claims))
            except SpecMismatchError as mismatch:
                error = mismatch
        if error is not None:
            for claim in claims:
                claim.release()
            self.whole.fail(error)


class LayeredClaim(Claim):
    """All parts of a value.

    Raises:
        SpecMismatchError: One is not pages.
    """

    def __init__(self, buffer: LayeredBuffer, name: str, claims: Sequence[Claim]) -> None:
        specs = [claim.spec for claim in claims]
        pages = [spec for spec in specs if isinstance(spec, PagesSpec)]
        if len(pages) != len(specs):
            raise SpecMismatchError(f"the parts of {name!r} are pages, found {specs}")
        self.spec = PagesSpec(
            page_bytes=tuple(size for spec in pages for size in spec.page_bytes),
            counts=tuple(count for spec in pages for count in spec.counts),
        )
        self.note = claims[0].note
        self._buffer = buffer
        self._what = f"filling from {name!r}"
        self._claims = claims

    @property
    def lost(self) -> KVBridgeError | None:
        """Why the first part that is lost is. See `Claim.lost`."""
        return next((claim.lost for claim in self._claims if claim.lost is not None), None)

    def fill(self, out: Payload, skip: int = 0) -> Transfer[None]:
        """Fill from all parts; where one fails the others are cancelled. See `Claim.fill`."""
        try:
            check_destination(self.spec, out, skip)
            parts = self._buffer.split(out)
        except SpecMismatchError as error:
            return failed(self._what, error)
        fills = [claim.fill(part, skip) for claim, part in zip(self._claims, parts, strict=True)]
        return all_of(fills, self._what)

    def release(self) -> None:
        """Give all parts back."""
        for claim in self._claims:
            claim.release()
