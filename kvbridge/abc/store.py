"""`Store`: a backend that keeps values by key itself, such as files, a database or a distributed store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar, final

from kvbridge.abc.backend import Backend, Move, MoveState

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from kvbridge.abc.buffer import LookupBuffer
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.memory import Payload

O = TypeVar("O", bound="msgspec.Struct")  # noqa: E741 - the options of one backend
T = TypeVar("T")


class Task(Move, Generic[T]):
    """A question to a store, advanced in slices as a move is, and its answer.

    A task that was aborted ends as a move does: its `step` raises, or returns DONE if it was too late for an end. Its
    `result` then counts all the same.
    """

    result: T
    """The answer. There once `step` has returned DONE, and not before."""


class Ready(Task[T]):
    """An answer that is there at once, for stores that need not wait for it.

    Args:
        value: The answer.
    """

    def __init__(self, value: T) -> None:
        self.result = value

    def step(self) -> MoveState:
        """Return DONE."""
        return MoveState.DONE

    def abort(self) -> None:
        """Do nothing: it is done."""


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
        """Let go of the value. Called once, when no move reads it. The bytes of one that was taken are given up here.

        It returns at once, on the endpoint's thread, and must not raise: a store that needs longer hands the work to
        a thread of its own.
        """


Medium = Literal["disk", "memory", "remote"]
"""Where a store keeps values, as metrics and events name it."""


class Store(Backend[O]):
    """A backend that keeps values by key itself. The core makes a LookupBuffer of it.

    Digests, leases, deadlines and statistics are the core's: it puts a header with each value and gives it back to
    nobody but itself. The store keeps bytes under a key, and sees to it that a key has one value, that a value is
    seen by all or by none, and, with the flag `takes`, that exactly one caller takes it.

    Threads: `put`, `find`, `headers`, `remove` and everything on the moves and tasks that they return is called on
    the endpoint's thread, and returns within a few milliseconds. What takes longer goes on between two steps: in a
    library, or on a worker thread, on which a store may use the payload, and `kvbridge.memory` to copy it, but no
    endpoint, buffer or transfer; `step` then only looks whether it has ended. `kvbridge.threads.Pool` makes a task of
    a call that blocks. Many moves and tasks are under way at one time, but of the calls for one key the core makes one
    after the other, except that it asks for `headers` at any time.

    Errors: the call may raise them, or any step of what it returned.

    Abort: a task that nobody waits for any more is aborted, and stepped on until it has ended; no more is begun for
    it. What has happened all the same counts: a value that a `find` took is released by the core. One whose `find`
    has not ended when the backend is closed is given up by `close`.
    """

    medium: ClassVar[Medium] = "remote"
    """Where the values are."""

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
    def find(self, key: str, *, take: bool) -> Task[Stored | None]:
        """Start to find a value.

        Args:
            key: The key.
            take: Take it away, so that nobody else finds it: of many who try, one gets it. Only with `takes`.

        Returns:
            A task of the value; of None if there is none, or another caller took it. One that raises must not have
            taken it, as far as the store can know.
        """

    @abstractmethod
    def headers(self, keys: Sequence[str]) -> Task[list[bytes | None]]:
        """Start to ask for headers.

        Returns:
            A task of the header of each key's value, in order, None where there is none.
        """

    @abstractmethod
    def remove(self, keys: Sequence[str]) -> Task[None]:
        """Start to give up values. Who found one before may still read it. Keys that have none are no error.

        Returns:
            A task that is DONE when nobody finds them any more.
        """

    @final
    def open_buffer(
        self, endpoint: Endpoint, *, lease: float = 60.0, timeout: float = 30.0, patient: bool = False
    ) -> LookupBuffer:
        """Open a LookupBuffer on the store."""
        from kvbridge.buffers.over_store import StoreBuffer  # noqa: PLC0415 - the core builds on this module

        return StoreBuffer(self, endpoint, lease=lease, timeout=timeout, patient=patient)
