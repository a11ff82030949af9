"""The producer's side: a thread for each group sends chunk after chunk of what its consumer accepted."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from kvbridge.errors import ClosedError, KVBridgeError, PeerLostError
from kvbridge.threads import Loop
from kvbridge.transfer import cancelled
from kvbridge_nccl import library
from kvbridge_nccl.chunks import less
from kvbridge_nccl.half import Half
from kvbridge_nccl.staging import Header, Staging

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.memory import Payload
    from kvbridge_nccl.card import Wanted
    from kvbridge_nccl.options import NcclOptions

BUFFERS = 2
"""Chunks that may be on their way."""

POLL = 0.25
"""Seconds between two looks of a thread that has nothing to send."""


class Sending(Half):
    """A value on its way to one consumer.

    Args:
        payload: The value.
        wanted: What the consumer said.
        drop: Called once with this move when it ends early.
    """

    def __init__(self, payload: Payload, wanted: Wanted, drop: Callable[[Sending], None]) -> None:
        super().__init__(wanted.number, less(payload, wanted.skip), wanted.chunk)
        self._cuda = wanted.cuda
        self._drop = drop

    def abort(self) -> None:
        """End it: from here on nothing of the payload is read. What is in a buffer of the library may still be sent."""
        self.end(cancelled("sending the value"))
        self._drop(self)

    # -- for the group's thread -------------------------------------------------------------------------------

    def gather(self, staging: Staging) -> tuple[Header, str] | None:
        """Copy the next chunk to where it is sent from, and write its header.

        Returns:
            The header, and the device of the buffer that the chunk is in; None when the move has ended.
        """
        with self._use:
            if self._ended:
                return None
            chunk, last = next(self._chunks)
            chunk.gather(staging)
            device = chunk.device
            if device != "cpu" and not self._cuda:
                staging.to_host(chunk.nbytes, device)
                device = "cpu"
            header = Header(self.number, chunk.nbytes, last, device != "cpu")
            staging.write(header)
            return header, device


class Sender:
    """One group, and the values that are sent over it, in order.

    Args:
        wanted: Where its consumer is.
        peer: The consumer's name.
        options: The backend's.
    """

    def __init__(self, wanted: Wanted, peer: str, options: NcclOptions) -> None:
        self._wanted = wanted
        self._options = options
        self._changed = threading.Condition()
        self._queue: deque[Sending] = deque()
        self._group: library.Group | None = None
        self._staging: list[Staging] | None = None
        self._ended: KVBridgeError | None = None
        self._leaving = False
        self._loop = Loop(f"nccl-send-{peer}", self._step, self._wake, self._give_back)

    def send(self, payload: Payload, wanted: Wanted) -> Sending:
        """Send a value when its turn has come.

        Raises:
            PeerLostError: The group has ended.
        """
        move = Sending(payload, wanted, self._drop)
        with self._changed:
            if self._ended is not None:
                raise PeerLostError(f"the group with the consumer has ended: {self._ended}") from self._ended
            self._queue.append(move)
            self._changed.notify()
        return move

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._wanted.group

    @property
    def over(self) -> bool:
        """Whether its thread has ended."""
        return self._loop.stop(0) if self._ended is not None else False

    def leave(self) -> None:
        """End the group when nothing is left to send."""
        with self._changed:
            self._leaving = True
            self._changed.notify()

    def close(self, timeout: float) -> bool:
        """End the group now. Idempotent. Returns whether its thread has ended."""
        self._end(ClosedError("the backend was closed"))
        return self._loop.stop(timeout)

    # -- the thread -------------------------------------------------------------------------------------------

    def _step(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._leaving or self._ended is not None, POLL)
            move = self._queue[0] if self._queue else None
            leaves = self._leaving and move is None
        if self._ended is not None:
            self._loop.stop(0)
        elif leaves:
            self._end(PeerLostError("the consumer has gone"))
        elif move is not None:
            try:
                self._send(move)
            except KVBridgeError as error:
                self._end(error)

    def _send(self, move: Sending) -> None:
        group, buffers = self._joined()
        flying: list[list[Any]] = [[] for _ in buffers]
        for buffer, works in itertools.cycle(zip(buffers, flying, strict=True)):  # one is filled while others travel
            _await(group, works)
            found = move.gather(buffer)
            if found is None:
                break
            header, device = found
            works.append(group.send(buffer.message(0 if header.nccl else header.nbytes)))
            if header.nccl and header.nbytes:
                works.append(group.send(buffer.on(device, header.nbytes)))
            if header.last:
                break
        for works in flying:
            _await(group, works)
        self._drop(move)
        move.end(None)

    def _joined(self) -> tuple[library.Group, list[Staging]]:
        if self._group is None or self._staging is None:
            wanted, options = self._wanted, self._options
            store = library.join_store(wanted.host, wanted.port, options.connect_timeout)
            library.called("telling the consumer", lambda: store.set(f"{wanted.group}/ready", "1"))
            self._staging = [Staging(wanted.chunk) for _ in range(BUFFERS)]
            self._group = library.Group(
                store, wanted.group, 0, options.host, options.connect_timeout, options.stall_timeout
            )
        return self._group, self._staging

    # -- any thread -------------------------------------------------------------------------------------------

    def _end(self, error: KVBridgeError) -> None:
        with self._changed:
            if self._ended is not None:
                return
            self._ended = error
            moves, group = list(self._queue), self._group
            self._queue.clear()
            self._changed.notify()
        for move in moves:
            move.end(error)
        if group is not None:
            group.end()

    def _drop(self, move: Sending) -> None:
        with self._changed:
            if move in self._queue:
                self._queue.remove(move)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _give_back(self) -> None:
        self._group, self._staging = None, None


def _await(group: library.Group, works: list[Any]) -> None:
    for work in works:
        group.wait(work)
    works.clear()
