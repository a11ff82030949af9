"""`RoomQueue`: values that wait until their backend has room for them, in the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbridge.errors import CapacityError, KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.buffers.producer import Value
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.reactor import Timer
    from kvbridge.memory import Payload
    from kvbridge.transfer import Transfer

AGAIN = 0.01
"""Seconds between two looks whether there is room: pipes and other processes give it back without a word."""


@dataclass(eq=False)
class Delayed:
    """A value that waits for room, in its owner's memory.

    Attributes:
        value: What is known of it.
        payload: The value.
        expires: When its lease ends, in seconds of the monotonic clock.
        inserted: The transfer of its insert.
        why: The refusal that it met last.
        lapsing: Ends the wait with its lease.
    """

    value: Value
    payload: Payload
    expires: float
    inserted: Transfer[None]
    why: KVBridgeError = field(default_factory=lambda: CapacityError("others wait before it"))
    lapsing: Timer | None = None


class RoomQueue:
    """All methods belong to the endpoint's thread. Only the first in the queue is tried: a large value gets its turn.

    Args:
        endpoint: Whose thread it is.
        enter: Takes a value in; raises `CapacityError` where there is still no room.
        refuse: Told of a value that is not waited for any more, and why.
    """

    def __init__(
        self, endpoint: Endpoint, enter: Callable[[Delayed], None], refuse: Callable[[Delayed, KVBridgeError], None]
    ) -> None:
        self._endpoint = endpoint
        self._enter = enter
        self._refuse = refuse
        self._waiting: dict[str, Delayed] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: str) -> bool:
        return key in self._waiting

    def get(self, key: str) -> Delayed | None:
        """Return a value that waits, if it does."""
        return self._waiting.get(key)

    def put(self, new: Delayed, lease: float) -> bool:
        """Take a value in, or let it wait where there is no room, or others wait: for `lease` seconds at most.

        Returns:
            Whether it waits.
        """
        if not self._waiting and self._try(new):
            return False
        key = new.value.key
        self._waiting[key] = new
        new.lapsing = self._endpoint.after(lease, lambda: self._lapse(key))
        self._look_again()
        return True

    def take(self, key: str) -> Delayed | None:
        """Take a value out of the queue; None if it is not in it."""
        delayed = self._waiting.pop(key, None)
        if delayed is not None and delayed.lapsing is not None:
            delayed.lapsing.cancel()
        return delayed

    def take_all(self) -> list[Delayed]:
        """Take everything out."""
        return [delayed for key in list(self._waiting) if (delayed := self.take(key)) is not None]

    def _lapse(self, key: str) -> None:
        delayed = self.take(key)
        if delayed is not None:
            self._refuse(delayed, CapacityError(f"until its lease ended there was no room: {delayed.why}"))

    def _look_again(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._endpoint.after(AGAIN, self._look)

    def _look(self) -> None:
        self._timer = None
        while self._waiting and self._try(next(iter(self._waiting.values()))):
            pass
        self._look_again()

    def _try(self, new: Delayed) -> bool:
        """Take a value in, or refuse it. Returns False if it has to wait."""
        refusal: KVBridgeError | None = None
        try:
            self._enter(new)
        except CapacityError as error:
            new.why = error
            return False
        except KVBridgeError as error:
            refusal = error
        self.take(new.value.key)
        if refusal is not None:
            self._refuse(new, refusal)
        return True
