"""`Seeker`: the consumer's side of a buffer over pipes. Questions in flight, and the claims that came of them."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbridge.abc.buffer import Claim
from kvbridge.control.incoming import Inbox
from kvbridge.control.messages import Answer, Ask, Cancel, Drop, Miss, Routed, Select
from kvbridge.errors import KVBridgeError, TransferTimeoutError, from_code
from kvbridge.memory.payload import check_destination
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Transport
    from kvbridge.abc.buffer import Key
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.incoming import Incoming
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload

ANSWER_GRACE = 1.0
"""Seconds that a producer's answer may take beyond the time that it was given to wait."""


class PipeClaim(Claim):
    """A value that its producer holds for us."""

    def __init__(self, incoming: Incoming, timeout: float) -> None:
        self.spec = incoming.offered.spec
        self._incoming = incoming
        self._timeout = timeout
        self._endpoint = incoming.endpoint

    def fill(self, out: Payload, skip: int = 0) -> Transfer[None]:
        """Move the value into `out`, once. See `Claim.fill`."""
        transfer: Transfer[None] = Transfer("filling a claim")
        try:
            check_destination(self.spec, out, skip)
            return self._incoming.fill(out, skip, self._timeout)
        except KVBridgeError as error:
            transfer.fail(error)
        return transfer

    def release(self) -> None:
        """Give the claim back unused. Idempotent."""
        try:
            self._endpoint.call_soon(self._incoming.decline)
        except KVBridgeError:
            return  # the endpoint is closed: the producer was told


@dataclass(eq=False)
class _Question:
    """A question in flight."""

    xid: int
    link: Link | None
    answered: Callable[[object], None]
    failed: Callable[[KVBridgeError], None]
    decline: bool = False


class Seeker:
    """Questions to producers. All methods belong to the endpoint's thread."""

    def __init__(self, backend: Transport, endpoint: Endpoint, channel: str, timeout: float) -> None:
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
            self._inboxes[link].asked[xid] = time.monotonic()
            link.send(Select(self._channel, xid, key.id, digest, take, timeout))

        def answered(value: object) -> None:
            transfer.resolve(PipeClaim(value, self._timeout))  # type: ignore[arg-type]

        return self._ask(key, timeout + ANSWER_GRACE, f"asking for {key.id!r}", send, answered, transfer.fail)

    def contains(self, keys: list[Key], timeout: float, transfer: Transfer[list[bool]]) -> None:
        """Ask which keys are at their common home."""
        ids = tuple(key.id for key in keys)
        self._ask(
            keys[0],
            timeout,
            "asking which keys exist",
            lambda link, xid: link.send(Ask(self._channel, xid, ids)),
            lambda value: transfer.resolve(list(value)),  # type: ignore[call-overload]
            transfer.fail,
        )

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
                question.failed(from_code(message.code, message.message))
        elif isinstance(message, Answer):
            question = self._questions.get(message.xid)
            if question is not None and question.link is link:
                question.answered(message.present)
        else:
            self._inbox(link).received(message)

    def close(self, error: KVBridgeError) -> None:
        """Fail every question and stop every transfer."""
        for question in list(self._questions.values()):
            question.failed(error)
        for inbox in list(self._inboxes.values()):
            inbox.close(error)

    # -- inside -----------------------------------------------------------------------------------------------

    def _ask(
        self,
        key: Key,
        timeout: float,
        what: str,
        send: Callable[[Link, int], None],
        answered: Callable[[object], None],
        failed: Callable[[KVBridgeError], None],
    ) -> Callable[[], None]:
        xid = next(self._xids)

        def end() -> bool:
            return self._questions.pop(xid, None) is not None

        def on_answer(value: object) -> None:
            if end():
                answered(value)

        def on_failure(error: KVBridgeError) -> None:
            if end():
                if question.link is not None:
                    question.link.forget(on_failure)
                failed(error)

        question = _Question(xid, None, on_answer, on_failure)
        self._questions[xid] = question

        def on_link(dialled: Transfer[Link]) -> None:
            if dialled.error is not None:
                on_failure(dialled.error)
            elif xid in self._questions:
                question.link = dialled.result()
                question.link.on_down(on_failure)
                self._inbox(question.link)
                send(question.link, xid)

        def give_up(error: KVBridgeError) -> None:
            if xid in self._questions:
                if question.link is not None:
                    question.link.send(Cancel(self._channel, xid))
                on_failure(error)

        late = TransferTimeoutError(f"{what} at {key.home or self._endpoint.address}: no answer within {timeout:g} s")
        self._endpoint.after(timeout, lambda: give_up(late))
        self._endpoint.dial(key.home or self._endpoint.address, key.generation).on_done(on_link)
        return lambda: give_up(cancelled(what))

    def _inbox(self, link: Link) -> Inbox:
        inbox = self._inboxes.get(link)
        if inbox is None:
            inbox = Inbox(self._backend, link, self._channel, self._arrived, lambda _: None)
            self._inboxes[link] = inbox
            link.route(self._channel, lambda message: self.received(link, message))
            link.on_down(lambda _: self._inboxes.pop(link, None))
        return inbox

    def _arrived(self, incoming: Incoming) -> None:
        question = self._questions.get(incoming.offered.tag)
        if question is None:
            incoming.decline()
        else:
            question.answered(incoming)
