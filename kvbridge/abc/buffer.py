"""`LookupBuffer`: values by key, exactly once. It turns the order of arrival into lookup.

Prefill and decode do not run requests in the same order. A producer inserts A, B, C; a consumer selects C, A, B, and
asks for C before it was inserted. Every operation returns a `Transfer`; nothing blocks without a deadline.

Guarantees:
- `insert` is finished when the source memory may be reused. A second insert of a live key is refused.
- A value is taken once. A taken, expired or dropped key leaves a tombstone: asking again fails at once.
- A value carries the *digest* of what it is KV of. Who asks with another digest gets `BindingMismatchError`.
- A value waits for its consumer as long as its lease. Leases end by themselves, without traffic.
- Bytes read after the lease ended do not count: `LeaseExpiredError`, never a mix.

Threads: any thread may call any method. Transfers finish on the endpoint's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import msgspec

from kvbridge.buffers.chain import fill_claim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbridge.errors import KVBridgeError
    from kvbridge.memory import Payload, Spec
    from kvbridge.transfer import Transfer


class Key(msgspec.Struct, frozen=True):
    """The name of a value.

    Attributes:
        id: An id that is never used twice, such as a UUID; 1 to 256 ASCII characters.
        home: Address of the endpoint where the value lives; empty for this endpoint. Ignored by stores.
        generation: The incarnation of that endpoint; 0 for any.
    """

    id: str
    home: str = ""
    generation: int = 0


class Claim(ABC):
    """A value that its producer holds for you: the first half of a select.

    The claim is renewed in the background until `fill` or `release`, or until the peer is lost.
    """

    spec: Spec
    """What the value is."""

    note: bytes = b""
    """What its producer said of it."""

    @property
    def lost(self) -> KVBridgeError | None:
        """Why `fill` would fail by now, where that is known: the producer is gone, say. Any thread. Never blocks."""
        return None

    @abstractmethod
    def fill(self, out: Payload, skip: int = 0) -> Transfer[None]:
        """Move the value into `out`, once.

        Args:
            out: Destination of the value's shape. It belongs to the transfer until that finishes. On a GPU all work
                that was queued on it is done.
            skip: For `Pages`: leave out the first blocks of every region.

        Returns:
            A transfer. Its failures: `LeaseExpiredError`, `PeerLostError`, `TransportError`, `SpecMismatchError`,
            `TransferTimeoutError`, `CancelledError`, `BusyError` (filled or released before).
        """

    @abstractmethod
    def release(self) -> None:
        """Give the claim back unused. Idempotent. A value that was to be taken is then taken: nobody else gets it."""


class LookupBuffer(ABC):
    """Keyed values between producers and consumers."""

    @abstractmethod
    def insert(
        self, key: Key, payload: Payload, *, digest: bytes = b"", lease: float = 0.0, note: bytes = b""
    ) -> Transfer[None]:
        """Make a value available under a key.

        Args:
            key: A key whose home is this endpoint.
            payload: A contiguous tensor or `Pages`. It must not change until the transfer finishes. On a GPU all work
                that was queued on it is done.
            digest: What the value is KV of, at most 64 bytes; empty binds it to nothing.
            lease: Seconds that it waits for its consumer; 0 for the buffer's default. `math.inf`, with a store alone:
                until it is dropped, or the store gives it up.
            note: At most 48 KiB for the consumer, who has them with his claim, before a byte of the value moves.

        Returns:
            A transfer that resolves when the source memory may be reused: with a backend that detaches as soon as
            it holds a copy, else when the value was taken, dropped or has expired. Its failures: `CapacityError`
            (and the key answers `KeyDroppedError`), `DuplicateKeyError`, `TransportError`, `ClosedError`.
        """

    @abstractmethod
    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        """Ask the producer to hold a value for you, before you have memory for it.

        Args:
            key: The key.
            digest: What the value has to be KV of; must equal the producer's.
            take: Whether the value is yours alone (`drop_select`) or stays for others (`select`).
            timeout: Seconds for the value to be inserted and the producer to answer; 0 for the buffer's default.

        Returns:
            A transfer of the claim. Its failures: `KeyUnknownError` (not inserted in time), `KeyConsumedError`,
            `KeyExpiredError`, `KeyDroppedError`, `BindingMismatchError`, `HandshakeError`, `PeerLostError`,
            `StaleGenerationError`, `CancelledError`.
        """

    def drop_select(
        self, key: Key, out: Payload, *, digest: bytes = b"", skip: int = 0, timeout: float = 0.0
    ) -> Transfer[None]:
        """Take a value into `out`: exactly one caller gets it. Failures as for `claim` and `Claim.fill`."""
        return fill_claim(self.claim(key, digest=digest, take=True, timeout=timeout), out, skip)

    def select(
        self, key: Key, out: Payload, *, digest: bytes = b"", skip: int = 0, timeout: float = 0.0
    ) -> Transfer[None]:
        """Copy a value into `out` and leave it for others. Failures as for `claim` and `Claim.fill`."""
        return fill_claim(self.claim(key, digest=digest, take=False, timeout=timeout), out, skip)

    @abstractmethod
    def contains(self, keys: Sequence[Key], *, timeout: float = 0.0) -> Transfer[list[bool]]:
        """Say for each key whether it has a live value. All keys have one home."""

    @abstractmethod
    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values that nobody wants, here or at their home. Best effort: the lease is the guarantee."""

    @abstractmethod
    def stats(self) -> Mapping[str, float]:
        """Return counters and gauges by name: entries and bytes held, expired, taken, refused. Exact."""

    @abstractmethod
    def close(self) -> None:
        """Finish every transfer and give up every value. Idempotent, bounded."""
