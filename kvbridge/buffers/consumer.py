"""`Seeker`: the consumer's side of a buffer over pipes. Questions in flight, and the claims that came of them."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

from kvbridge import tracing
from kvbridge.abc.buffer import Claim
from kvbridge.control.inbox import Inbox
from kvbridge.control.messages import Answer, Ask, Cancel, Drop, Miss, Offer, Routed, Select
from kvbridge.errors import KVBridgeError, ProtocolError, TransferTimeoutError, from_code
from kvbridge.memory.payload import check_destination
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Transport
    from kvbridge.abc.buffer import Key
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.incoming import Incoming
    from kvbridge.control.link import Link
    from kvbridge.control.reactor import Timer
    from kvbridge.memory import Payload

ANSWER_GRACE = 1.0
"""Seconds that a producer's answer may take beyond the time that it was given to wait."""


class PipeClaim(Claim):
    """A value that its producer holds for us."""

    def __init__(self, incoming: Incoming, key: str, timeout: float) -> None:
        self.spec = incoming.offered.spec
        self.note = incoming.offered.note
        self._key = key
        self._incoming = incoming
        self._timeout = timeout

    @property
    def lost(self) -> KVBridgeError | None:
        """See `Claim.lost`."""
        return self._incoming.error

    def fill(self, out: Payload, skip: int = 0) -> Transfer[None]:
        """Move the value into `out`, once. See `Claim.fill`."""
        transfer: Transfer[None] = Transfer("filling a claim")
        tracing.begin("fill", self._key, skip=skip)
        try:
            check_destination(self.spec, out, skip)
            transfer = self._incoming.fill(out, skip, self._timeout)
        except KVBridgeError as error:
            transfer.fail(error)
        tracing.end_with("fill", self._key, transfer)
        return transfer

    def release(self) -> None:
        """Give the claim back unused. Idempotent."""
        with contextlib.suppress(KVBridgeError):  # the endpoint is closed: the producer was told
            self._incoming.decline()


class _Question:
    """A question in flight: it is answered once, or fails once."""

    def __init__(
        self,
        seeker: Seeker,
        what: str,
        send: Callable[[Link, int], None],
        answered: Callable[[Any], None],
        failed: Callable[[KVBridgeError], None],
        keys: int = 0,
    ) -> None:
        self.expects: type[Answer | Offer] = Answer if keys else Offer
        self.keys = keys
        self.xid = seeker.number()
        self.link: Link | None = None
        self.deadline: Timer | None = None
        self._seeker = seeker
        self._what = what
        self._send = send
        self._answered = answered
        self._failed = failed

    def linked(self, dialled: Transfer[Link]) -> None:
        """Put the question to its producer, now that there is a link to him."""
        if dialled.error is not None:
            self.fail(dialled.error)
        elif self._seeker.asking(self):
            self.link = dialled.result()
            self.link.on_down(self.fail)
            self._seeker.inbox(self.link)
            self._send(self.link, self.xid)

    def answer(self, value: object) -> None:
        """Take the answer."""
        if self._end():
            self._answered(value)

    def fail(self, error: KVBridgeError) -> None:
        """Take the reason for which there is none."""
        if self._end():
            self._failed(error)

    def give_up(self, error: KVBridgeError) -> None:
        """Take the question back."""
        if self._seeker.asking(self):
            if self.link is not None:
                self._seeker.cancel(self.link, self.xid)
            self.fail(error)

    def give_up_late(self, timeout: float) -> None:
        """Take the question back because its time is over."""
        self.give_up(TransferTimeoutError(f"{self._what}: no answer within {timeout:g} s"))

    def cancel(self) -> None:
        """Take the question back because nobody wants to know."""
        self.give_up(cancelled(self._what))

    def _end(self) -> bool:
        if self.deadline is not None:
            self.deadline.cancel()
        if self.link is not None:
            self.link.forget(self.fail)
        return self._seeker.ended(self)


