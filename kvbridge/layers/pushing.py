"""`PushingBuffer`: any LookupBuffer, whose values come to their consumer before he asks for them.

A producer that knows the consumer tells him of a value. He takes it into host memory of his own as soon as there is
room, and has it there when he claims it. Where there is none the value waits at its producer, as without a push: a
full room holds nobody up, and loses nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from kvbridge.control.messages import Push
from kvbridge.errors import KVBridgeError
from kvbridge.layers.arrivals import Arrivals
from kvbridge.layers.passing_buffer import WorkingBuffer
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbridge.abc.buffer import Claim, Key, LookupBuffer
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.link import Link
    from kvbridge.memory import Pages
    from kvbridge.memory.host_pool import HostPool

CHANNEL = "push"


class PushingBuffer(WorkingBuffer):
    """A buffer that pushes, and takes what is pushed. Close it: it closes the one inside, and the room.

    Args:
        inner: The buffer.
        endpoint: Whose thread is used; one such buffer an endpoint.
        room: Host memory for what is pushed to this side; None to take nothing. It becomes the buffer's own.
        lease: Seconds that a value which was pushed waits here to be claimed.
    """

    def __init__(self, inner: LookupBuffer, endpoint: Endpoint, room: HostPool | None, *, lease: float) -> None:
        self._room = room
        self._arrivals = Arrivals(inner, endpoint, room, lease)
        super().__init__(inner, endpoint)
        endpoint.call_soon(lambda: endpoint.serve(CHANNEL, self._arrivals.pushed))

    # -- producer ---------------------------------------------------------------------------------------------

    def announce(self, key: Key, payload: Pages, digest: bytes, to: str) -> None:
        """Tell a consumer of a value that was inserted here. Best effort: who hears nothing asks for it.

        Args:
            key: The key under which it was inserted.
            payload: What was inserted.
            digest: What it is KV of.
            to: The consumer's control address, `tcp://host:port`.
        """
        push = Push(CHANNEL, key.id, digest, payload.nbytes)

        def dialled(done: Transfer[Link]) -> None:
            if done.error is not None:
                self.counters["push_failed"] += 1
            else:
                done.result().send(push)
                self.counters["pushed"] += 1

        with contextlib.suppress(KVBridgeError):  # the endpoint may be closing
            self._endpoint.dial(to).on_done(dialled)

    # -- consumer ---------------------------------------------------------------------------------------------

    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        """Ask for a value: here, where it was pushed to this side, else at its producer. See `LookupBuffer.claim`."""
        transfer: Transfer[Claim] = Transfer(f"claiming {key.id!r}", lambda: self._endpoint.call_soon(cancel))
        asked: list[Transfer[Claim]] = []

        def cancel() -> None:
            for one in asked:
                one.cancel()
            if not asked:
                transfer.fail(cancelled(transfer.what))

        def answered(done: Transfer[Claim]) -> None:
            self._arrivals.asked.subtract([key.id])
            self._arrivals.asked += Counter()  # without those that are none any more
            done.hand_on(transfer)

        def claim() -> None:
            if self.closed is not None:
                transfer.fail(self.closed)
                return
            if not self._arrivals.claim(key, digest, take=take, timeout=timeout, transfer=transfer):
                self._arrivals.asked[key.id] += 1
                asked.append(self.inner.claim(key, digest=digest, take=take, timeout=timeout))
                asked[0].on_done(answered)

        try:
            self._endpoint.call_now(claim)
        except KVBridgeError as error:
            transfer.fail(error)
        return transfer

    def drop(self, keys: Sequence[Key]) -> None:
        """Give up values, here and at their home. See `LookupBuffer.drop`."""
        with contextlib.suppress(KVBridgeError):
            self._endpoint.call_soon(lambda: self._arrivals.drop(keys))
        self.inner.drop(keys)

    def stats(self) -> Mapping[str, float]:
        """Return the numbers of the buffer inside, and those of pushes, what waits here included."""
        counters = self.counters + self._arrivals.counters
        return {**self.inner.stats(), **{name: float(n) for name, n in counters.items()}, **self._arrivals.stats()}

    def close(self) -> None:
        """Close the buffer inside, and the room. See `WorkingBuffer.close`."""
        super().close()
        if self._room is not None:
            self._room.close()

    def give_up(self, error: KVBridgeError) -> None:
        """Give up what was pushed here, and take nothing more."""
        self._arrivals.finish(error)
