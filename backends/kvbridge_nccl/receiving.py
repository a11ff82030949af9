"""The consumer's side: a thread for each producer receives what it accepted, and puts it where it belongs."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from kvbridge.abc import Landing
from kvbridge.errors import ClosedError, KVBridgeError, PeerLostError, ProtocolError
from kvbridge.memory.cuda import is_cuda
from kvbridge.threads import Loop
from kvbridge.transfer import cancelled
from kvbridge_nccl import library
from kvbridge_nccl.card import Wanted
from kvbridge_nccl.chunks import largest
from kvbridge_nccl.half import Half
from kvbridge_nccl.staging import Staging

if TYPE_CHECKING:
    from kvbridge.memory import Payload
    from kvbridge_nccl.options import NcclOptions
    from kvbridge_nccl.staging import Header

BUFFERS = 3
"""Chunks that may have come and not be in their place yet."""

READY_POLL = 0.001
"""Seconds between two looks whether the producer has come."""


class Receiving(Half, Landing):
    """A value on its way from a producer.

    Args:
        receiver: Whose group it comes over.
        number: Its number there.
        out: Where it belongs.
        chunk: Bytes that come at one time.
    """

    def __init__(self, receiver: Receiver, number: int, out: Payload, chunk: int) -> None:
        super().__init__(number, out, chunk)
        self._receiver = receiver

    def abort(self) -> None:
        """End it: from here on nothing is written to the destination. What still comes is thrown away."""
        self.end(cancelled("receiving the value"))
        self._receiver.drop(self)

    def scatter(self, staging: Staging, header: Header) -> None:
        """Put the next chunk where it belongs, unless the landing has ended. For the group's thread.

        Raises:
            ProtocolError: It is not what has to come next.
        """
        with self._use:
            if self._ended:
                return
            chunk, last = next(self._chunks)
            if (chunk.nbytes, last) != (header.nbytes, header.last):
                raise ProtocolError(
                    f"the producer sent a chunk of {header.nbytes} bytes, one of {chunk.nbytes} was to come"
                )
            if chunk.device != "cpu" and not header.nccl:
                staging.from_host(chunk.nbytes, chunk.device)
            chunk.scatter(staging)


class Receiver:
    """One group, and the values that come over it.

    It ends when its producer is lost or sends nothing for too long; when nobody waits any more for a value that was
    announced, for then the group waits for what may never come; and when it was idle for long. The next value makes
    another one.

    Args:
        options: The backend's.
        peer: The producer's name.
        least: Bytes that a chunk has to have at least.
    """

    def __init__(self, options: NcclOptions, peer: str, least: int) -> None:
        self._options = options
        self._name = secrets.token_hex(16)
        self._chunk = max(options.chunk_bytes(), least)
        self._store: Any
        self._store, self._port = library.make_store(options.host, options.connect_timeout)
        self._changed = threading.Condition()
        self._pending: dict[int, Receiving] = {}
        self._count = 0
        self._used = time.monotonic()
        self._group: library.Group | None = None
        self._posted: deque[tuple[Staging, Any]] = deque()
        self._listening = False
        self._device = "cpu"
        self._leaving = False
        self._ended: KVBridgeError | None = None
        self._loop = Loop(f"nccl-receive-{peer}", self._step, self._wake, self._give_back)

    def receive(self, out: Payload, skip: int) -> Receiving | None:
        """Wait for a value. Returns None if the group has ended, or its chunks are too small."""
        with self._changed:
            if self._ended is not None or largest(out) > self._chunk:
                return None
            self._count += 1
            landing = Receiving(self, self._count, out, self._chunk)
            landing.descriptor = Wanted(
                self._name, self._options.host, self._port, self._chunk, landing.number, skip, is_cuda(out)
            ).encode()
            if is_cuda(out):
                self._device = str(out.device)
            self._pending[landing.number] = landing
            self._changed.notify()
            return landing

    def drop(self, landing: Receiving) -> None:
        """Wait for a value no longer. Any thread."""
        with self._changed:
            self._pending.pop(landing.number, None)
            alone = not self._pending
        if alone and (self._listening or self._leaving):
            self._end(cancelled("the transfer"))

    def leave(self) -> None:
        """End when nothing is waited for: the producer has gone."""
        with self._changed:
            self._leaving = True
            alone = not self._pending
        if alone:
            self._end(PeerLostError("the producer has gone"))

    def close(self, timeout: float) -> bool:
        """End now. Idempotent. Returns whether its thread has ended."""
        self._end(ClosedError("the backend was closed"))
        return self._loop.stop(timeout)

    @property
    def over(self) -> bool:
        """Whether its thread has ended."""
        return self._loop.stop(0) if self._ended is not None else False

    # -- the thread -------------------------------------------------------------------------------------------

    def _step(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._ended is not None, min(1.0, self._options.idle))
            waits = bool(self._pending)
        if self._ended is not None:
            self._loop.stop(0)
        elif waits:
            try:
                self._receive()
            except KVBridgeError as error:
                self._end(error)
            self._used = time.monotonic()
        elif self._leaving or time.monotonic() - self._used > self._options.idle:
            self._end(cancelled("waiting for values"))

    def _receive(self) -> None:
        """Receive while something is waited for. While one chunk is put in its place, the next ones may come."""
        if not self._waits():
            return
        group = self._joined()
        while self._waits():
            buffer, work = self._posted.popleft()
            group.wait(work)
            with self._changed:
                self._listening = False
            header = buffer.read()
            if header.nccl and header.nbytes:
                group.wait(group.receive(buffer.on(self._device, header.nbytes)))
            self._place(buffer, header)
            self._posted.append((buffer, group.receive(buffer.whole())))

    def _waits(self) -> bool:
        with self._changed:
            self._listening = bool(self._pending) and self._ended is None
            return self._listening

    def _place(self, buffer: Staging, header: Header) -> None:
        with self._changed:
            landing = self._pending.get(header.number)
        if landing is None:
            return  # nobody waits for it any more
        landing.scatter(buffer, header)
        if header.last:
            landing.end(None)
            with self._changed:
                self._pending.pop(header.number, None)

    def _joined(self) -> library.Group:
        if self._group is None:
            deadline = time.monotonic() + self._options.connect_timeout
            while not library.called("looking for the producer", lambda: self._store.check([f"{self._name}/ready"])):
                if self._ended is not None or not self._pending:
                    raise cancelled("waiting for the producer")
                if time.monotonic() > deadline:
                    raise PeerLostError(
                        f"the producer did not come to {self._options.host}:{self._port} within "
                        f"{self._options.connect_timeout:g} s: is options.host an address that it reaches?"
                    )
                time.sleep(READY_POLL)
            buffers = [Staging(self._chunk) for _ in range(BUFFERS)]
            options = self._options
            group = library.Group(
                self._store, self._name, 1, options.host, options.connect_timeout, options.stall_timeout
            )
            self._posted.extend((buffer, group.receive(buffer.whole())) for buffer in buffers)
            self._group = group
        return self._group

    # -- any thread -------------------------------------------------------------------------------------------

    def _end(self, error: KVBridgeError) -> None:
        with self._changed:
            if self._ended is not None:
                return
            self._ended = error
            landings, group = list(self._pending.values()), self._group
            self._pending.clear()
            self._changed.notify()
        for landing in landings:
            landing.end(error)
        if group is not None:
            group.end()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _give_back(self) -> None:
        self._group, self._store = None, None
        self._posted.clear()
