"""`faulty_send`: any sending end, with faults between its user and the pipe. An event is a message."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from kvbridge.abc import SendPipe
from kvbridge.errors import ClosedError, KVBridgeError, TransportError
from kvbridge.layers.faulty.payload import copy_of, spoil
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from kvbridge.layers.faulty.plan import Event, Faults, Kind
    from kvbridge.memory import Payload, Spec

SEND_KINDS: tuple[Kind, ...] = ("delay", "drop", "duplicate", "reorder", "truncate", "corrupt", "fail", "kill")


def faulty_send(pipe: SendPipe, faults: Faults) -> SendPipe:
    """Put faults on a sending end. Close the end that is returned: it closes the one inside.

    - "delay" keeps the caller of `post`, "fail" fails the transfer, and nothing is posted.
    - "drop" tells the caller that the peer has what was never posted.
    - "duplicate" posts a copy after the message.
    - "reorder" keeps the message back until the next one was posted; while there is none, nothing is sent.
    - "truncate" and "corrupt" post a changed copy. Copies of `Pages` lie in memory that no backend was told of.

    Args:
        pipe: The end.
        faults: What strikes.

    Raises:
        ConfigError: The plan has a fault that cannot happen to a message.
    """
    faults.check(SEND_KINDS, "a message that is sent")
    return _FaultySend(pipe, faults)


class _KeptBack:
    """A message that waits for its successor to overtake it."""

    def __init__(self, payload: Payload, tag: int, what: str) -> None:
        self.transfer: Transfer[None] = Transfer(what, self._cancel)
        self._payload = payload
        self._tag = tag
        self._lock = threading.Lock()
        self._sent: Transfer[None] | None = None

    def send(self, pipe: SendPipe) -> None:
        """Post it, unless it was cancelled."""
        with self._lock:
            if self.transfer.poll():
                return
            try:
                self._sent = pipe.post(self._payload, self._tag)
            except KVBridgeError as error:
                self.transfer.fail(error)
                return
        self._sent.on_done(lambda done: done.hand_on(self.transfer))

    def give_up(self, error: KVBridgeError) -> None:
        """Finish it, if it was not posted."""
        with self._lock:
            if self._sent is None:
                self.transfer.fail(error)

    def _cancel(self) -> None:
        self.give_up(cancelled(self.transfer.what))
        if self._sent is not None:
            self._sent.cancel()


class _FaultySend(SendPipe):
    def __init__(self, inner: SendPipe, plan: Faults) -> None:
        super().__init__()
        self._inner = inner
        self._plan = plan
        self._kept: _KeptBack | None = None

    def _post(self, payload: Payload, spec: Spec, tag: int) -> Transfer[None]:
        event = self._plan.take()
        event.stall()
        kept, self._kept = self._kept, None
        what = f"sending {spec.nbytes} bytes through faults"
        if kept is None and event.struck("reorder"):
            kept = self._kept = _KeptBack(payload, tag, what)
            if self._is_closed:  # meanwhile
                self._close()
            return kept.transfer
        try:
            return self._pass(payload, tag, event, Transfer(what))
        finally:
            if kept is not None:
                kept.send(self._inner)

    def _pass(self, payload: Payload, tag: int, event: Event, transfer: Transfer[None]) -> Transfer[None]:
        if event.struck("fail"):
            transfer.fail(TransportError(f"fault injected at message {event.index}"))
            return transfer
        if event.struck("drop"):
            transfer.resolve(None)
            return transfer
        if event.struck("truncate") or event.struck("corrupt"):
            payload = copy_of(payload)
            spoil(payload, event)
        posted = self._inner.post(payload, tag)
        if event.struck("duplicate"):
            with contextlib.suppress(KVBridgeError):  # the caller has the transfer of the first
                self._inner.post(copy_of(payload), tag)
        return posted

    def _close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.give_up(ClosedError("the pipe was closed before another message followed the one kept back"))
        self._inner.close()
