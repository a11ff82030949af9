"""`Arrivals`: values that were pushed to this side, from their announcement until they are claimed."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbridge.abc.buffer import Claim, Key
from kvbridge.control.messages import Push, Routed
from kvbridge.errors import (
    BindingMismatchError,
    BusyError,
    CapacityError,
    KeyConsumedError,
    KVBridgeError,
    SpecMismatchError,
    TransferTimeoutError,
)
from kvbridge.layers.packing import Packing, packed_pages
from kvbridge.memory.payload import check_destination
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvbridge.abc.buffer import LookupBuffer
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.link import Link
    from kvbridge.control.reactor import Timer
    from kvbridge.memory import Payload, Spec
    from kvbridge.memory.host_pool import HostBlock, HostPool


@dataclass(eq=False)
class _Wish:
    """A claim that waits for its value to arrive."""

    digest: bytes
    take: bool
    transfer: Transfer[Claim]
    deadline: Timer | None = None


@dataclass(eq=False)
class _Arrival:
    """A value that was pushed: under way, or here."""

    key: Key
    digest: bytes
    block: HostBlock | None
    spec: Spec | None = None
    note: bytes = b""
    here: bool = False
    taken: bool = False
    users: int = 0
    gone: bool = False
    wishes: list[_Wish] = field(default_factory=list)
    expiring: Timer | None = None

    @property
    def memory(self) -> NDArray[np.uint8]:
        """Its bytes, packed.

        Raises:
            KVBridgeError: It is gone.
        """
        if self.block is None:
            raise cancelled(f"taking {self.key.id!r}")
        return self.block.memory


class Arrivals:
    """What was pushed. All methods belong to the endpoint's thread, but `stats`.

    Args:
        inner: By which values are taken from their producers.
        endpoint: Whose thread it is.
        room: Host memory for them; None to take nothing.
        lease: Seconds that a value waits here to be claimed.

    Attributes:
        counters: What became of pushes.
        asked: How many claims of a key are on their way to its producer: its request came before the push.
    """

    def __init__(self, inner: LookupBuffer, endpoint: Endpoint, room: HostPool | None, lease: float) -> None:
        self.counters: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self._inner = inner
        self._endpoint = endpoint
        self._room = room
        self._lease = lease
        self._arrivals: dict[str, _Arrival] = {}
        self._packings: set[Packing] = set()
        self._nbytes = 0
        self._closed: KVBridgeError | None = None

    def stats(self) -> dict[str, float]:
        """Return what waits here."""
        return {"received_values": float(len(self._arrivals)), "received_bytes": float(self._nbytes)}

    def claim(self, key: Key, digest: bytes, *, take: bool, timeout: float, transfer: Transfer[Claim]) -> bool:
        """Answer a claim from what was pushed. Returns whether it was: else its producer has to be asked."""
        arrival = self._arrivals.get(key.id)
        if arrival is None or arrival.key.home != key.home or key.generation not in (0, arrival.key.generation):
            return False
        wish = _Wish(digest, take, transfer)
        if arrival.here:
            self._give(arrival, wish)
        else:
            self._await(arrival, wish, timeout)
        return True

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values."""
        for key in keys:
            arrival = self._arrivals.get(key.id)
            if arrival is not None and arrival.key.home == key.home:
                self._remove(arrival, cancelled(f"taking {key.id!r}"))

    def finish(self, error: KVBridgeError) -> None:
        """Give up everything, and take nothing more."""
        self._closed = self._closed or error
        for packing in list(self._packings):
            packing.stop(error)
        for arrival in list(self._arrivals.values()):
            self._remove(arrival, error)

    def unpack(self, arrival: _Arrival, out: Payload, skip: int, used: Callable[[], None]) -> Transfer[None]:
        """Copy a value to where its claimer wants it; call `used` at the end. For claims, on any thread."""
        what = f"filling {arrival.key.id!r}"
        packing = Packing(self._endpoint, arrival.memory, out, what=what, skip=skip, into=False)

        def over(_: Transfer[None]) -> None:
            self._packings.discard(packing)
            used()

        def start() -> None:
            if self._closed is not None:
                packing.stop(self._closed)
            self._packings.add(packing)
            packing.transfer.on_done(over)
            packing.start()

        try:
            self._endpoint.call_now(start)
        except KVBridgeError as error:
            packing.stop(error)
        return packing.transfer

    def let_go(self, used: Callable[[], None]) -> None:
        """Take note that a claim was given back. For claims, on any thread."""
        with contextlib.suppress(KVBridgeError):  # closed: everything was given up
            self._endpoint.call_now(used)

    def pushed(self, link: Link, message: Routed) -> None:
        """Take a value that a producer has for this side, if there is room."""
        if not isinstance(message, Push) or self._closed is not None or message.key in self._arrivals:
            return
        if self.asked[message.key]:
            self.counters["push_late"] += 1
            return
        block = self._make_room(message.nbytes)
        if block is None:
            self.counters["push_declined"] += 1
            return
        key = Key(message.key, link.peer.address, link.peer.generation)
        arrival = self._arrivals[key.id] = _Arrival(key, message.digest, block)
        self._nbytes += block.nbytes
        self._inner.claim(key, digest=message.digest, take=True).on_done(lambda done: self._claimed(arrival, done))

    def _make_room(self, nbytes: int) -> HostBlock | None:
        try:
            return None if self._room is None else self._room.allocate(nbytes)
        except CapacityError:
            return None

    def _claimed(self, arrival: _Arrival, claimed: Transfer[Claim]) -> None:
        if claimed.error is not None:
            self._fail(arrival, claimed.error)
            return
        claim = claimed.result()
        try:
            if arrival.gone:
                raise cancelled(f"taking {arrival.key.id!r}")
            pages = packed_pages(arrival.memory, claim.spec)
        except KVBridgeError as error:
            claim.release()
            self._fail(arrival, error)
            return
        arrival.spec, arrival.note = claim.spec, claim.note
        arrival.users += 1
        claim.fill(pages).on_done(lambda done: self._landed(arrival, done))

    def _landed(self, arrival: _Arrival, filled: Transfer[None]) -> None:
        arrival.users -= 1
        if filled.error is not None or arrival.gone:
            self._fail(arrival, filled.error or cancelled(f"taking {arrival.key.id!r}"))
            return
        self.counters["push_taken"] += 1
        arrival.here = True
        wishes, arrival.wishes = arrival.wishes, []
        for wish in wishes:
            self._give(arrival, wish)
        arrival.expiring = self._endpoint.after(self._lease, lambda: self._expire(arrival))

    def _fail(self, arrival: _Arrival, error: KVBridgeError) -> None:
        if not arrival.gone:
            self.counters["push_late" if isinstance(error, KeyConsumedError) else "push_lost"] += 1
        self._remove(arrival, error)

    def _expire(self, arrival: _Arrival) -> None:
        if not (arrival.taken or arrival.gone):
            self.counters["push_expired"] += 1
            self._remove(arrival, cancelled("waiting for what expired"))

    def _await(self, arrival: _Arrival, wish: _Wish, timeout: float) -> None:
        arrival.wishes.append(wish)
        if timeout:
            late = TransferTimeoutError(f"{wish.transfer.what}: it did not arrive within {timeout:g} s")
            wish.deadline = self._endpoint.after(timeout, lambda: wish.transfer.fail(late))

    def _give(self, arrival: _Arrival, wish: _Wish) -> None:
        if wish.deadline is not None:
            wish.deadline.cancel()
        name = arrival.key.id
        if wish.transfer.poll():  # cancelled, or its time is over
            return
        if wish.digest != arrival.digest:
            self.counters["refused_binding"] += 1
            wish.transfer.fail(BindingMismatchError(f"the value of {name!r} is KV of something else than asked for"))
        elif arrival.taken:
            wish.transfer.fail(KeyConsumedError(f"the value of {name!r} was taken: keys are single-use"))
        else:
            arrival.taken = wish.take
            arrival.users += 1
            wish.transfer.resolve(_ArrivedClaim(self, arrival, lambda: self._used(arrival, take=wish.take)))

    def _used(self, arrival: _Arrival, *, take: bool) -> None:
        """Take note that a claim is over."""
        arrival.users -= 1
        if take or arrival.gone:
            self._remove(arrival, cancelled("a claim that was given back"))

    def _remove(self, arrival: _Arrival, error: KVBridgeError) -> None:
        """Forget a value; its memory is free when nothing is written to it or read from it any more."""
        if not arrival.gone:
            arrival.gone = True
            self._arrivals.pop(arrival.key.id, None)
            if arrival.expiring is not None:
                arrival.expiring.cancel()
            for wish in arrival.wishes:
                wish.transfer.fail(error)
        block = arrival.block
        if block is not None and not arrival.users:
            arrival.block = None
            self._nbytes -= block.nbytes
            block.release()


class _ArrivedClaim(Claim):
    """A value that was pushed to this side."""

    def __init__(self, arrivals: Arrivals, arrival: _Arrival, used: Callable[[], None]) -> None:
        if arrival.spec is None:
            raise SpecMismatchError("a value that has not arrived cannot be claimed")
        self.spec = arrival.spec
        self.note = arrival.note
        self._arrivals = arrivals
        self._arrival = arrival
        self._used = used
        self._use = threading.Lock()

    def fill(self, out: Payload, skip: int = 0) -> Transfer[None]:
        transfer: Transfer[None] = Transfer(f"filling {self._arrival.key.id!r}")
        try:
            check_destination(self.spec, out, skip)
            if not self._use.acquire(blocking=False):
                raise BusyError("the claim was filled or released before")
        except KVBridgeError as error:
            transfer.fail(error)
            return transfer
        return self._arrivals.unpack(self._arrival, out, skip, self._used)

    def release(self) -> None:
        if self._use.acquire(blocking=False):
            self._arrivals.let_go(self._used)
