"""`SendPipe` and `RecvPipe`: one-way, first-in first-out, tensors or pages. Two types, so a wrong-way call cannot be.

A payload moves by rendezvous. `post` makes an *offer* on the control channel. The receiver `peek`s at its spec,
names the destination and `accept`s. The backend moves the bytes from whichever side is right for it, and *done*
gives the source back.

Order: offers arrive in the order in which they were posted. `recv_tensor` and `recv` take them in that order. A user
who accepts offers out of order gets their bytes in the order of his accepts.

Ends of a pipe's life: `ClosedError` (you closed it), `EndOfPipeError` (the peer closed, all delivered),
`PipeBrokenError` (the peer or the link is gone; when the link is, it stays so), `BusyError` (two users of one end),
and `TransferTimeoutError` (this transfer only; the pipe still works). An idle pipe is healthy.

Threads: any one thread at a time may use an end.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from kvbridge.errors import BusyError, ClosedError, SpecMismatchError, TransferTimeoutError
from kvbridge.memory.cuda import settle
from kvbridge.memory.payload import check_destination, spec_of
from kvbridge.memory.tensors import TensorSpec, new_tensor

if TYPE_CHECKING:
    from types import TracebackType

    from kvbridge.memory import Payload, Spec
    from kvbridge.transfer import Transfer

DEFAULT_TIMEOUT = 30.0
"""Seconds after which a transfer counts as failed unless the caller says otherwise."""


@dataclass(frozen=True, eq=False)
class Offered:
    """An offer as the receiver sees it.

    Attributes:
        seq: Its number on this pipe, from 0.
        tag: A number that the sender attached; 0 where he gave none.
        spec: What the payload is.
        note: What the sender said of it; only with a value of a buffer.
    """

    seq: int
    tag: int
    spec: Spec
    note: bytes = b""


class _End(ABC):
    """What both ends share: state, exclusive use, context management."""

    def __init__(self) -> None:
        self._is_closed = False
        self._use = threading.Lock()

    @abstractmethod
    def _close(self) -> None: ...

    @final
    def close(self) -> None:
        """Close this end. Idempotent, bounded. Unfinished transfers of this end finish with `ClosedError`."""
        if not self._is_closed:
            self._is_closed = True
            self._close()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enter(self) -> threading.Lock:
        if self._is_closed:
            raise ClosedError(f"this {type(self).__name__} was closed: open a new pipe")
        if not self._use.acquire(blocking=False):
            raise BusyError(f"another thread is using this {type(self).__name__}: one user at a time")
        return self._use


class SendPipe(_End):
    """The sending end."""

    @final
    def post(self, payload: Payload, tag: int = 0) -> Transfer[None]:
        """Offer a payload. Returns at once.

        Args:
            payload: A contiguous tensor or `Pages`. It stays yours but must not change until the transfer finishes.
                On a GPU all work that was queued on it is done.
            tag: A number for the receiver.

        Returns:
            A transfer that resolves when the receiver has the payload. Its failures: `PipeBrokenError`,
            `ClosedError`, `TransportError`, `CapacityError` (there is no room for it), `UnsupportedError` (the
            backend does not move this kind of payload), `KeyDroppedError` (the receiver declined it).

        Raises:
            SpecMismatchError: The payload is neither a tensor nor `Pages`.
            ClosedError, PipeBrokenError, BusyError: See the module.
        """
        lock = self._enter()
        try:
            return self._post(payload, spec_of(payload), tag)
        finally:
            lock.release()

    @final
    def send_tensor(self, tensor: Any, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Send a tensor and wait until the receiver has it.

        Args:
            tensor: A contiguous numpy array or torch tensor. On a GPU what the caller has queued is waited for.
            timeout: Seconds. On timeout the offer is withdrawn and the memory is yours again.

        Raises:
            TransferTimeoutError: The receiver did not take it in time; the pipe still works.
            KVBridgeError: See `post`.
        """
        settle(tensor)
        _finish(self.post(tensor), timeout)

    @abstractmethod
    def _post(self, payload: Payload, spec: Spec, tag: int) -> Transfer[None]:
        """Make the offer."""


