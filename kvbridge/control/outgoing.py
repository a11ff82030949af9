"""The sender's half of a rendezvous: offers of one channel to one peer, until each has ended.

An offer ends when the receiver says `Done`, or when it has expired and nothing of ours still moves. Until then the
source is untouchable: a receiver that is not heard of any more may still be reading.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbridge import tracing
from kvbridge.abc.backend import MoveState
from kvbridge.control.attempt import attempt
from kvbridge.control.messages import Abort, Accept, Done, Landed, Offer, Renew, Renewed, Routed, Withdrawn, text
from kvbridge.errors import ClosedError, KeyDroppedError, KVBridgeError, LeaseExpiredError, PeerClosedError
from kvbridge.transfer import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Held, Move, Transport
    from kvbridge.control.link import Link
    from kvbridge.control.reactor import Timer
    from kvbridge.memory import Spec


@dataclass(eq=False)
class _Outgoing:
    """One offer."""

    seq: int
    name: str
    held: Held
    valid: float
    expires: float
    ended: Callable[[KVBridgeError | None], None]
    move: Move | None = None
    void: KVBridgeError | None = None
    taken: bool = False
    prepared: bool = False
    accepted: bool = False
    checking: Timer | None = None


class Outbox:
    """Offers of one channel on one link. All methods belong to the endpoint's thread."""

    def __init__(self, backend: Transport[Any], link: Link, channel: str) -> None:
        self._backend = backend
        self._link = link
        self._channel = channel
        self._seqs = itertools.count()
        self._offers: dict[int, _Outgoing] = {}
        self._moves_here = backend.capabilities.mover != "consumer"
        link.on_down(self._lost)

    def offer(
        self,
        held: Held,
        spec: Spec,
        tag: int,
        valid: float,
        ended: Callable[[KVBridgeError | None], None],
        *,
        name: str = "",
        note: bytes = b"",
    ) -> int:
        """Offer a held payload.

        Args:
            held: The payload. It stays the caller's: he releases it when `ended` is called.
            spec: What it is.
            tag: A number for the receiver.
            valid: Seconds for which the offer stands without being renewed.
            ended: Called once with None when the receiver has the payload, else with the reason.
            name: What it is called in traces; by its number by default.
            note: Bytes for the receiver.

        Returns:
            The offer's sequence number.
        """
        seq = next(self._seqs)
        outgoing = _Outgoing(seq, name or f"{self._channel} {seq}", held, valid, time.monotonic() + valid, ended)
        self._offers[seq] = outgoing
        tracing.begin("offer", outgoing.name, to=self._link.peer.name)
        self._link.send(Offer(self._channel, seq, tag, spec, held.descriptor, valid, note))
        self._check_in(outgoing, valid)
        return seq

    def prepare(self, seq: int, prepared: Callable[[], None]) -> None:
        """Advance `Held.step` in the background, then call `prepared`; a failure withdraws the offer."""
        outgoing = self._offers[seq]

        def step() -> bool | None:
            if outgoing.seq not in self._offers:
                return None
            try:
                state = attempt(self._backend, outgoing.held.step)
            except KVBridgeError as error:
                self._withdraw(outgoing, error)
                return None
            if state is not MoveState.DONE:
                return state is MoveState.AGAIN
            outgoing.prepared = True
            prepared()
            return None

        if step() is not None:
            self._link.endpoint.move(step)

    def detached(self, seq: int) -> bool:
        """Whether the caller's memory is free although the offer stands."""
        outgoing = self._offers.get(seq)
        return outgoing is not None and outgoing.prepared and self._backend.capabilities.detaches

    def withdraw(self, seq: int, error: KVBridgeError | None = None) -> None:
        """Take an offer back. It ends when the receiver agrees, or when it would have expired."""
        outgoing = self._offers.get(seq)
        if outgoing is not None:
            self._withdraw(outgoing, error or cancelled(f"the offer {seq} on {self._channel}"))

    def received(self, message: Routed) -> None:
        """Take a message of the receiver."""
        outgoing = self._offers.get(getattr(message, "seq", -1))
        if outgoing is None:  # late news of an offer that has ended
            if isinstance(message, Abort):  # nothing moves for it any more, and the receiver waits to hear that
                ended = cancelled("the transfer")
                self._link.send(Landed(self._channel, message.seq, ended.code, text(ended)))
            return
        if isinstance(message, Done):
            self._done(outgoing, taken=message.taken)
        elif isinstance(message, Renew):
            if outgoing.void is None:
                outgoing.expires = time.monotonic() + outgoing.valid
                self._link.send(Renewed(self._channel, outgoing.seq, outgoing.valid))
        elif isinstance(message, Accept):
            self._accepted(outgoing, message.descriptor)
        elif isinstance(message, Abort):
            self._aborted(outgoing)

    def _lost(self, error: KVBridgeError) -> None:
        """End everything when either side closes in order. When the peer is lost, offers stand until they expire.

        What is being written to a peer that is lost is not wanted any more: the peer waits for its end.
        """
        if not isinstance(error, (ClosedError, PeerClosedError)):
            for outgoing in self._offers.values():
                if outgoing.move is not None:
                    outgoing.move.abort()
            return
        for outgoing in list(self._offers.values()):
            outgoing.void = outgoing.void or error
            if outgoing.move is None:
                self._finish(outgoing)
            else:
                outgoing.move.abort()

    def _done(self, outgoing: _Outgoing, *, taken: bool) -> None:
        if taken:
            outgoing.taken = True
        elif outgoing.void is None:
            outgoing.void = KeyDroppedError(f"the receiver did not take what was offered on {self._channel}")
        if outgoing.move is None:
            self._finish(outgoing)
        elif not taken:
            outgoing.move.abort()  # ends the offer once nothing moves any more

    def _accepted(self, outgoing: _Outgoing, descriptor: bytes) -> None:
        if outgoing.accepted or not self._moves_here:
            return  # a second time: its memory may be the receiver's again
        outgoing.accepted = True
        tracing.begin("move", outgoing.name, to=self._link.peer.name)
        try:
            outgoing.move = attempt(self._backend, lambda: outgoing.held.write(self._link, descriptor))
        except KVBridgeError as error:
            self._landed(outgoing, error)
            return
        self._link.move_began()
        self._link.endpoint.move(lambda: self._step(outgoing))

    def _step(self, outgoing: _Outgoing) -> bool | None:
        if outgoing.move is None:
            return None
        try:
            state = attempt(self._backend, outgoing.move.step)
        except KVBridgeError as error:
            self._landed(outgoing, error)
            self._link.move_ended()
            return None
        if state is MoveState.DONE:
            self._landed(outgoing, None)
            self._link.move_ended()
            return None
        return state is MoveState.AGAIN

    def _landed(self, outgoing: _Outgoing, error: KVBridgeError | None) -> None:
        outgoing.move = None
        tracing.end("move", outgoing.name, **tracing.why(error))
        code, message = ("", "") if error is None else (error.code, text(error))
        self._link.send(Landed(self._channel, outgoing.seq, code, message))
        if outgoing.taken or outgoing.void is not None or not self._link.up:
            outgoing.void = outgoing.void or error or self._link.error
            self._finish(outgoing)

    def _aborted(self, outgoing: _Outgoing) -> None:
        if outgoing.move is not None:
            outgoing.move.abort()
        else:
            self._landed(outgoing, cancelled("the transfer"))

    def _withdraw(self, outgoing: _Outgoing, error: KVBridgeError) -> None:
        outgoing.void = outgoing.void or error
        if outgoing.move is not None:
            outgoing.move.abort()
        self._link.send(Withdrawn(self._channel, outgoing.seq, error.code, text(error)))

    def _check_in(self, outgoing: _Outgoing, seconds: float) -> None:
        outgoing.checking = self._link.endpoint.after(seconds, lambda: self._check(outgoing))

    def _check(self, outgoing: _Outgoing) -> None:
        if outgoing.seq not in self._offers:
            return
        remaining = outgoing.expires - time.monotonic()
        if remaining > 0:
            self._check_in(outgoing, remaining)
        elif outgoing.move is not None:
            outgoing.move.abort()
            self._check_in(outgoing, outgoing.valid)
        else:
            expired = LeaseExpiredError(f"the receiver on {self._channel} was not heard of for {outgoing.valid:g} s")
            self._link.send(Withdrawn(self._channel, outgoing.seq, expired.code, text(expired)))
            outgoing.void = outgoing.void or self._link.error or expired
            self._finish(outgoing)

    def _finish(self, outgoing: _Outgoing) -> None:
        if self._offers.pop(outgoing.seq, None) is not None:
            if outgoing.checking is not None:
                outgoing.checking.cancel()
            error = None if outgoing.taken else outgoing.void
            tracing.end("offer", outgoing.name, **(tracing.why(error) or {"outcome": "taken"}))
            outgoing.ended(error)
