"""`PassingBuffer`: a LookupBuffer that passes everything on; what a layer changes is what its subclass says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.abc.buffer import Claim, Key, LookupBuffer
from kvbridge.buffers.chain import fill_claim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbridge.memory import Payload
    from kvbridge.transfer import Transfer


class PassingBuffer(LookupBuffer):
    """A buffer around another one. A select is a `claim` and its fill: what changes claims changes selects.

    Args:
        inner: The buffer. Closing this one closes it.
    """

    def __init__(self, inner: LookupBuffer) -> None:
        self.inner = inner

    def insert(
        self, key: Key, payload: Payload, *, digest: bytes = b"", lease: float = 0.0, note: bytes = b""
    ) -> Transfer[None]:
        """Make a value available. See `LookupBuffer.insert`."""
        return self.inner.insert(key, payload, digest=digest, lease=lease, note=note)

    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        """Ask the producer to hold a value. See `LookupBuffer.claim`."""
        return self.inner.claim(key, digest=digest, take=take, timeout=timeout)

    def drop_select(
        self, key: Key, out: Payload, *, digest: bytes = b"", skip: int = 0, timeout: float = 0.0
    ) -> Transfer[None]:
        """Take a value into `out`. See `LookupBuffer.drop_select`."""
        return fill_claim(self.claim(key, digest=digest, take=True, timeout=timeout), out, skip)

    def select(
        self, key: Key, out: Payload, *, digest: bytes = b"", skip: int = 0, timeout: float = 0.0
    ) -> Transfer[None]:
        """Copy a value into `out`. See `LookupBuffer.select`."""
        return fill_claim(self.claim(key, digest=digest, take=False, timeout=timeout), out, skip)

    def contains(self, keys: Sequence[Key], *, timeout: float = 0.0) -> Transfer[list[bool]]:
        """Say which keys have a live value. See `LookupBuffer.contains`."""
        return self.inner.contains(keys, timeout=timeout)

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values. See `LookupBuffer.drop`."""
        self.inner.drop(keys)

    def stats(self) -> Mapping[str, float]:
        """Return the numbers of the buffer inside."""
        return self.inner.stats()

    def close(self) -> None:
        """Close the buffer inside."""
        self.inner.close()
