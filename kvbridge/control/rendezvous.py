"""The rendezvous of a pipe: the two ends that every transport's pipes are made of."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from kvbridge.abc.pipe import Offered, RecvPipe, SendPipe
from kvbridge.control.attempt import hold
from kvbridge.control.inbox import Inbox
from kvbridge.control.messages import End
from kvbridge.control.outgoing import Outbox
from kvbridge.errors import BusyError, ClosedError, KVBridgeError, PeerLostError, PipeBrokenError
from kvbridge.transfer import Transfer, run_callback

if TYPE_CHECKING:
    from kvbridge.abc.backend import Transport
    from kvbridge.control.incoming import Incoming
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Spec

VALID = 10.0
"""Seconds for which an offer on a pipe stands without being renewed. A living receiver renews it."""


class RendezvousSender(SendPipe):
    """Sending end over a link."""

    def __init__(self, backend: Transport[Any], link: Link, channel: str) -> None:
        super().__init__()
        self._backend = backend
        self._link = link
        self._channel = f"pipe:{channel}"
        self._broken: KVBridgeError | None = None
        self._box = Outbox(backend, link, self._channel)
        self._open: dict[Transfer[None], int] = {}
        link.endpoint.call_soon(self._connect)

    def _connect(self) -> None:
        self._link.route(self._channel, self._box.received)
        self._link.on_down(self._went_down)

    def _went_down(self, error: KVBridgeError) -> None:
        self._broken = _broken(self._channel, error)
        self._fail_detached()

    def _fail_detached(self) -> None:
        """On a broken pipe, fail what the caller's memory is free of: only a copy is kept until the offer expires."""
        for transfer, seq in list(self._open.items()):
            if self._broken is not None and self._box.detached(seq):
                transfer.fail(self._broken)

    def _post(self, payload: Payload, spec: Spec, tag: int) -> Transfer[None]:
        if self._broken is not None:
            raise self._broken
        endpoint = self._link.endpoint
        transfer: Transfer[None] = Transfer(
            f"sending {spec.nbytes} bytes on {self._channel}",
            lambda: endpoint.call_soon(lambda: self._withdraw(transfer)),
        )
        endpoint.call_soon(lambda: self._offer(payload, spec, tag, transfer))
        return transfer

    def _withdraw(self, transfer: Transfer[None]) -> None:
        if transfer in self._open:
            self._box.withdraw(self._open[transfer])

    def _offer(self, payload: Payload, spec: Spec, tag: int, transfer: Transfer[None]) -> None:
        if self._broken is not None:
            transfer.fail(self._broken)
            return
        try:
            held = hold(self._backend, payload)
        except KVBridgeError as error:
            transfer.fail(error)
            return

        def ended(error: KVBridgeError | None) -> None:
            run_callback(held.release)
            self._open.pop(transfer, None)
            if error is None:
                transfer.resolve(None)
            else:
                transfer.fail(self._broken or _as_pipe_error(self._channel, error))

        self._open[transfer] = self._box.offer(held, spec, tag, VALID, ended)
        self._box.prepare(self._open[transfer], self._fail_detached)

    def _close(self) -> None:
        try:
            self._link.endpoint.call_soon(self._disconnect)
        except KVBridgeError:  # the endpoint is closed: it has told the peer
            self._broken = ClosedError(f"the pipe {self._channel} was closed")

    def _disconnect(self) -> None:
        self._broken = ClosedError(f"the pipe {self._channel} was closed")
        self._link.send(End(self._channel))
        for seq in list(self._open.values()):
            self._box.withdraw(seq, self._broken)


class RendezvousReceiver(RecvPipe):
    """Receiving end over a link."""

    def __init__(self, backend: Transport[Any], link: Link, channel: str) -> None:
        super().__init__()
        self._link = link
        self._channel = f"pipe:{channel}"
        self._changed = threading.Condition()
        self._queue: deque[Incoming] = deque()
        self._end: KVBridgeError | None = None
        self._inbox = Inbox(backend, link, self._channel, self._arrived, self._ended)
        link.endpoint.call_soon(self._connect)

    def _connect(self) -> None:
        self._link.route(self._channel, self._inbox.received)
        self._link.on_down(lambda error: self._ended(_broken(self._channel, error)))

    def _arrived(self, incoming: Incoming) -> None:
        with self._changed:
            self._queue.append(incoming)
            self._changed.notify_all()

    def _ended(self, error: KVBridgeError) -> None:
        with self._changed:
            self._end = self._end or error
            self._changed.notify_all()

    def _peek(self, timeout: float) -> Offered | None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                while self._queue and self._queue[0].error is not None:
                    self._queue.popleft()  # withdrawn before anybody took it
                if self._queue and not isinstance(self._end, PipeBrokenError):
                    return self._queue[0].offered
                if self._end is not None:
                    raise self._end
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(remaining)

    def _find(self, offer: Offered) -> Incoming:
        with self._changed:
            for incoming in self._queue:
                if incoming.offered is offer:
                    self._queue.remove(incoming)
                    return incoming
        raise BusyError(f"the offer {offer.seq} of {self._channel} was taken or declined before")

    def _accept(self, offer: Offered, out: Payload, skip: int) -> Transfer[None]:
        fill = self._find(offer).fill(out, skip)
        transfer: Transfer[None] = Transfer(fill.what, fill.cancel)

        def filled(done: Transfer[None]) -> None:
            if done.error is None:
                transfer.resolve(None)
            else:
                transfer.fail(_as_pipe_error(self._channel, done.error))

        fill.on_done(filled)
        return transfer

    def _decline(self, offer: Offered) -> None:
        self._find(offer).decline()

    def _close(self) -> None:
        try:
            self._link.endpoint.call_soon(
                lambda: self._inbox.close(ClosedError(f"the pipe {self._channel} was closed"))
            )
        except KVBridgeError:
            self._end = ClosedError(f"the pipe {self._channel} was closed")


def _as_pipe_error(channel: str, error: KVBridgeError) -> KVBridgeError:
    """Say a loss of the peer in a pipe's own words."""
    return _broken(channel, error) if isinstance(error, PeerLostError) else error


def _broken(channel: str, error: KVBridgeError) -> PipeBrokenError:
    return PipeBrokenError(f"the pipe {channel} is broken: {error}")
