"""`Incoming`: the receiver's half of a rendezvous, one offer from its arrival until it has ended.

A read counts only if the sender's lease on the source still stood when it ended (a *validated read*). The receiver
knows without asking once more: the sender promises an offer for `valid` seconds from when it answers, which is later
than when the receiver asked; so up to *asked + valid*, by the receiver's own clock, the source was in place.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from kvbridge.abc.backend import MoveState
from kvbridge.abc.pipe import Offered
from kvbridge.control.attempt import attempt, check_descriptor
from kvbridge.control.messages import Abort, Accept, Landed, Offer, Renew
from kvbridge.errors import (
    BusyError,
    ClosedError,
    KVBridgeError,
    LeaseExpiredError,
    PeerClosedError,
    TransferTimeoutError,
    from_code,
)
from kvbridge.memory.payload import check_claimed
from kvbridge.transfer import Transfer, cancelled, run_callback

if TYPE_CHECKING:
    from kvbridge.abc.backend import Landing
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.inbox import Inbox
    from kvbridge.control.link import Link
    from kvbridge.control.reactor import Timer
    from kvbridge.memory import Payload


MIN_RENEWAL = 0.05
"""Seconds between two renewals at least, whatever a sender promises."""

ABORT_AGAIN = 0.5
"""Seconds between two requests to stop moving: the request, or the answer to it, may have been lost."""

LOST_GRACE = 0.5
"""Seconds that a read under way may go on after its sender was lost: what is in place already can still be had."""


class Incoming:
    """One offer, from its arrival until its end. Methods belong to the endpoint's thread unless they say otherwise."""

    def __init__(self, inbox: Inbox, offer: Offer, asked: float | None) -> None:
        self.offered = Offered(offer.seq, offer.tag, offer.spec, offer.note)
        self.error: KVBridgeError | None = None
        self._inbox = inbox
        self._offer = offer
        self._renewal_sent = 0.0
        self._valid_until = 0.0 if asked is None else asked + offer.valid
        self._landing: Landing | None = None
        self._transfer: Transfer[None] | None = None
        self._use = threading.Lock()
        self._complete = False
        self._renewing: Timer | None = None
        self._deadline: Timer | None = None

    @property
    def link(self) -> Link:
        """The link to the sender."""
        return self._inbox.link

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint whose thread owns this offer."""
        return self._inbox.link.endpoint

    def fill(self, out: Payload, skip: int, timeout: float = 0.0) -> Transfer[None]:
        """Start moving the payload into `out`, which was checked. Any thread.

        Args:
            out: The destination.
            skip: First blocks to leave out.
            timeout: Seconds after which the transfer is cancelled; 0 for never.

        Raises:
            BusyError: It was filled or declined before.
        """
        if not self._use.acquire(blocking=False):
            raise BusyError(f"the offer {self.offered.seq} on {self._inbox.channel} was taken or declined before")
        endpoint = self.endpoint
        transfer: Transfer[None] = Transfer(
            f"receiving {self._offer.spec.nbytes} bytes from {self._inbox.link.peer.name}",
            lambda: endpoint.call_soon(lambda: self._stop(cancelled("the transfer"))),
        )
        endpoint.call_now(lambda: self._start(out, skip, transfer, timeout))
        return transfer

    def decline(self) -> None:
        """Refuse the offer, unless it was filled. Idempotent. Any thread; from here on it cannot be filled.

        Raises:
            ClosedError: The endpoint is closed; the sender was told.
        """
        if self._use.acquire(blocking=False):
            self.endpoint.call_soon(lambda: self._close(cancelled("the offer")))

    def void(self, error: KVBridgeError) -> None:
        """Take note that the offer stands no more, or that nothing more will be heard of it."""
        if self._transfer is None:
            self._close(error)
        else:
            self._stop(error)

    def landed(self, message: Landed) -> None:
        """Take the sender's word that the bytes are in place, or that it stopped moving them."""
        if self._landing is None or self._inbox.mover == "consumer":
            return
        error = from_code(message.code, message.message) if message.code else None
        if self._inbox.mover == "producer":
            self._close(self.error or error)
        elif error is not None:
            self._stop(error)  # our own half has to end too

    def renewed(self, valid: float) -> None:
        """Take the sender's promise for another while."""
        if self._renewal_sent:
            self._valid_until = max(self._valid_until, self._renewal_sent + valid)
            self._renewal_sent = 0.0

    def lost(self, error: KVBridgeError) -> None:
        """Take note that the sender is gone. A read under way may still end inside of its lease, if he died.

        One that closed in order may have reused the source at once: what was read is not counted. One that writes may
        go on writing: the destination is kept until he says that he stopped, or is dead.
        """
        if self._landing is None:
            self._close(error)
        elif self._inbox.mover == "producer":
            self.error = self.error or error
            if isinstance(error, ClosedError):
                self._close(self.error)
            else:
                self.endpoint.fences.quarantine(self._inbox.link.peer, lambda: self._close(self.error))
        elif isinstance(error, (ClosedError, PeerClosedError)):
            self._stop(error)
        else:
            self.endpoint.after(LOST_GRACE, lambda: self._stop(error))

    def keep(self) -> None:
        """Keep the offer standing, from now on until it ends. One that was just asked for stands for a while."""
        fresh = self._valid_until - time.monotonic() - self._offer.valid / 2
        if fresh > 0:
            self._renewing = self.endpoint.after(fresh, self.renew)
        else:
            self.renew()

    def renew(self) -> None:
        """Ask the sender for another while, again and again until the offer ends."""
        if self.error is not None or self._inbox.gone(self):
            return
        if not self._renewal_sent:
            self._renewal_sent = time.monotonic()
        self._inbox.link.send(Renew(self._inbox.channel, self.offered.seq))
        self._renewing = self.endpoint.after(max(self._offer.valid / 3, MIN_RENEWAL), self.renew)

    # -- inside -----------------------------------------------------------------------------------------------

    def _start(self, out: Payload, skip: int, transfer: Transfer[None], timeout: float) -> None:
        self._transfer = transfer
        if self.error is not None:
            transfer.fail(self.error)
            return
        if timeout:
            late = TransferTimeoutError(f"{transfer.what} did not finish within {timeout:g} s")
            self._deadline = self.endpoint.after(timeout, lambda: self._stop(late))
        inbox = self._inbox
        try:
            check_claimed(out, inbox.backend.capabilities)
            self._landing = attempt(
                inbox.backend,
                lambda: inbox.backend.land(inbox.link, self._offer.spec, self._offer.descriptor, out, skip),
            )
            check_descriptor(inbox.backend, self._landing.descriptor)
        except KVBridgeError as error:
            self._close(error)
            return
        if inbox.mover != "consumer":
            inbox.link.send(Accept(inbox.channel, self.offered.seq, self._landing.descriptor))
        if self._step() is not None:
            self.endpoint.move(self._step)

    def _step(self) -> bool | None:
        if self._landing is None:
            return None
        if self._inbox.mover == "producer":
            return self._help()
        try:
            state = MoveState.DONE if self._complete else attempt(self._inbox.backend, self._landing.step)
        except KVBridgeError as error:
            self._close(self.error or error)
            return None
        if state is not MoveState.DONE:
            return state is MoveState.AGAIN
        self._complete = True
        return self._validate()

    def _help(self) -> bool:
        """Let the library of the side that is written to make progress; the end is the producer's word."""
        with contextlib.suppress(KVBridgeError):
            if self._landing is not None:
                attempt(self._inbox.backend, self._landing.step)
        return False

    def _validate(self) -> bool | None:
        """All bytes were read: they count if the sender's promise covers this moment."""
        if self.error is not None or time.monotonic() < self._valid_until:
            self._close(self.error)
            return None
        if self._renewal_sent and self._inbox.link.up:
            return False  # the promise for this moment is on its way
        self._close(
            LeaseExpiredError(f"the bytes from {self._inbox.link.peer.name} came after its lease on them had ended")
        )
        return None

    def _stop(self, error: KVBridgeError) -> None:
        if self._transfer is None or self._transfer.poll() or self.error is not None:
            return
        if self._landing is None:
            self._close(error)
            return
        self.error = error  # what the transfer ends with, once its memory is safe
        if self._inbox.mover != "consumer":
            self._abort()
        if self._inbox.mover != "producer":
            self._landing.abort()

    def _abort(self) -> None:
        """Ask the sender to stop moving, again and again until he says that he did, or the link is down."""
        if not self._inbox.gone(self):
            self._inbox.link.send(Abort(self._inbox.channel, self.offered.seq))
            self.endpoint.after(ABORT_AGAIN, self._abort)

    def _close(self, error: KVBridgeError | None) -> None:
        self.error = error
        for timer in (self._renewing, self._deadline):
            if timer is not None:
                timer.cancel()
        landing, self._landing = self._landing, None
        if landing is not None:
            run_callback(landing.release)
        self._inbox.forget(self, taken=error is None)
        if self._transfer is not None:
            if error is None:
                self._transfer.resolve(None)
            else:
                self._transfer.fail(error)
