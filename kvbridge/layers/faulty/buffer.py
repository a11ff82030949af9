"""`FaultyBuffer`: any LookupBuffer, with faults between its user and the buffer. An event is a call."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from kvbridge.abc import Claim, Key, LookupBuffer
from kvbridge.errors import KeyUnknownError, KVBridgeError, TransportError
from kvbridge.layers.faulty.payload import copy_of, scratch, spoil, spoil_when_filled
from kvbridge.layers.faulty.plan import Event, Faults, Kind
from kvbridge.layers.passing_buffer import PassingBuffer
from kvbridge.memory import spec_of
from kvbridge.transfer import Transfer, failed

if TYPE_CHECKING:
    from kvbridge.memory import Payload, Spec

T = TypeVar("T")

CALL_KINDS: tuple[Kind, ...] = ("delay", "drop", "duplicate", "truncate", "corrupt", "fail", "kill")


class FaultyBuffer(PassingBuffer):
    """A buffer with faults. Close it: it closes the one inside.

    - "delay" keeps the caller; "fail" fails the transfer, and the buffer inside is not asked.
    - "drop": an insert is done although nothing was stored; a key that is asked for is unknown.
    - "duplicate" makes the call twice; what comes of the second one is forgotten.
    - "truncate" and "corrupt": an insert stores a changed copy; a destination is spoilt once it is filled. Copies of
      `Pages` lie in memory that no backend was told of.

    Args:
        inner: The buffer.
        insert: Strikes calls of `insert`.
        select: Strikes calls of `claim`, `select` and `drop_select`.

    Raises:
        ConfigError: A plan has a fault that cannot happen to a call.
    """

    def __init__(self, inner: LookupBuffer, *, insert: Faults | None = None, select: Faults | None = None) -> None:
        super().__init__(inner)
        self._inserts = insert or Faults()
        self._selects = select or Faults()
        self._inserts.check(CALL_KINDS, "a call of a buffer")
        self._selects.check(CALL_KINDS, "a call of a buffer")

    def insert(
        self, key: Key, payload: Payload, *, digest: bytes = b"", lease: float = 0.0, note: bytes = b""
    ) -> Transfer[None]:
        """Make a value available, with faults. See `LookupBuffer.insert`."""
        event = self._inserts.take()
        event.stall()
        if event.struck("fail"):
            return failed(f"inserting {key.id!r}", _injected(event))
        if event.struck("drop"):
            done: Transfer[None] = Transfer(f"inserting {key.id!r}")
            done.resolve(None)
            return done
        twin: Payload = None
        try:
            if _spoils(event):
                payload = copy_of(payload)
                spoil(payload, event)
            if event.struck("duplicate"):
                twin = copy_of(payload)
        except KVBridgeError as error:
            return failed(f"inserting {key.id!r}", error)
        inserted = self.inner.insert(key, payload, digest=digest, lease=lease, note=note)
        if twin is not None:
            self.inner.insert(key, twin, digest=digest, lease=lease, note=note)
        return inserted

    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        """Ask the producer to hold a value, with faults. See `LookupBuffer.claim`."""
        event = self._selects.take()
        event.stall()
        error = _refused(event, key)
        if error is not None:
            return failed(f"claiming {key.id!r}", error)
        claimed = self.inner.claim(key, digest=digest, take=take, timeout=timeout)
        if event.struck("duplicate"):
            self.inner.claim(key, digest=digest, take=take, timeout=timeout).on_done(_let_go)
        return _spoilt_claim(claimed, event) if _spoils(event) else claimed

    def drop_select(
        self, key: Key, out: Payload, *, digest: bytes = b"", skip: int = 0, timeout: float = 0.0
    ) -> Transfer[None]:
        """Take a value into `out`, with faults. See `LookupBuffer.drop_select`."""
        return self._select(key, out, digest=digest, skip=skip, timeout=timeout, take=True)

    def select(
        self, key: Key, out: Payload, *, digest: bytes = b"", skip: int = 0, timeout: float = 0.0
    ) -> Transfer[None]:
        """Copy a value into `out`, with faults. See `LookupBuffer.select`."""
        return self._select(key, out, digest=digest, skip=skip, timeout=timeout, take=False)

    def _select(
        self, key: Key, out: Payload, *, digest: bytes, skip: int, timeout: float, take: bool
    ) -> Transfer[None]:
        event = self._selects.take()
        event.stall()
        error = _refused(event, key)
        if error is not None:
            return failed(f"claiming {key.id!r}", error)
        call = self.inner.drop_select if take else self.inner.select
        filled = call(key, out, digest=digest, skip=skip, timeout=timeout)
        if event.struck("duplicate"):
            with contextlib.suppress(KVBridgeError):  # the caller has the transfer of the first
                call(key, scratch(spec_of(out)), digest=digest, skip=skip, timeout=timeout)
        return spoil_when_filled(filled, out, event) if _spoils(event) else filled


class _SpoiltClaim(Claim):
    """A claim whose destination is spoilt once it is filled."""

    def __init__(self, inner: Claim, event: Event) -> None:
        self.spec: Spec = inner.spec
        self.note = inner.note
        self._inner = inner
        self._event = event

    @property
    def lost(self) -> KVBridgeError | None:
        return self._inner.lost

    def fill(self, out: Payload, skip: int = 0) -> Transfer[None]:
        return spoil_when_filled(self._inner.fill(out, skip), out, self._event)

    def release(self) -> None:
        self._inner.release()


def _spoilt_claim(claimed: Transfer[Claim], event: Event) -> Transfer[Claim]:
    transfer: Transfer[Claim] = Transfer(claimed.what, claimed.cancel)

    def came(done: Transfer[Claim]) -> None:
        if done.error is None:
            transfer.resolve(_SpoiltClaim(done.result(), event))
        else:
            done.hand_on(transfer)

    claimed.on_done(came)
    return transfer


def _let_go(claimed: Transfer[Claim]) -> None:
    if claimed.error is None:
        claimed.result().release()


def _spoils(event: Event) -> bool:
    return event.struck("truncate") or event.struck("corrupt")


def _refused(event: Event, key: Key) -> KVBridgeError | None:
    if event.struck("fail"):
        return _injected(event)
    return KeyUnknownError(f"no value arrived under {key.id!r}: fault injected") if event.struck("drop") else None


def _injected(event: Event) -> TransportError:
    return TransportError(f"fault injected at call {event.index}")
