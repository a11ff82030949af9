"""`CheckedBuffer`: any LookupBuffer, with a checksum of each block that is verified where the value arrives.

The producer computes them before the value can be asked for; they travel in the value's note. A consumer whose bytes
differ has a failed transfer, and no bytes that count.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any

from kvbridge.abc.buffer import Claim
from kvbridge.control.messages import MAX_NOTE
from kvbridge.errors import CapacityError, CorruptedError, KeyDroppedError, KVBridgeError, ProtocolError
from kvbridge.layers.passing_buffer import WorkingBuffer
from kvbridge.memory.checksums import SUM_BYTES, block_sums, new_hash
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbridge.abc.buffer import Key, LookupBuffer
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.memory import Payload, Spec

SLICE = 1 << 20
"""Bytes that are read between two looks at the sockets; about 0.2 ms."""

HEAD = struct.Struct("<4sI")
MARK = b"kvx3"
SUMS = (MAX_NOTE - HEAD.size) // SUM_BYTES
"""Checksums of one value at most."""


class CheckedBuffer(WorkingBuffer):
    """A buffer whose values are verified. Both sides need one. Close it: it closes the one inside.

    Args:
        inner: The buffer.
        endpoint: Whose thread computes checksums, in slices between its other work.

    Raises:
        ConfigError: The library for checksums is missing.
    """

    def __init__(self, inner: LookupBuffer, endpoint: Endpoint) -> None:
        new_hash()
        self._summing: set[_Summing] = set()
        super().__init__(inner, endpoint)

    def insert(
        self, key: Key, payload: Payload, *, digest: bytes = b"", lease: float = 0.0, note: bytes = b""
    ) -> Transfer[None]:
        """Make a value available, with its checksums. See `LookupBuffer.insert`.

        Further failures of the transfer: `CapacityError`: more blocks than one note has room for checksums.
        """
        current: list[Transfer[None] | _Summing] = []

        def stop() -> None:
            if isinstance(current[-1], Transfer):
                current[-1].cancel()
            else:
                summing.stop(cancelled(transfer.what))

        def summed(sums: bytes) -> None:
            head = HEAD.pack(MARK, len(sums) // SUM_BYTES)
            if len(head) + len(sums) + len(note) > MAX_NOTE:
                raise CapacityError(
                    f"a value of {len(sums) // SUM_BYTES} blocks: at most {SUMS} can have a checksum; use larger "
                    "blocks, or turn checksums off"
                )
            inserted = self.inner.insert(key, payload, digest=digest, lease=lease, note=head + sums + note)
            current.append(inserted)
            inserted.on_done(lambda done: done.hand_on(transfer))

        transfer: Transfer[None] = Transfer(f"inserting {key.id!r}", lambda: self._endpoint.call_soon(stop))
        summing = _Summing(payload, transfer, summed, key.id)
        current.append(summing)
        self._start(summing)
        return transfer

    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        """Ask the producer to hold a value. See `LookupBuffer.claim`.

        Further failures of the transfer: `ProtocolError`: the value came without checksums.
        """
        claimed = self.inner.claim(key, digest=digest, take=take, timeout=timeout)
        transfer: Transfer[Claim] = Transfer(claimed.what, claimed.cancel)

        def came(done: Transfer[Claim]) -> None:
            if done.error is not None:
                done.hand_on(transfer)
                return
            try:
                transfer.resolve(_CheckedClaim(self, done.result(), f"{key.id!r} of {key.home or 'this process'}"))
            except KVBridgeError as error:
                done.result().release()
                transfer.fail(error)

        claimed.on_done(came)
        return transfer

    def verify(self, filled: Transfer[None], out: Payload, expected: bytes, what: str) -> Transfer[None]:
        """Compare what a transfer filled with the checksums of its producer. For claims."""
        current: list[_Summing] = []
        unwanted: list[bool] = []

        def cancel() -> None:
            unwanted.append(True)
            filled.cancel()
            if current:
                self._endpoint.call_soon(lambda: current[0].stop(cancelled(transfer.what)))

        def compare(found: bytes) -> None:
            wrong = _wrong(found, expected)
            if wrong:
                self.counters["corrupted"] += 1
                raise CorruptedError(
                    f"the value {what} did not arrive as it was sent: {len(wrong)} of {len(found) // SUM_BYTES} blocks "
                    f"have another checksum, the first is block {wrong[0]} of those that were moved; "
                    "the transport or a memory is damaged"
                )
            self.counters["verified"] += 1
            transfer.resolve(None)

        def landed(done: Transfer[None]) -> None:
            if done.error is not None:
                done.hand_on(transfer)
                return
            if unwanted:  # it was filled all the same
                transfer.fail(cancelled(transfer.what))
                return
            current.append(_Summing(out, transfer, compare))
            self._start(current[0])

        transfer: Transfer[None] = Transfer(filled.what, cancel)
        filled.on_done(landed)
        return transfer

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values, those included whose checksums are not known yet. See `LookupBuffer.drop`."""
        names = {key.id for key in keys}

        def drop() -> None:
            for summing in list(self._summing):
                if summing.key in names:
                    summing.stop(KeyDroppedError(f"the value of {summing.key!r} was dropped: nobody wanted it"))
            self.inner.drop(keys)

        with contextlib.suppress(KVBridgeError):  # best effort: the endpoint may be closing
            self._endpoint.call_soon(drop)

    def stats(self) -> Mapping[str, float]:
        """Return the numbers of the buffer inside, and how many values were verified, and found corrupted."""
        return {**self.inner.stats(), "verified": self.counters["verified"], "corrupted": self.counters["corrupted"]}

    def give_up(self, error: KVBridgeError) -> None:
        """Compute no checksums any more."""
        for summing in list(self._summing):
            summing.stop(error)

    def _start(self, summing: _Summing) -> None:
        def begin() -> None:
            if self.closed is not None:
                summing.stop(self.closed)
                return
            self._summing.add(summing)
            summing.transfer.on_done(lambda _: self._summing.discard(summing))
            if summing.step() is not None:
                self._endpoint.move(summing.step)

        try:
            self._endpoint.call_now(begin)
        except KVBridgeError as error:
            summing.transfer.fail(error)


