"""`Shelf`: the producer's side of a buffer over pipes. Values wait here, by key, until a consumer asks for them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvbridge import tracing
from kvbridge.abc.backend import MoveState
from kvbridge.buffers.questions import Question, Questions
from kvbridge.buffers.room import Delayed, RoomQueue
from kvbridge.buffers.tombstones import Tombstones
from kvbridge.control.attempt import attempt, hold
from kvbridge.control.messages import Answer, Ask, Cancel, Drop, Miss, Routed, Select, text
from kvbridge.control.outgoing import Outbox
from kvbridge.errors import (
    BindingMismatchError,
    DuplicateKeyError,
    KeyConsumedError,
    KeyDroppedError,
    KeyExpiredError,
    KeyUnknownError,
    KVBridgeError,
)
from kvbridge.transfer import run_callback

if TYPE_CHECKING:
    from kvbridge.abc.backend import Held, Transport
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.link import Link
    from kvbridge.control.reactor import Timer
    from kvbridge.memory import Payload, Spec
    from kvbridge.transfer import Transfer

VALID = 10.0
"""Seconds for which a value is promised to a consumer that asked for it. He renews while he is alive."""


@dataclass(frozen=True)
class Value:
    """What is known of a value.

    Attributes:
        key: Its key.
        spec: What it is.
        digest: What it is KV of.
        note: What its user says of it.
    """

    key: str
    spec: Spec
    digest: bytes
    note: bytes


@dataclass(eq=False, slots=True)
class _Entry:
    """One value that is held."""

    value: Value
    held: Held
    inserted: Transfer[None]
    expires: float
    reserved: bool = False
    offers: dict[int, Outbox] = field(default_factory=dict)
    gone: KVBridgeError | None = None
    expiring: Timer | None = None


class Shelf:
    """Values by key. All methods belong to the endpoint's thread.

    Args:
        backend: Holds them.
        endpoint: Whose thread it is.
        channel: Of the buffer's messages.
        patient: Whether a value for which there is no room yet waits for it, as long as its lease lasts.
    """

    def __init__(self, backend: Transport[Any], endpoint: Endpoint, channel: str, *, patient: bool = False) -> None:
        self.counters: Counter[str] = Counter()
        self._backend = backend
        self._endpoint = endpoint
        self._channel = channel
        self._patient = patient
        self._entries: dict[str, _Entry] = {}
        self._delayed = RoomQueue(endpoint, self._enter, self._refuse)
        self._tombstones = Tombstones()
        self._questions = Questions()
        self._outboxes: dict[Link, Outbox] = {}
        self._nbytes = 0
        self._closed: KVBridgeError | None = None

    @property
    def entries(self) -> int:
        """Number of live values."""
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of values that are held, those included that a consumer has not given back yet."""
        return self._nbytes

    @property
    def delayed(self) -> int:
        """Number of values that wait for room."""
        return len(self._delayed)

    def insert(self, value: Value, payload: Payload, lease: float, inserted: Transfer[None]) -> None:
        """Put a value on the shelf."""
        key = value.key
        if key in self._entries or key in self._delayed:
            self.counters["refused_duplicate"] += 1
            inserted.fail(DuplicateKeyError(f"the key {key!r} has a live value, which stays: use a new id"))
            return
        self._tombstones.discard(key)
        new = Delayed(value, payload, time.monotonic() + lease, inserted)
        if self._patient and self._may_fit(value.spec.nbytes):
            if self._delayed.put(new, lease):
                self.counters["delayed_inserts"] += 1
                tracing.mark("waits for room", key, **tracing.why(new.why))
            return
        try:
            self._enter(new)
        except KVBridgeError as error:
            self._refuse(new, error)

    def _may_fit(self, nbytes: int) -> bool:
        most = self._backend.capabilities
        return nbytes <= min(most.capacity_bytes, most.max_value_bytes or most.capacity_bytes)

    def _enter(self, new: Delayed) -> None:
        """Take a value in.

        Raises:
            KVBridgeError: The backend does not hold it.
        """
        value, inserted, key = new.value, new.inserted, new.value.key
        held = hold(self._backend, new.payload)
        entry = _Entry(value, held, inserted, new.expires)
        self._entries[key] = entry
        self._nbytes += value.spec.nbytes
        lease = max(0.0, new.expires - time.monotonic())
        tracing.begin("held", key, bytes=value.spec.nbytes, lease=lease)
        self.counters["inserted"] += 1
        for question in self._questions.take(key):
            if question.link.up:
                self._answer(question.link, question.select, entry)
        if self._prepare(entry) is not None:
            self._endpoint.move(lambda: self._prepare(entry))
        if entry.gone is None:
            entry.expiring = self._endpoint.after(lease, lambda: self._expire(entry))

    def _refuse(self, new: Delayed, error: KVBridgeError) -> None:
        self.counters["refused_insert"] += 1
        tracing.mark("refused", new.value.key, **tracing.why(error))
        self._bury(new.value.key, KeyDroppedError(f"the producer could not keep the value: {error}"))
        new.inserted.fail(error)

    def _bury(self, key: str, why: KVBridgeError) -> None:
        """Let those who ask for a key know, from now on, why it has no value."""
        self._tombstones.set(key, why)
        for question in self._questions.take(key):
            self._miss(question.link, question.select, why)

    def _prepare(self, entry: _Entry) -> bool | None:
        if entry.gone is not None:
            return None
        try:
            state = attempt(self._backend, entry.held.step)
        except KVBridgeError as error:
            self._fail(entry, error)
            return None
        if state is not MoveState.DONE:
            return state is MoveState.AGAIN
        if self._backend.capabilities.detaches:
            entry.inserted.resolve(None)
        return None

    def _fail(self, entry: _Entry, error: KVBridgeError) -> None:
        self.counters["failed_insert"] += 1
        entry.inserted.fail(error)
        self._remove(entry, KeyDroppedError(f"the producer could not keep the value: {error}"))

    def _expire(self, entry: _Entry) -> None:
        if entry.gone is not None:
            return
        remaining = entry.expires - time.monotonic()
        if remaining > 0 or entry.offers:  # promised to somebody: his renewals decide
            entry.expiring = self._endpoint.after(max(remaining, VALID), lambda: self._expire(entry))
            return
        self.counters["expired"] += 1
        self._remove(entry, KeyExpiredError(f"nobody took the value of {entry.value.key!r} before its lease ended"))

    def drop(self, keys: list[str]) -> None:
        """Give up values that nobody wants. A key that is still to come is refused when it comes to be asked for."""
        for key in keys:
            why = KeyDroppedError(f"the value of {key!r} was dropped: nobody wanted it")
            entry, delayed = self._entries.get(key), self._delayed.take(key)
            self.counters["dropped"] += entry is not None or delayed is not None
            if entry is not None:
                self._remove(entry, why)
            if delayed is not None:
                self._bury(key, why)
                delayed.inserted.resolve(None)

    def take_back(self, key: str, inserted: Transfer[None]) -> None:
        """Give up the value of one insert, if it is still here."""
        live = self._entries.get(key) or self._delayed.get(key)
        if live is not None and live.inserted is inserted:
            self.drop([key])

    def _remove(self, entry: _Entry, why: KVBridgeError) -> None:
        """Take a value off the shelf; its memory is released when no consumer can be reading it any more."""
        if entry.gone is None:
            entry.gone = why
            if entry.expiring is not None:
                entry.expiring.cancel()
            del self._entries[entry.value.key]
            self._tombstones.set(entry.value.key, why)
            for seq, outbox in list(entry.offers.items()):
                outbox.withdraw(seq, why)
        if not entry.offers:
            run_callback(entry.held.release)
            self._nbytes -= entry.value.spec.nbytes
            tracing.end("held", entry.value.key, why=why)
            entry.inserted.resolve(None)

    # -- consumers --------------------------------------------------------------------------------------------

    def received(self, link: Link, message: Routed) -> None:
        """Take a message of a consumer."""
        if isinstance(message, Select):
            self._select(link, message)
        elif isinstance(message, Cancel):
            self._questions.cancel(link, message.xid)
        elif isinstance(message, Ask):
            present = tuple(key in self._entries for key in message.keys)
            link.send(Answer(self._channel, message.xid, present))
        elif isinstance(message, Drop):
            self.drop(list(message.keys))
        elif link in self._outboxes:
            self._outboxes[link].received(message)

    def _select(self, link: Link, select: Select) -> None:
        self._outbox(link)  # from here on the end of the link is noticed
        entry = self._entries.get(select.key)
        if entry is not None:
            self._answer(link, select, entry)
            return
        if self._questions.has(link, select.xid):
            return  # it came before: the first one waits
        why = self._closed or self._tombstones.get(select.key)
        if why is None and not self._questions.full:
            self._questions.wait(link, select, self._late)
            return
        self._miss(link, select, why or KeyUnknownError("too many questions wait at this producer"))

    def _late(self, question: Question) -> None:
        key, wait = question.select.key, question.select.wait
        why = "its producer had no room for it" if key in self._delayed else "no value arrived"
        self._miss(question.link, question.select, KeyUnknownError(f"{why} under {key!r} within {wait:g} s"))

    def _answer(self, link: Link, select: Select, entry: _Entry) -> None:
        if select.digest != entry.value.digest:
            self.counters["refused_binding"] += 1
            self._miss(
                link,
                select,
                BindingMismatchError(f"the value of {entry.value.key!r} is KV of something else than asked for"),
            )
            return
        if entry.reserved:
            self._miss(link, select, KeyConsumedError(f"the value of {entry.value.key!r} belongs to another consumer"))
            return
        entry.reserved = select.take
        outbox = self._outbox(link)

        def ended(error: KVBridgeError | None) -> None:
            del entry.offers[seq]
            self._ended(entry, error, take=select.take)

        value = entry.value
        seq = outbox.offer(entry.held, value.spec, select.xid, VALID, ended, name=value.key, note=value.note)
        entry.offers[seq] = outbox

    def _ended(self, entry: _Entry, error: KVBridgeError | None, *, take: bool) -> None:
        self.counters["taken" if error is None else "not_taken"] += 1
        if entry.gone is not None or take:
            why = "was taken" if error is None else f"was given out and not taken ({error})"
            self._remove(entry, KeyConsumedError(f"the value of {entry.value.key!r} {why}: keys are single-use"))
        elif not entry.offers and time.monotonic() >= entry.expires:
            self._expire(entry)

    def _outbox(self, link: Link) -> Outbox:
        outbox = self._outboxes.get(link)
        if outbox is None:
            outbox = self._outboxes[link] = Outbox(self._backend, link, self._channel)
            link.on_down(lambda _: self._forget(link))
        return outbox

    def _forget(self, link: Link) -> None:
        self._outboxes.pop(link, None)
        self._questions.forget(link)

    def _miss(self, link: Link, select: Select, error: KVBridgeError) -> None:
        self.counters[f"miss_{error.code}"] += 1
        tracing.mark("missed", select.key, by=link.peer.name, **tracing.why(error))
        link.send(Miss(self._channel, select.xid, error.code, text(error)))

    def close(self) -> None:
        """Give up everything. What a consumer still reads is released when he is done with it."""
        self._closed = KeyDroppedError("the producer's buffer was closed")
        for entry in list(self._entries.values()):
            self._remove(entry, self._closed)
        for delayed in self._delayed.take_all():
            delayed.inserted.resolve(None)
        for question in self._questions.take_all():
            self._miss(question.link, question.select, self._closed)
