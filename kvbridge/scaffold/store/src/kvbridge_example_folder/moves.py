"""Values on their way into files and out of them, slice by slice, on the endpoint's thread.

A file has the length of its header, the header, and the packed bytes of its value.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from kvbridge.abc import Move, MoveState, Stored
from kvbridge.errors import CapacityError, DuplicateKeyError, TransportError, UnsupportedError
from kvbridge.memory import Pages, Payload
from kvbridge.memory.copying import slices
from kvbridge.memory.tensors import tensor_bytes
from kvbridge.transfer import cancelled

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

SLICE_BYTES = 1 << 20
"""Bytes of one step: about a millisecond, so that the endpoint's heartbeats go on."""

LENGTH_BYTES = 4

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def host_memory(payload: Payload) -> Payload:
    """Refuse what we cannot move, here, where the caller hears of it. A tensor becomes its plain bytes."""
    if not isinstance(payload, Pages):
        return tensor_bytes(payload)  # raises for a tensor that is on a device or not contiguous
    if any(region.host is None for region in payload.regions):
        raise UnsupportedError("the pages are on a device: this backend moves host memory only", flag="cuda")
    return payload


@contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Make kvbridge's errors of the system's: the one place where that is done."""
    try:
        yield
    except OSError as error:
        kind = CapacityError if error.errno in FULL else TransportError
        raise kind(f"{what} failed: {error}") from error


class ExampleFolderMove(Move):
    """A move that is written as a generator: every `yield` is the end of a step.

    All happens in `step`, on one thread: so an abort is simple.

    Args:
        what: What it does, for messages.
        steps: The generator. Nothing is done before its first step.
    """

    def __init__(self, what: str, steps: Generator[MoveState]) -> None:
        self._what = what
        self._steps = steps
        self._aborted = False

    def step(self) -> MoveState:
        """Copy a slice."""
        with system_errors(self._what):
            if self._aborted:
                self._steps.close()
                raise cancelled(self._what)
            return next(self._steps, MoveState.DONE)

    def abort(self) -> None:
        """Copy nothing more: the next `step` says that it is over."""
        self._aborted = True


class ExampleFolderStored(Stored):
    """An open file: it can be read until it is released, whatever becomes of its name."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.header = read_header(self._file)
        self._start = self._file.tell()

    def read(self, out: Payload, skip: int) -> Move:
        """Start to copy the value out of the file."""
        return ExampleFolderMove("reading a value", self._read(host_memory(out), skip))

    def release(self) -> None:
        """Close the file. If it was taken, its bytes are gone with that."""
        self._file.close()

    def _read(self, out: Payload, skip: int) -> Generator[MoveState]:
        for part in slices(out, SLICE_BYTES, skip):
            packed = np.empty(part.nbytes, dtype=np.uint8) if part.flat is None else part.flat
            self._file.seek(self._start + part.start)
            if self._file.readinto(packed.data) != part.nbytes:
                raise TransportError(f"{self._file.name} is shorter than its value: something else has changed it")
            if part.flat is None:
                replace(part, start=0).scatter(packed)  # a batch of pages, not one by one
            yield MoveState.AGAIN


def read_header(file: BinaryIO) -> bytes:
    """Read the header at a file's beginning. What it means is the core's to know, and to check."""
    return file.read(int.from_bytes(file.read(LENGTH_BYTES), "big"))


def write(path: Path, unfinished: Path, header: bytes, payload: Payload) -> Generator[MoveState]:
    """Write a file. It has its name when all of it is there; however this ends, nothing else is left."""
    try:
        with unfinished.open("xb") as file:
            file.write(len(header).to_bytes(LENGTH_BYTES, "big") + header)
            for part in slices(payload, SLICE_BYTES):
                packed = np.empty(part.nbytes, dtype=np.uint8)
                replace(part, start=0).gather(packed)
                file.write(packed.data)
                yield MoveState.AGAIN
        os.link(unfinished, path)
    except FileExistsError:
        raise DuplicateKeyError("another value came under this key meanwhile: use a new key") from None
    finally:
        unfinished.unlink(missing_ok=True)
