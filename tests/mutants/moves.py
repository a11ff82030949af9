"""Wrong movers of bytes, each a few lines away from the right one."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvbridge.abc import MoveState
from kvbridge.errors import KVBridgeError, TransportError
from kvbridge.memory import Pages
from kvbridge.transfer import cancelled
from kvbridge_cpu import CpuBackend
from kvbridge_cpu.moves import FollowedValue, Place

if TYPE_CHECKING:
    from kvbridge.abc import Held, Landing


class Following:
    """A landing that passes everything on."""

    def __init__(self, inner: Landing, out: Any) -> None:
        self.inner, self.out = inner, out
        self.descriptor = inner.descriptor

    def step(self) -> MoveState:
        return self.inner.step()

    def abort(self) -> None:
        self.inner.abort()

    def release(self) -> None:
        self.inner.release()


class Mutant(CpuBackend):
    name = ""


class Aliases(Mutant):
    """Says that it has a copy, and reads the caller's memory later."""

    def hold(self, payload: Any) -> Held:
        held = super().hold(payload)

        class Late:
            descriptor = held.descriptor
            started: list[Any] = []  # noqa: RUF012

            def step(self) -> MoveState:
                def copy() -> None:
                    time.sleep(0.3)
                    while held.step() is not MoveState.DONE:
                        pass

                if not self.started:
                    self.started.append(threading.Thread(target=copy, daemon=True))
                    self.started[0].start()
                return MoveState.DONE

            def release(self) -> None:
                held.release()

        return Late()  # type: ignore[return-value]


class MixesTwoKeys(Mutant):
    """Describes every value but the first as the first one was."""

    first = b""

    def hold(self, payload: Any) -> Held:
        held = super().hold(payload)
        self.first = self.first or held.descriptor
        place = msgspec.msgpack.decode(held.descriptor, type=Place)
        first = msgspec.msgpack.decode(self.first, type=Place)
        if place.nbytes == first.nbytes:
            held.descriptor = self.first
        return held


class SortsPages(Mutant):
    """Reads pages in the order of memory, which is faster."""

    def hold(self, payload: Any) -> Held:
        if isinstance(payload, Pages):
            payload = Pages(payload.regions, tuple(np.sort(ids) for ids in payload.block_ids))
        return super().hold(payload)


class OnlyTheFirstRegion(Mutant):
    """Uses the first region for all."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        if isinstance(out, Pages) and len({r.page_bytes for r in out.regions}) == 1:
            out = Pages((out.regions[0],) * len(out.regions), out.block_ids)
        return super().land(link, spec, descriptor, out, skip)


class WritesBeside(Mutant):
    """Writes one page too many."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        landing = super().land(link, spec, descriptor, out, skip)

        class Beside(Following):
            def step(self) -> MoveState:
                state = self.inner.step()
                if state is MoveState.DONE and isinstance(out, Pages) and len(out.block_ids[0]):
                    rows = out.regions[0].rows()
                    rows[(int(out.block_ids[0][-1]) + 1) % len(rows)] = 7
                return state

        return Beside(landing, out)  # type: ignore[return-value]


class IgnoresSkip(Mutant):
    """Leaves out the last blocks in place of the first ones."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        return super().land(link, spec, descriptor, out, 0)


class RoundsPages(Mutant):
    """Copies whole words only."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        landing = super().land(link, spec, descriptor, out, skip)

        class Rounding(Following):
            def step(self) -> MoveState:
                state = self.inner.step()
                if state is MoveState.DONE and isinstance(out, Pages):
                    for region, ids in zip(out.regions, out.block_ids, strict=True):
                        if region.page_bytes % 8:
                            region.rows()[ids, -1] = 0
                return state

        return Rounding(landing, out)  # type: ignore[return-value]


