"""`MeteredTransport`: any transport, with a clock beside the calls of the endpoint's thread."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbridge.layers.passing import PassingHeld, PassingLanding, PassingMove, PassingTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge.abc import Held, Landing, Move, MoveState, Transport
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Spec


class Meter:
    """How long calls took, without what their thread waited for a core. For one thread.

    Attributes:
        slowest: Seconds of the slowest call, by what was called.
    """

    def __init__(self) -> None:
        self.slowest: dict[str, float] = {}

    @contextlib.contextmanager
    def time(self, what: str) -> Iterator[None]:
        """Take the time of a call."""
        start = time.perf_counter() - _waited()
        try:
            yield
        finally:
            self.slowest[what] = max(self.slowest.get(what, 0.0), time.perf_counter() - _waited() - start)


def _waited() -> float:
    """Return the seconds that this thread was ready to run and had no core: others' doing. 0 where nobody counts."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class MeteredTransport(PassingTransport):
    """A transport whose calls on the endpoint's thread are timed.

    Args:
        inner: The transport.

    Attributes:
        meter: The times.
    """

    def __init__(self, inner: Transport[Any]) -> None:
        super().__init__(inner)
        self.meter = Meter()

    def hold(self, payload: Payload) -> Held:
        """Make a payload reachable."""
        with self.meter.time("Transport.hold"):
            held = self.inner.hold(payload)
        return _MeteredHeld(held, self.meter)

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Prepare to take a value."""
        with self.meter.time("Transport.land"):
            landing = self.inner.land(link, spec, descriptor, out, skip)
        return _MeteredLanding(landing, self.meter)


class _MeteredHeld(PassingHeld):
    def __init__(self, inner: Held, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter

    def step(self) -> MoveState:
        with self._meter.time("Held.step"):
            return self.inner.step()

    def write(self, link: Link, accepted: bytes) -> Move:
        with self._meter.time("Held.write"):
            move = self.inner.write(link, accepted)
        return _MeteredMove(move, self._meter)

    def release(self) -> None:
        with self._meter.time("Held.release"):
            self.inner.release()


class _MeteredMove(PassingMove):
    def __init__(self, inner: Move, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter

    def step(self) -> MoveState:
        with self._meter.time("Move.step"):
            return self.inner.step()


class _MeteredLanding(PassingLanding):
    def __init__(self, inner: Landing, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter

    def step(self) -> MoveState:
        with self._meter.time("Landing.step"):
            return self.inner.step()

    def release(self) -> None:
        with self._meter.time("Landing.release"):
            self.inner.release()
