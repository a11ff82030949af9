"""Wrong pipes, each a few lines away from a right one."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from kvbridge.errors import EndOfPipeError, PipeBrokenError, SpecMismatchError, TransferTimeoutError
from kvbridge.layers.faulty import Fault, Faults, faulty_send
from kvbridge.transfer import Transfer
from tests.mutants.wrapping import Recv, Send, Wrapping


def _done(what: str = "posted") -> Transfer[None]:
    transfer: Transfer[None] = Transfer(what)
    transfer.resolve(None)
    return transfer


class Reorders(Wrapping):
    """Sends the third message after the fourth."""

    def open_send(self, link: Any, channel: str) -> Any:
        return faulty_send(super().open_send(link, channel), Faults(Fault("reorder", at=2)))


class DeliversTwice(Wrapping):
    """Sends a message twice."""

    def open_send(self, link: Any, channel: str) -> Any:
        return faulty_send(super().open_send(link, channel), Faults(Fault("duplicate", at=1)))


class CorruptsOneByte(Wrapping):
    def open_send(self, link: Any, channel: str) -> Any:
        return faulty_send(super().open_send(link, channel), Faults(Fault("corrupt", at=0)))


class DropsTheLastOnClose(Wrapping):
    """Keeps the newest message back, as a sender that batches does, and forgets it when it is closed."""

    class send(Send):  # noqa: N801
        kept: Any = None

        def _post(self, payload: Any, spec: Any, tag: int) -> Transfer[None]:
            kept, self.kept = self.kept, (payload, tag)
            if kept is not None:
                self.inner.post(*kept)
            return _done()


class DoneTooEarly(Wrapping):
    """Says that it is done when the message has only been posted."""

    class send(Send):  # noqa: N801
        def _post(self, payload: Any, spec: Any, tag: int) -> Transfer[None]:
            self.inner.post(payload, tag)
            return _done()


class ReusesItsBuffer(Wrapping):
    """Returns views of one receive buffer."""

    class recv(Recv):  # noqa: N801
        scratch = np.empty(1 << 20, dtype=np.uint8)

        def recv_tensor(self, out: Any = None, timeout: float = 30.0) -> Any:
            found = self.inner.recv_tensor(out, timeout)
            view = self.scratch[: found.size].reshape(found.shape)
            view[:] = found
            return view


class IgnoresShape(Wrapping):
    """Takes any destination that is large enough."""

    class recv(Recv):  # noqa: N801
        def accept(self, offer: Any, out: Any, skip: int = 0) -> Transfer[None]:
            try:
                return self.inner.accept(offer, out, skip)
            except SpecMismatchError:
                return _done()


class LosesScalars(Wrapping):
    """Returns a scalar as an array of one element."""

    class recv(Recv):  # noqa: N801
        def accept(self, offer: Any, out: Any, skip: int = 0) -> Transfer[None]:
            if offer.spec.shape == ():
                return _done()
            return self.inner.accept(offer, out, skip)


class Float32Only(Wrapping):
    """Moves half precision by way of float32, and rounds what is no number."""

    class recv(Recv):  # noqa: N801
        def accept(self, offer: Any, out: Any, skip: int = 0) -> Transfer[None]:
            filled = self.inner.accept(offer, out, skip)
            if offer.spec.dtype == "float16":
                filled.wait(10)
                out[:] = np.nan_to_num(out)
            return filled


class TagIsLost(Wrapping):
    class send(Send):  # noqa: N801
        def _post(self, payload: Any, spec: Any, tag: int) -> Transfer[None]:
            return self.inner.post(payload)


class PeekTakes(Wrapping):
    """Forgets an offer that was looked at and not taken."""

    class recv(Recv):  # noqa: N801
        looked: Any = None

        def _peek(self, timeout: float) -> Any:
            found = self.inner.peek(timeout)
            if found is not None and found is self.looked:
                self.inner.decline(found)
                return self.inner.peek(timeout)
            self.looked = found
            return found


class OneOfferAtATime(Wrapping):
    """Shows no second offer until the first has arrived, and gives it what was asked for last."""

    class recv(Recv):  # noqa: N801
        last: Any = None

        def _accept(self, offer: Any, out: Any, skip: int) -> Transfer[None]:
            previous, self.last = self.last, out
            return self.inner.accept(offer, out if previous is None else previous, skip)


class DeclineIsIgnored(Wrapping):
    class recv(Recv):  # noqa: N801
        def _decline(self, offer: Any) -> None:
            self.inner.accept(offer, np.empty(offer.spec.shape, dtype=offer.spec.dtype))


class OneChannel(Wrapping):
    """Sends everything on one channel."""

    def open_send(self, link: Any, channel: str) -> Any:
        return super().open_send(link, "clogged" if channel == "free" else channel)


class OneWay(Wrapping):
    """Serves the side that was dialled only."""

    def open_recv(self, link: Any, channel: str) -> Any:
        return super().open_recv(link, "nothing" if channel == "back" else channel)


class BreaksAfterTimeout(Wrapping):
    class send(Send):  # noqa: N801
        def send_tensor(self, tensor: Any, timeout: float = 30.0) -> None:
            try:
                self.inner.send_tensor(tensor, timeout)
            except TransferTimeoutError:
                self.inner.close()
                raise


class CannotCancel(Wrapping):
    class send(Send):  # noqa: N801
        def _post(self, payload: Any, spec: Any, tag: int) -> Transfer[None]:
            inner = self.inner.post(payload, tag)
            transfer: Transfer[None] = Transfer("a transfer that cannot be cancelled")
            inner.on_done(lambda done: done.hand_on(transfer))
            return transfer


class LetsEverybodyIn(Wrapping):
    """Has no check for two users of one end."""

    class recv(Recv):  # noqa: N801
        def peek(self, timeout: float = 0.0) -> Any:
            try:
                return self.inner.peek(timeout)
            except Exception:
                return None


class WorksAfterClose(Wrapping):
    class send(Send):  # noqa: N801
        def close(self) -> None:
            pass


class CallsTheEndBroken(Wrapping):
    class recv(Recv):  # noqa: N801
        def _peek(self, timeout: float) -> Any:
            try:
                return self.inner.peek(timeout)
            except EndOfPipeError as error:
                raise PipeBrokenError(str(error)) from error


class CallsBrokenTheEnd(Wrapping):
    class recv(Recv):  # noqa: N801
        def _peek(self, timeout: float) -> Any:
            try:
                return self.inner.peek(timeout)
            except PipeBrokenError as error:
                raise EndOfPipeError(str(error)) from error


class SwallowsADeadSender(Wrapping):
    class recv(Recv):  # noqa: N801
        def _peek(self, timeout: float) -> Any:
            try:
                return self.inner.peek(timeout)
            except PipeBrokenError:
                return None


class SwallowsADeadReceiver(Wrapping):
    class send(Send):  # noqa: N801
        def _post(self, payload: Any, spec: Any, tag: int) -> Transfer[None]:
            try:
                return self.inner.post(payload, tag)
            except PipeBrokenError:
                return Transfer("a transfer to nobody")


class ReceiverCloseIsSilent(Wrapping):
    """Says nothing to the sender when the receiver closes."""

    class recv(Recv):  # noqa: N801
        def _close(self) -> None:
            pass


class GetsTired(Wrapping):
    """Gives up a pipe on which nothing happened for two seconds."""

    class send(Send):  # noqa: N801
        used = 0.0

        def _post(self, payload: Any, spec: Any, tag: int) -> Transfer[None]:
            if self.used and time.monotonic() - self.used > 2:
                raise PipeBrokenError("idle for too long")
            self.used = time.monotonic()
            return self.inner.post(payload, tag)

        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            self.used = time.monotonic()


class RefusesLarge(Wrapping):
    """Has a limit that it does not claim."""

    class send(Send):  # noqa: N801
        def _post(self, payload: Any, spec: Any, tag: int) -> Transfer[None]:
            if spec.nbytes > 32 << 20:
                raise SpecMismatchError("too large")
            return self.inner.post(payload, tag)


class FlattensViews(Wrapping):
    """Sends the memory of an array that is not contiguous, in the order of the memory."""

    class send(Send):  # noqa: N801
        def post(self, payload: Any, tag: int = 0) -> Transfer[None]:
            if isinstance(payload, np.ndarray) and not payload.flags.c_contiguous:
                payload = payload.T.reshape(payload.shape)
            return super().post(payload, tag)