class Truncates(Mutant):
    """Leaves out the end of large values."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        landing = super().land(link, spec, descriptor, out, skip)

        class Short(Following):
            def step(self) -> MoveState:
                state = self.inner.step()
                if state is MoveState.DONE and isinstance(out, np.ndarray) and out.nbytes > 8 << 20:
                    out.reshape(-1).view(np.uint8)[-100:] = 0
                return state

        return Short(landing, out)  # type: ignore[return-value]


class DoneAfterOneSlice(Mutant):
    """Says that it is done when it has begun."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        class Hasty(FollowedValue):
            def step(self) -> MoveState:
                state = super().step()
                return MoveState.DONE if state is MoveState.AGAIN else state

        landing = super().land(link, spec, descriptor, out, skip)
        landing.__class__ = Hasty
        return landing


class ThousandPages(Mutant):
    """Takes no more than a thousand pages."""

    def hold(self, payload: Any) -> Held:
        if isinstance(payload, Pages) and len(payload.block_ids[0]) > 1000:
            raise TransportError("too many pages")
        return super().hold(payload)


class RefusesEmpty(Mutant):
    def hold(self, payload: Any) -> Held:
        if isinstance(payload, np.ndarray) and not payload.size:
            raise TransportError("nothing to send")
        return super().hold(payload)


class LingersInClose(Mutant):
    """Waits for its consumers when it closes."""

    held = False

    def hold(self, payload: Any) -> Held:
        self.held = True
        return super().hold(payload)

    def close(self) -> None:
        time.sleep(2.5 if self.held else 0)
        super().close()


class NeverFrees(Mutant):
    """Gives nothing back to its pool."""

    def hold(self, payload: Any) -> Held:
        held = super().hold(payload)
        held.release = lambda: None  # type: ignore[method-assign]
        return held


class WrongError(Mutant):
    """Reports a full pool as a failure of its library."""

    def hold(self, payload: Any) -> Held:
        try:
            return super().hold(payload)
        except KVBridgeError as error:
            raise TransportError(str(error)) from error


class TrustsDescriptors(Mutant):
    """Does not check what a peer says of its memory."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        try:
            return super().land(link, spec, descriptor, out, skip)
        except KVBridgeError:
            out.reshape(-1)[:] = 0

            class Nothing:
                descriptor = b""

                def step(self) -> MoveState:
                    return MoveState.DONE

                def abort(self) -> None:
                    pass

            return Nothing()  # type: ignore[return-value]


class AbortIsAWish(Mutant):
    """Reports an end while bytes are still to land."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        landing = super().land(link, spec, descriptor, out, skip)

        class Wish(Following):
            aborted = False

            def abort(self) -> None:
                self.aborted = True

            def step(self) -> MoveState:
                if not self.aborted:
                    return self.inner.step()

                def late() -> None:
                    time.sleep(0.1)
                    while self.inner.step() is not MoveState.DONE:
                        pass

                threading.Thread(target=late, daemon=True).start()
                raise cancelled("the copy")

        return Wish(landing, out)  # type: ignore[return-value]


class ByAThread(Following):
    """A landing whose bytes are moved by a thread of its own. As it stands it is right."""

    def __init__(self, inner: Landing, out: Any) -> None:
        super().__init__(inner, out)
        self.thread: threading.Thread | None = None
        self.stopping = False
        self.error: BaseException | None = None

    def work(self) -> None:
        try:
            while not self.stopping and self.inner.step() is not MoveState.DONE:
                pass
        except KVBridgeError as error:
            self.error = error

    def step(self) -> MoveState:
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, daemon=True)
            self.thread.start()
        if self.thread.is_alive():
            return MoveState.WAIT
        if self.error is not None:
            raise self.error
        if self.stopping:
            raise cancelled("the copy")
        return MoveState.DONE

    def abort(self) -> None:
        self.stopping = True