class Seeker:
    """Questions to producers. All methods belong to the endpoint's thread."""

    def __init__(self, backend: Transport[Any], endpoint: Endpoint, channel: str, timeout: float) -> None:
        self._backend = backend
        self._endpoint = endpoint
        self._channel = channel
        self._timeout = timeout
        self._xids = itertools.count(1)
        self._questions: dict[int, _Question] = {}
        self._inboxes: dict[Link, Inbox] = {}

    def claim(
        self, key: Key, digest: bytes, *, take: bool, timeout: float, transfer: Transfer[Claim]
    ) -> Callable[[], None]:
        """Ask for a claim. Returns what cancels the question."""

        def send(link: Link, xid: int) -> None:
            self.inbox(link).asked[xid] = time.monotonic()
            link.send(Select(self._channel, xid, key.id, digest, take, timeout))

        def answered(incoming: Incoming) -> None:
            transfer.resolve(PipeClaim(incoming, key.id, self._timeout))

        what = f"asking {key.home or 'here'} for {key.id!r}"
        question = _Question(self, what, send, answered, transfer.fail)
        self._ask(question, key, timeout + ANSWER_GRACE)
        return question.cancel

    def contains(self, keys: list[Key], timeout: float, transfer: Transfer[list[bool]]) -> None:
        """Ask which keys are at their common home."""
        ids = tuple(key.id for key in keys)

        def send(link: Link, xid: int) -> None:
            link.send(Ask(self._channel, xid, ids))

        question = _Question(
            self, transfer.what, send, lambda present: transfer.resolve(list(present)), transfer.fail, len(ids)
        )
        self._ask(question, keys[0], timeout)

    def drop(self, keys: list[Key]) -> None:
        """Tell the home of these keys that nobody wants them."""
        ids = tuple(key.id for key in keys)
        dialled = self._endpoint.dial(keys[0].home, keys[0].generation)
        dialled.on_done(
            lambda done: None if done.error else done.result().send(Drop(self._channel, next(self._xids), ids))
        )

    def received(self, link: Link, message: Routed) -> None:
        """Take a message of a producer."""
        if isinstance(message, Miss):
            question = self._questions.get(message.xid)
            if question is not None and question.link is link:
                question.fail(from_code(message.code, message.message))
        elif isinstance(message, Answer):
            question = self._questions.get(message.xid)
            if question is None or question.link is not link:
                return
            if question.expects is not Answer or len(message.present) != question.keys:
                question.fail(ProtocolError("the producer answered another question than was asked"))
            else:
                question.answer(message.present)
        else:
            self.inbox(link).received(message)

    def close(self, error: KVBridgeError) -> None:
        """Fail every question and stop every transfer."""
        for question in list(self._questions.values()):
            question.fail(error)
        for inbox in list(self._inboxes.values()):
            inbox.close(error)

    # -- for questions ----------------------------------------------------------------------------------------

    def number(self) -> int:
        """Return a number for a new question."""
        return next(self._xids)

    def asking(self, question: _Question) -> bool:
        """Whether a question is open."""
        return question.xid in self._questions

    def ended(self, question: _Question) -> bool:
        """Close a question. Returns whether it was open."""
        inbox = self._inboxes.get(question.link) if question.link is not None else None
        if inbox is not None:
            inbox.asked.pop(question.xid, None)
        return self._questions.pop(question.xid, None) is not None

    def cancel(self, link: Link, xid: int) -> None:
        """Tell a producer to forget a question."""
        link.send(Cancel(self._channel, xid))

    def _ask(self, question: _Question, key: Key, timeout: float) -> None:
        self._questions[question.xid] = question
        question.deadline = self._endpoint.after(timeout, lambda: question.give_up_late(timeout))
        self._endpoint.dial(key.home or self._endpoint.address, key.generation).on_done(question.linked)

    def inbox(self, link: Link) -> Inbox:
        """Return the offers of a producer to us."""
        inbox = self._inboxes.get(link)
        if inbox is None:
            inbox = Inbox(self._backend, link, self._channel, self._arrived, lambda _: None)
            self._inboxes[link] = inbox
            link.route(self._channel, lambda message: self.received(link, message))
            link.on_down(lambda _: self._forget(link))
        return inbox

    def _forget(self, link: Link) -> None:
        self._inboxes.pop(link, None)

    def _arrived(self, incoming: Incoming) -> None:
        question = self._questions.get(incoming.offered.tag)
        if question is None or question.link is not incoming.link:
            incoming.decline()
        elif question.expects is Answer:
            incoming.decline()
            question.fail(ProtocolError("the producer answered another question than was asked"))
        else:
            question.answer(incoming)
