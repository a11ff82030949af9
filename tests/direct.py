"""A backend without a pool, for the core's sake: bytes move from the caller's memory to the caller's memory.

It lives in one process and plays each kind of mover. Its moves can be stopped at a gate, refuse to be aborted as real
libraries do, or fail with an error of their own.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import msgspec
import numpy as np

from kvbridge.abc import Held, Landing, Move, MoveState, Transport
from kvbridge.capabilities import Capabilities, Mover, Probe
from kvbridge.memory.tensors import tensor_bytes
from kvbridge.transfer import cancelled
from tests.gated import Gate

SLICE = 1000
"""Bytes of one slice."""


class DirectOptions(msgspec.Struct, frozen=True):
    mover: Mover = "consumer"


class Copying:
    """A copy in slices, behind a gate."""

    def __init__(self, backend: DirectBackend, source: Any, target: Any) -> None:
        self.backend = backend
        self.source, self.target = source, target
        self.position = 0
        self.aborted = False
        self.over = False

    def step(self) -> MoveState:
        backend = self.backend
        if self.aborted and not backend.stubborn:
            self.over = True
            raise cancelled("the copy")
        return backend.gate.step(self._slice)

    def _slice(self) -> MoveState:
        if self.backend.failure is not None:
            self.over = True
            raise self.backend.failure
        end = min(self.position + SLICE, len(self.source))
        self.target[self.position : end] = self.source[self.position : end]
        self.position = end
        self.over = end == len(self.source)
        return MoveState.DONE if self.over else MoveState.AGAIN


class DirectMove(Copying, Move):
    def abort(self) -> None:
        self.aborted = True


class DirectHeld(Held):
    def __init__(self, backend: DirectBackend, payload: Any, descriptor: bytes) -> None:
        self.descriptor = descriptor
        self.memory = tensor_bytes(payload)
        self.released = 0
        self._backend = backend

    def step(self) -> MoveState:
        return MoveState.DONE

    def write(self, link: Any, accepted: bytes) -> Move:
        if self._backend.refusal is not None:
            raise self._backend.refusal
        landing = DirectBackend.targets[accepted]
        move = landing.move = DirectMove(self._backend, self.memory, landing.target)
        self._backend.moves.append(move)
        return move

    def release(self) -> None:
        self.released += 1


class DirectLanding(Copying, Landing):
    """The consumer's part: the copy itself, or, two-sided, a wait for the word that it may end."""

    def __init__(self, backend: DirectBackend, source: Any, target: Any, descriptor: bytes) -> None:
        super().__init__(backend, source, target)
        self.descriptor = descriptor
        self.half_done = False
        self.move: DirectMove | None = None

    def step(self) -> MoveState:
        if self.backend.options.mover == "consumer":
            return super().step()
        if self.aborted and not self.backend.stubborn:
            if self.backend.options.mover == "both" and self.move is not None and not self.move.over:
                return MoveState.WAIT  # the other half writes here: it has to end first
            self.over = True
            raise cancelled("the receiving half")
        self.over = self.half_done
        return MoveState.DONE if self.half_done else MoveState.WAIT

    def abort(self) -> None:
        self.aborted = True


class DirectBackend(Transport[DirectOptions]):
    """`stubborn` moves cannot be aborted; `failure` ends a move, `refusal` keeps one from starting."""

    name: ClassVar[str] = "direct"
    Options: ClassVar[type[msgspec.Struct]] = DirectOptions
    sources: ClassVar[dict[bytes, DirectHeld]] = {}
    targets: ClassVar[dict[bytes, DirectLanding]] = {}
    numbers: ClassVar[Any] = itertools.count()

    def __init__(self, options: DirectOptions) -> None:
        super().__init__(options)
        self.gate = Gate()
        self.stubborn = False
        self.failure: Exception | None = None
        self.refusal: Exception | None = None
        self.held: list[DirectHeld] = []
        self.moves: list[DirectMove] = []
        self.landings: list[DirectLanding] = []

    @classmethod
    def probe(cls, options: DirectOptions) -> Probe:
        return Probe(ok=True, reason="tests only")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(pipe=True, buffer=True, tensors=True, mover=self.options.mover)

    def hold(self, payload: Any) -> Held:
        held = DirectHeld(self, payload, b"source %d" % next(self.numbers))
        self.sources[held.descriptor] = held
        self.held.append(held)
        return held

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Landing:
        source = self.sources[descriptor]
        landing = DirectLanding(self, source.memory, tensor_bytes(out), b"target %d" % next(self.numbers))
        self.targets[landing.descriptor] = landing
        self.landings.append(landing)
        return landing

    def close(self) -> None:
        for held in self.held:
            self.sources.pop(held.descriptor, None)
        for landing in self.landings:
            self.targets.pop(landing.descriptor, None)


def fresh(nbytes: int) -> Any:
    return np.zeros(nbytes, dtype=np.uint8)
