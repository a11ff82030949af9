"""A `cpu` backend whose copies stop where a test wants them to, so that nothing has to be hit by luck of timing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kvbridge.abc import Held, Landing, MoveState
from kvbridge_cpu import CpuBackend

if TYPE_CHECKING:
    from collections.abc import Callable


class Gate:
    """Lets the first `slices` of all copies of one kind pass, then makes them wait until it is opened."""

    def __init__(self) -> None:
        self.slices = 1 << 62
        self.reached = threading.Event()
        self._passed = 0

    def shut_after(self, slices: int) -> None:
        self._passed, self.slices = 0, slices
        self.reached.clear()

    def open(self) -> None:
        self.slices = 1 << 62

    def step(self, step: Callable[[], MoveState]) -> MoveState:
        if self._passed >= self.slices:
            self.reached.set()
            return MoveState.WAIT
        state = step()
        self._passed += state is not MoveState.WAIT
        return state


class GatedHeld(Held):
    def __init__(self, held: Held, gate: Gate) -> None:
        self.descriptor = held.descriptor
        self._held = held
        self._gate = gate

    def step(self) -> MoveState:
        return self._gate.step(self._held.step)

    def release(self) -> None:
        self._held.release()


class GatedLanding(Landing):
    def __init__(self, landing: Landing, gate: Gate) -> None:
        self.descriptor = landing.descriptor
        self._landing = landing
        self._gate = gate
        self._aborted = False

    def step(self) -> MoveState:
        return self._landing.step() if self._aborted else self._gate.step(self._landing.step)

    def abort(self) -> None:
        self._aborted = True
        self._landing.abort()


class GatedCpuBackend(CpuBackend):
    """`gather` stops the producer's copy into its pool, `scatter` the consumer's copy out of it."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.gather = Gate()
        self.scatter = Gate()

    def hold(self, payload: Any) -> Held:
        return GatedHeld(super().hold(payload), self.gather)

    def land(self, *args: Any) -> Landing:
        return GatedLanding(super().land(*args), self.scatter)
