"""`faulty_recv`: any receiving end, with faults between the pipe and its user. An event is a message."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbridge.abc import Offered, RecvPipe
from kvbridge.errors import BusyError, ClosedError, EndOfPipeError, KVBridgeError, TransportError
from kvbridge.layers.faulty.payload import fill_from, scratch, spoil_when_filled
from kvbridge.transfer import Transfer, failed

if TYPE_CHECKING:
    from kvbridge.layers.faulty.plan import Event, Faults, Kind
    from kvbridge.memory import Payload

RECV_KINDS: tuple[Kind, ...] = (
    "pause",
    "delay",
    "drop",
    "duplicate",
    "reorder",
    "truncate",
    "corrupt",
    "fail",
    "kill",
)

LOOK = 0.001
"""Seconds between two looks at a message that is held up."""


def faulty_recv(pipe: RecvPipe, faults: Faults) -> RecvPipe:
    """Put faults on a receiving end. Close the end that is returned: it closes the one inside.

    - "pause" and "delay" keep the message, and all behind it, from being seen.
    - "drop" takes the message, so that its sender believes in it, and shows it to nobody.
    - "duplicate" shows the message twice, "reorder" shows it after its successor: both are taken into memory of
      their own first. Copies of `Pages` lie in memory that no backend was told of.
    - "truncate" and "corrupt" spoil the destination once it is filled.
    - "fail" declines the message; the transfer fails.

    Args:
        pipe: The end.
        faults: What strikes.

    Raises:
        ConfigError: The plan has a fault that cannot happen to a message.
    """
    faults.check(RECV_KINDS, "a message that is received")
    return _FaultyRecv(pipe, faults)


@dataclass(eq=False)
class _Message:
    """A message that the user may see.

    Attributes:
        offer: How the user sees it.
        event: What strikes it.
        copy: Where it was taken to, if it was taken already, and the transfer that does it.
    """

    offer: Offered
    event: Event
    copy: tuple[Payload, Transfer[None]] | None = None


class _FaultyRecv(RecvPipe):
    def __init__(self, inner: RecvPipe, plan: Faults) -> None:
        super().__init__()
        self._inner = inner
        self._plan = plan
        self._seen: deque[_Message] = deque()
        self._overtaken: _Message | None = None

    def _peek(self, timeout: float) -> Offered | None:
        deadline = time.monotonic() + timeout
        while not self._is_closed:
            left = max(0.0, deadline - time.monotonic())
            if self._stale():
                self._seen.popleft()
            elif self._seen and not self._seen[0].event.waits():
                return self._seen[0].offer
            elif self._seen and left:
                time.sleep(min(LOOK, left))
            elif self._seen or not self._next(left):
                return None
        raise ClosedError("this pipe was closed while it was looked at: open a new one")

    def _stale(self) -> bool:
        """Whether the first message was withdrawn meanwhile: the end inside shows another one by now."""
        if not self._seen or self._seen[0].copy is not None:
            return False
        try:
            return self._inner.peek() is not self._seen[0].offer
        except EndOfPipeError:
            return True

    def _next(self, timeout: float) -> bool:
        """Look at what the end inside has next. Returns whether something changed."""
        try:
            offer = self._inner.peek(timeout)
        except EndOfPipeError:
            if self._overtaken is None:
                raise
            self._show_overtaken()
            return True
        if offer is None:
            return False
        message = _Message(offer, self._plan.take())
        if message.event.struck("drop"):
            self._take_over(offer)
            return True
        if message.event.struck("duplicate") or (message.event.struck("reorder") and self._overtaken is None):
            message.copy = self._take_over(offer)
        if message.event.struck("reorder") and self._overtaken is None:
            self._overtaken = message
            return True
        self._show(message)
        self._show_overtaken()
        return True

    def _show_overtaken(self) -> None:
        message, self._overtaken = self._overtaken, None
        if message is not None:
            self._show(message)

    def _show(self, message: _Message) -> None:
        self._seen.append(message)
        if message.event.struck("duplicate"):
            offer = message.offer
            self._seen.append(_Message(Offered(offer.seq, offer.tag, offer.spec), message.event, message.copy))

    def _take_over(self, offer: Offered) -> tuple[Payload, Transfer[None]]:
        copy = scratch(offer.spec)
        return copy, self._inner.accept(offer, copy)

    def _find(self, offer: Offered) -> _Message:
        for message in self._seen:
            if message.offer is offer:
                self._seen.remove(message)
                return message
        raise BusyError(f"the offer {offer.seq} was taken or declined before")

    def _accept(self, offer: Offered, out: Payload, skip: int) -> Transfer[None]:
        message = self._find(offer)
        if message.event.struck("fail"):
            if message.copy is None:
                self._inner.decline(offer)
            error = TransportError(f"fault injected at message {message.event.index}")
            return failed(f"receiving {offer.spec.nbytes} bytes through faults", error)
        filled = self._inner.accept(offer, out, skip) if message.copy is None else _copied(*message.copy, out, skip)
        if message.event.struck("truncate") or message.event.struck("corrupt"):
            return spoil_when_filled(filled, out, message.event)
        return filled

    def _decline(self, offer: Offered) -> None:
        if self._find(offer).copy is None:
            self._inner.decline(offer)

    def _close(self) -> None:
        self._inner.close()


def _copied(copy: Payload, taken: Transfer[None], out: Payload, skip: int) -> Transfer[None]:
    """Fill a destination from a copy, once that has come."""
    transfer: Transfer[None] = Transfer(taken.what)

    def came(done: Transfer[None]) -> None:
        try:
            if done.error is None:
                fill_from(out, copy, skip)
        except KVBridgeError as error:
            transfer.fail(error)
        done.hand_on(transfer)

    taken.on_done(came)
    return transfer
