"""Wrappers of a LookupBuffer that pass everything on: what a layer changes is what its subclass says."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import Counter
from typing import TYPE_CHECKING

from kvbridge.abc.buffer import Claim, Key, LookupBuffer
from kvbridge.errors import ClosedError, KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbridge.control.endpoint import Endpoint
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


class WorkingBuffer(PassingBuffer):
    """A layer that does work of its own on the endpoint's thread, and ends it when it, or the endpoint, is closed.

    Args:
        inner: The buffer.
        endpoint: Whose thread is used.

    Attributes:
        counters: What the layer counts.
        closed: Why it is closed; None as long as it is not. For the endpoint's thread.
    """

    def __init__(self, inner: LookupBuffer, endpoint: Endpoint) -> None:
        super().__init__(inner)
        self.counters: Counter[str] = Counter()
        self.closed: KVBridgeError | None = None
        self._endpoint = endpoint
        endpoint.call_soon(lambda: endpoint.on_close(self._finish))

    @abstractmethod
    def give_up(self, error: KVBridgeError) -> None:
        """End everything that is under way. On the endpoint's thread."""

    def close(self) -> None:
        """Finish every transfer and close the buffer inside. Idempotent, bounded."""
        if self.closed is None:
            error = ClosedError("the buffer was closed")
            with contextlib.suppress(KVBridgeError):  # the endpoint is closed: it has finished everything
                self._endpoint.call_soon(lambda: self._finish(error))
        self.inner.close()

    def _finish(self, error: KVBridgeError) -> None:
        self.closed = self.closed or error
        self.give_up(error)
