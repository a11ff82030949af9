"""`HostPool`: blocks of host memory for any thread, with requests that wait their turn, and exact accounts."""

from __future__ import annotations

import contextlib
import importlib
import logging
import mmap
import os
import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from kvbridge.errors import CapacityError, ClosedError, ConfigError, KVBridgeError
from kvbridge.memory.allocator import ALIGNMENT, Allocator

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HostPoolStats:
    """A pool's figures at one moment; sizes are bytes."""

    capacity: int  # 0 once the pool is closed
    used: int  # alignment included
    requested: int  # what the users of the blocks in use asked for
    blocks: int  # in use
    peak: int  # the most that was ever in use, alignment included
    largest: int  # the largest hole
    holes: int  # runs of free bytes between blocks
    waiting: int  # requests that wait for memory now
    refused: int  # requests that ended with `CapacityError`, over the pool's life

    @property
    def fragmentation(self) -> float:
        """The share of the free bytes that lies outside of the largest hole, 0 to 1; 0 when nothing is free."""
        free = self.capacity - self.used
        return 1 - self.largest / free if free else 0.0


class HostBlock:
    """Memory of a `HostPool`, its taker's own until `release`. As a context manager it is released at the end.

    A block that is dropped without a release stays in use: the pool does not look for such.

    Attributes:
        nbytes: Bytes that were asked for.
    """

    def __init__(self, memory: NDArray[np.uint8], give_back: Callable[[HostBlock], None]) -> None:
        self.nbytes = memory.nbytes
        self._memory: NDArray[np.uint8] | None = memory
        self._give_back = give_back

    @property
    def memory(self) -> NDArray[np.uint8]:
        """The bytes: shape `[nbytes]`, contiguous, aligned, with whatever was there before.

        Raises:
            ClosedError: The block was released.
        """
        if self._memory is None:
            raise ClosedError("the block was released: its memory may be another's now")
        return self._memory

    def release(self) -> None:
        """Give the memory back: views of it must not be used any more. Idempotent.

        Any thread may call it, but no finalizer and no signal handler: it takes the pool's lock.
        """
        self._memory = None
        self._give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class HostPool:
    """Hands out blocks of one run of host memory, best fit. Any thread may call any method.

    Requests that wait are served in the order in which they came. Nobody overtakes them, with a wait or without, even
    where he would fit and they do not: many small requests cannot keep a large one waiting for ever.

    The pool belongs to the process that made it. After a fork the child cannot take from it, nor give back.

    Args:
        capacity: Bytes; rounded down to the alignment. The kernel gives memory when a page is first touched, or all
            of it at once where it is pinned.
        alignment: Bytes, a power of two: every block's address is a multiple of it.
        pinned: Whether the memory is page-locked, for copies to and from a GPU that nobody waits for. None pins where
            torch is loaded in this process and sees CUDA. Pinning makes CUDA's context if there is none yet.

    Attributes:
        capacity: Bytes, as rounded.
        pinned: Whether the memory was pinned.

    Raises:
        ConfigError: An argument is out of range, there is not so much memory, or it cannot be pinned.
    """

    def __init__(self, capacity: int, *, alignment: int = ALIGNMENT, pinned: bool | None = None) -> None:
        self._allocator = Allocator(capacity, alignment)
        self.capacity = self._allocator.capacity
        if self.capacity < 1:
            raise ConfigError(f"the capacity is {capacity} bytes, expected at least the alignment, {alignment} bytes")
        self._memory = _HostMemory(self.capacity, alignment, pinned=pinned)
        self.pinned = self._memory.pinned
        self._lock = threading.Lock()
        self._starts: dict[HostBlock, int] = {}
        self._turns: deque[_Turn] = deque()
        self._requested = self._peak = self._refused = 0

    def allocate(self, nbytes: int, *, wait: float = 0.0) -> HostBlock:
        """Take a block, and wait for it if need be until others have released enough.

        Args:
            nbytes: Bytes. A block takes a multiple of the alignment, and at least one.
            wait: Seconds to wait at most. What the whole pool would not hold is refused at once.

        Raises:
            CapacityError: There is no room, and there was none within `wait`.
            ClosedError: The pool is closed, or was closed meanwhile.
            ConfigError: A number is negative, or no number.
            KVBridgeError: The pool is another process's: this one was forked from it.
        """
        if nbytes < 0 or not 0 <= wait <= threading.TIMEOUT_MAX:
            raise ConfigError(f"found nbytes={nbytes} and wait={wait}, expected bytes and seconds, neither negative")
        self._check_process()
        with self._lock:
            self._check_open()
            if not self._turns and self._allocator.fits(nbytes):
                return self._take(nbytes)
            if not wait or nbytes > self.capacity:
                self._refuse(nbytes, len(self._turns))
            return self._take_in_turn(nbytes, wait)

    def stats(self) -> HostPoolStats:
        """Return the figures, all of one moment. In a fork it raises, as `allocate` does."""
        self._check_process()
        with self._lock:
            return HostPoolStats(
                capacity=self._allocator.capacity,
                used=self._allocator.used,
                requested=self._requested,
                blocks=len(self._starts),
                peak=self._peak,
                largest=self._allocator.largest,
                holes=self._allocator.holes,
                waiting=len(self._turns),
                refused=self._refused,
            )

    def close(self) -> None:
        """Let go of the memory, and end the requests that wait with `ClosedError`. Idempotent.

        Blocks that are still out keep their memory, which goes with its last view, and need not be released. It is
        not pinned any more: copies to or from a GPU must have ended.
        """
        if not self._memory.own:  # a fork, where the lock may never come free
            return
        with self._lock:
            self._starts.clear()
            self._requested = 0
            self._allocator = Allocator(0, self._allocator.alignment)
            for turn in self._turns:
                turn.came.notify()
            self._memory.close()

    def _check_process(self) -> None:
        """Raise in a fork. Called before the lock is taken, which another thread may have held at the fork."""
        if not self._memory.own:
            raise KVBridgeError("this pool of memory is the parent process's: make one after the fork")

    def _check_open(self) -> None:
        if self._memory.closed:
            raise ClosedError("the pool of memory was closed")

    def _give_back(self, block: HostBlock) -> None:
        """Take a block back from its user, once."""
        if self._memory.own:
            with self._lock:
                self._return(block)
                self._serve()

    def _take(self, nbytes: int) -> HostBlock:  # this and what follows: under the lock
        start = self._allocator.allocate(nbytes)
        # Cut twice, so that an empty block, too, has an address of its own: numpy gives [n:n] the address of [0:0].
        block = HostBlock(self._memory.bytes[start:][:nbytes], self._give_back)
        self._starts[block] = start
        self._requested += nbytes
        self._peak = max(self._peak, self._allocator.used)
        return block

    def _take_in_turn(self, nbytes: int, wait: float) -> HostBlock:
        turn = _Turn(nbytes, threading.Condition(self._lock))
        self._turns.append(turn)
        try:
            turn.came.wait_for(lambda: turn.block is not None or self._memory.closed, wait)
            if turn.block is None:
                self._check_open()
                self._refuse(nbytes, self._turns.index(turn))
        except BaseException:  # KeyboardInterrupt too: who waited goes, and whose turn is next may fit
            if turn.block is not None:
                self._return(turn.block)
            elif turn in self._turns:
                self._turns.remove(turn)
            self._serve()
            raise
        return turn.block

    def _refuse(self, nbytes: int, ahead: int) -> NoReturn:
        self._refused += 1
        if not self._allocator.fits(nbytes):
            raise self._allocator.refusal(nbytes)
        raise CapacityError(
            f"a value of {nbytes} bytes has to wait for its turn after {ahead} others: {self._allocator.used} of "
            f"{self.capacity} bytes are in use. Raise `capacity`, or wait longer"
        )

    def _return(self, block: HostBlock) -> None:
        start = self._starts.pop(block, None)
        if start is not None:
            self._allocator.release(start)
            self._requested -= block.nbytes

    def _serve(self) -> None:
        """Give blocks to those who wait, in turn, as far as the memory goes."""
        while self._turns and self._allocator.fits(self._turns[0].nbytes):
            turn = self._turns.popleft()
            turn.block = self._take(turn.nbytes)
            turn.came.notify()


