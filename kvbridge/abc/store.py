"""`Store`: a backend that keeps values by key itself, such as files, a database or a distributed store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar, final

from kvbridge.abc.backend import Backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from kvbridge.abc.backend import Move
    from kvbridge.abc.buffer import LookupBuffer
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.memory import Payload

O = TypeVar("O", bound="msgspec.Struct")  # noqa: E741 - the options of one backend


class Stored(ABC):
    """A value that was found in a store. Its bytes can be read until `release`, whatever becomes of its key."""

    header: bytes
    """What was put with the value; opaque to the store."""

    @abstractmethod
    def read(self, out: Payload, skip: int) -> Move:
        """Start to read the value into `out`.

        Args:
            out: Destination; it was checked. The move's until it has ended.
            skip: Number of the value's first blocks, in every region, that are not wanted.
        """

    @abstractmethod
    def release(self) -> None:
        """Let go of the value. Called once. The bytes of one that was taken are given up here."""


class Store(Backend[O]):
    """A backend that keeps values by key itself. The core makes a LookupBuffer of it.

    Digests, leases, deadlines and statistics are the core's: it puts a header with each value and gives it back to
    nobody but itself. The store keeps bytes under a key, and sees to it that a key has one value, that a value is
    seen by all or by none, and, with the flag `takes`, that exactly one caller takes it. Its methods are called on
    the endpoint's thread and return within a few milliseconds; what takes longer is done in `Move.step`.
    """

    @abstractmethod
    def put(self, key: str, header: bytes, payload: Payload) -> Move:
        """Start to store a value. It is there for others when the move is done, as a whole, and not before.

        Args:
            key: 1 to 256 printable ASCII characters, any of them: not a safe file name.
            header: At most 64 KiB, to be given back by `find` and `headers`.
            payload: The value; it does not change before the move has ended. What it is: `spec_of(payload)`.

        Raises:
            DuplicateKeyError: The key has a value. The move may find out only when it is done.
            CapacityError: There is no room. The move may find out later, in any step.
            UnsupportedError: The payload is of a kind that is not claimed.
        """

    @abstractmethod
    def find(self, key: str, *, take: bool) -> Stored | None:
        """Find a value.

        Args:
            key: The key.
            take: Take it away, so that nobody else finds it: of many who try, one gets it. Only with `takes`.

        Returns:
            The value; None if there is none, or another caller took it.
        """

    @abstractmethod
    def headers(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return for each key the header of its value, None where there is none."""

    @abstractmethod
    def remove(self, keys: Sequence[str]) -> None:
        """Give up values. Who found one before may still read it."""

    @final
    def open_buffer(self, endpoint: Endpoint, *, lease: float = 60.0, timeout: float = 30.0) -> LookupBuffer:
        """Open a LookupBuffer on the store."""
        from kvbridge.buffers.over_store import StoreBuffer  # noqa: PLC0415 - the core builds on this module

        return StoreBuffer(self, endpoint, lease=lease, timeout=timeout)