class _CheckedClaim(Claim):
    """A claim whose destination is verified once it is filled."""

    def __init__(self, buffer: CheckedBuffer, inner: Claim, what: str) -> None:
        self.spec: Spec = inner.spec
        self._buffer = buffer
        self._inner = inner
        self._what = what
        self._sums, self.note = _split(inner.note, what)

    @property
    def lost(self) -> KVBridgeError | None:
        return self._inner.lost

    def fill(self, out: Payload, skip: int = 0) -> Transfer[None]:
        filled = self._inner.fill(out, skip)
        return self._buffer.verify(filled, out, self._sums[skip * SUM_BYTES :], self._what)

    def release(self) -> None:
        self._inner.release()


class _Summing:
    """Checksums of one payload, slice by slice, for a transfer. All methods belong to the endpoint's thread."""

    def __init__(
        self, payload: Payload, transfer: Transfer[Any], summed: Callable[[bytes], None], key: str = ""
    ) -> None:
        self.key = key
        self.transfer = transfer
        self._parts = block_sums(payload, SLICE)
        self._sums = bytearray()
        self._summed: Callable[[bytes], None] | None = summed

    def step(self) -> bool | None:
        """Read a slice."""
        if self._summed is None:
            return None
        try:
            part = next(self._parts, None)
            if part is not None:
                self._sums += part
                return True
            summed, self._summed = self._summed, None
            summed(bytes(self._sums))
        except KVBridgeError as error:
            self._summed = None
            self.transfer.fail(error)
        return None

    def stop(self, error: KVBridgeError) -> None:
        """End, unless all is read: what became of it then has its own end."""
        if self._summed is not None:
            self._summed = None
            self.transfer.fail(error)


def _split(note: bytes, what: str) -> tuple[bytes, bytes]:
    """Take the checksums and what else there is from a note."""
    if len(note) >= HEAD.size:
        mark, count = HEAD.unpack_from(note)
        end = HEAD.size + count * SUM_BYTES
        if mark == MARK and end <= len(note):
            return note[HEAD.size : end], note[end:]
    raise ProtocolError(f"the value {what} came without checksums: both sides need them, or neither")


def _wrong(found: bytes, expected: bytes) -> list[int]:
    """List the blocks whose checksums differ."""
    if len(found) != len(expected):
        return list(range(max(len(found), len(expected)) // SUM_BYTES))
    return [
        start // SUM_BYTES
        for start in range(0, len(found), SUM_BYTES)
        if found[start : start + SUM_BYTES] != expected[start : start + SUM_BYTES]
    ]