@dataclass(eq=False)
class _Turn:
    """A request that waits. Who releases enough gives it its block."""

    nbytes: int
    came: threading.Condition
    block: HostBlock | None = None


class _HostMemory:
    """A run of this process's memory, aligned, pinned or not."""

    def __init__(self, nbytes: int, alignment: int, *, pinned: bool | None) -> None:
        self.closed = False
        self._pid = os.getpid()
        self._cudart = _cudart(pinned=pinned)
        try:
            found = mmap.mmap(-1, nbytes + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"cannot have {nbytes} bytes of memory: {error}. Lower `capacity`") from error
        with contextlib.suppress(OSError, AttributeError):  # a kernel without them; copies are slower then
            found.madvise(mmap.MADV_HUGEPAGE)
        whole: NDArray[np.uint8] = np.frombuffer(found, dtype=np.uint8)
        self.bytes = whole[-whole.ctypes.data % alignment :][:nbytes]  # the kernel itself aligns to pages only
        if self._cudart and (code := int(self._cudart.cudaHostRegister(self.bytes.ctypes.data, nbytes, 0))):
            raise ConfigError(f"cannot pin {nbytes} bytes: CUDA error {code}. Lower `capacity`, or pass pinned=False")
        self.pinned = self._cudart is not None

    @property
    def own(self) -> bool:
        """Whether this process made it, and is not a fork of the one that did."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """Unpin the memory and let go of it. Idempotent."""
        cudart, self._cudart = self._cudart, None
        if cudart and (code := int(cudart.cudaHostUnregister(self.bytes.ctypes.data))):
            logger.warning("cannot unpin %d bytes of memory: CUDA error %d", self.bytes.nbytes, code)
        self.bytes = np.empty(0, dtype=np.uint8)
        self.closed = True


def _cudart(*, pinned: bool | None) -> Any:
    """Return CUDA's runtime, or None where memory is not to be pinned."""
    if pinned:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")  # a peer: loaded only where pinned memory is asked for
    torch = sys.modules.get("torch") if pinned is not False else None
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.cudart()
    if pinned:
        raise ConfigError("pinned=True, but torch sees no CUDA in this process: pass None to pin where there is a GPU")
    return None