class MovesByAThread(Mutant):
    """Is right: a thread of its own moves the bytes, and every slice only looks how far that is."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        return ByAThread(super().land(link, spec, descriptor, out, skip), out)  # type: ignore[return-value]


class ThreadGoesOn(Mutant):
    """Reports an end while its thread goes on."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        class GoesOn(ByAThread):
            aborted = False

            def step(self) -> MoveState:
                if self.aborted:
                    raise cancelled("the copy")
                return super().step()

            def abort(self) -> None:
                self.aborted = True

        return GoesOn(super().land(link, spec, descriptor, out, skip), out)  # type: ignore[return-value]


class ThreadEndsItsSlice(Mutant):
    """Reports an end while its thread ends the slice that it is in."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        class EndsSlice(ByAThread):
            def step(self) -> MoveState:
                if self.stopping:
                    raise cancelled("the copy")
                return super().step()

        return EndsSlice(super().land(link, spec, descriptor, out, skip), out)  # type: ignore[return-value]


class ThreadFailsOn(Mutant):
    """Reports a failure while its thread goes on."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        class FailsOn(ByAThread):
            aborted = False

            def step(self) -> MoveState:
                if self.aborted:
                    raise TransportError("the library failed")
                return super().step()

            def abort(self) -> None:
                self.aborted = True

        return FailsOn(super().land(link, spec, descriptor, out, skip), out)  # type: ignore[return-value]


class DoneBeforeItsThread(Mutant):
    """Says that it is done when its thread has most of it."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        class Early(ByAThread):
            def step(self) -> MoveState:
                state = super().step()
                time.sleep(0.0005)
                return MoveState.DONE if spec.nbytes > 1 << 20 else state

        return Early(super().land(link, spec, descriptor, out, skip), out)  # type: ignore[return-value]


class DetachesSoon(Mutant):
    """Says that it has a copy when the copy is under way."""

    def hold(self, payload: Any) -> Held:
        held = super().hold(payload)
        started: list[threading.Thread] = []

        class Soon:
            descriptor = held.descriptor

            def step(self) -> MoveState:
                def copy() -> None:
                    while held.step() is not MoveState.DONE:
                        pass

                if not started:
                    started.append(threading.Thread(target=copy, daemon=True))
                    started[0].start()
                return MoveState.DONE

            def release(self) -> None:
                started[0].join()
                held.release()

        return Soon()  # type: ignore[return-value]


class CopiesAtOnce(Mutant):
    """Takes a whole value in one slice."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        landing = super().land(link, spec, descriptor, out, skip)

        class Whole(Following):
            def step(self) -> MoveState:
                state = MoveState.AGAIN
                while state is not MoveState.DONE:
                    state = self.inner.step()
                return state

        return Whole(landing, out)  # type: ignore[return-value]


class SwallowsADeadPeer(Mutant):
    """Waits for a peer for ever."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        landing = super().land(link, spec, descriptor, out, skip)

        class Patient(Following):
            aborted = False

            def step(self) -> MoveState:
                return MoveState.WAIT if self.aborted or not link.up else self.inner.step()

            def abort(self) -> None:
                self.aborted = True

        return Patient(landing, out)  # type: ignore[return-value]


class BlocksTheThread(Mutant):
    """Waits inside of a step for a consumer that is slow."""

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        landing = super().land(link, spec, descriptor, out, skip)

        class Blocking(Following):
            def step(self) -> MoveState:
                if spec.nbytes > 4 << 20:
                    time.sleep(20)
                return self.inner.step()

        return Blocking(landing, out)  # type: ignore[return-value]


class LoopsOverPages(Mutant):
    """Copies page by page, in Python."""

    def hold(self, payload: Any) -> Held:
        if isinstance(payload, Pages):
            for ids in payload.block_ids:
                for block in ids:
                    for region in payload.regions:
                        region.rows()[int(block)].copy().tobytes()
                        time.sleep(0.0005)
        return super().hold(payload)


class GrowsDearer(Mutant):
    """Looks through everything that anybody holds whenever something is asked for."""

    held = 0

    def hold(self, payload: Any) -> Held:
        GrowsDearer.held += 1
        return super().hold(payload)

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        time.sleep(0.00001 * self.held)
        return super().land(link, spec, descriptor, out, skip)