class RecvPipe(_End):
    """The receiving end."""

    @final
    def peek(self, timeout: float = 0.0) -> Offered | None:
        """Look at the next offer without taking it.

        Args:
            timeout: Seconds to wait for one.

        Returns:
            The next offer that was not yet accepted, or None when none came in time.

        Raises:
            EndOfPipeError, PipeBrokenError, ClosedError, BusyError: See the module.
        """
        lock = self._enter()
        try:
            return self._peek(timeout)
        finally:
            lock.release()

    @final
    def accept(self, offer: Offered, out: Payload, skip: int = 0) -> Transfer[None]:
        """Take an offer into `out`. Returns at once.

        Args:
            offer: An offer of this pipe.
            out: Destination of the offer's shape and type. It belongs to the transfer until that finishes.
            skip: For `Pages`: leave out the first blocks of every region.

        Returns:
            A transfer that resolves when all bytes are in `out`. Its failures: `LeaseExpiredError`,
            `PipeBrokenError`, `ClosedError`, `TransportError`, `CancelledError`.

        Raises:
            SpecMismatchError: `out` does not fit; the offer stands and may be accepted with another destination.
            ClosedError, BusyError: See the module. `BusyError` also if the offer was accepted before.
        """
        lock = self._enter()
        try:
            check_destination(offer.spec, out, skip)
            return self._accept(offer, out, skip)
        finally:
            lock.release()

    @final
    def decline(self, offer: Offered) -> None:
        """Refuse an offer: its sender gets the source back and hears of it."""
        lock = self._enter()
        try:
            self._decline(offer)
        finally:
            lock.release()

    @final
    def recv_tensor(self, out: Any = None, timeout: float = DEFAULT_TIMEOUT) -> Any:
        """Receive the next tensor.

        Args:
            out: Destination of the same dtype and shape; a new host tensor of the sender's library where None. On a
                GPU what the caller has queued is waited for.
            timeout: Seconds for the offer to come and the bytes to arrive.

        Returns:
            The tensor. It is yours.

        Raises:
            TransferTimeoutError: Nothing came in time; the pipe still works and nothing is lost.
            SpecMismatchError: `out` does not fit, or the next payload is `Pages`; the offer stands.
            KVBridgeError: See `peek` and `accept`.
        """
        deadline = time.monotonic() + timeout
        offer = self.peek(timeout)
        if offer is None:
            raise TransferTimeoutError(f"no tensor was offered within {timeout:g} s")
        if not isinstance(offer.spec, TensorSpec):
            raise SpecMismatchError("the next payload is Pages: use accept() with Pages as destination")
        target = new_tensor(offer.spec) if out is None else out
        settle(target)
        _finish(self.accept(offer, target), max(0.0, deadline - time.monotonic()))
        return target

    @abstractmethod
    def _peek(self, timeout: float) -> Offered | None:
        """Return the next offer."""

    @abstractmethod
    def _accept(self, offer: Offered, out: Payload, skip: int) -> Transfer[None]:
        """Take the offer."""

    @abstractmethod
    def _decline(self, offer: Offered) -> None:
        """Refuse the offer."""


ABORT_GRACE = 5.0
"""Seconds that a cancelled transfer may take to make its memory safe before the caller is told."""


def _finish(transfer: Transfer[None], timeout: float) -> None:
    """Wait for a transfer; on timeout cancel it and wait until its memory is safe."""
    try:
        transfer.wait(timeout)
    except TransferTimeoutError:
        if transfer.poll():
            raise
        transfer.cancel()
        try:
            transfer.wait(ABORT_GRACE)
        except TransferTimeoutError:
            raise TransferTimeoutError(
                f"{transfer.what} did not finish within {timeout:g} s and could not be stopped within another "
                f"{ABORT_GRACE:g} s: its memory must not be reused yet"
            ) from None
        except Exception:
            raise TransferTimeoutError(f"{transfer.what} did not finish within {timeout:g} s") from None
