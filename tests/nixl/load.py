"""`LoadNode`: a node with verbs for thousands of transfers, and for looking at what its backend uses."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvbridge.abc import Key
from kvbridge.conformance.node import Node
from kvbridge.conformance.resources import resources
from kvbridge.conformance.values import PagesValue, make_tensor
from kvbridge.control.link import lost

if TYPE_CHECKING:
    from kvbridge.abc import Transfer
    from kvbridge.conformance.values import Value
    from kvbridge_nixl.backend import NixlBackend

LONG = bool(os.environ.get("KVBRIDGE_LONG"))
"""Whether tests may take minutes."""


def scaled(count: int) -> int:
    """Return how often to do something: a fifth where tests are not to take minutes."""
    return count if LONG else count // 5


AT_ONCE = 32
"""Transfers under way at a time."""

SETTLES = 0.3
"""Seconds after which what was let go is closed."""


class LoadNode(Node):
    """A node under load."""

    def __init__(self, backend: str, options: dict[str, Any], **settings: Any) -> None:
        super().__init__(backend, options, **settings)
        self._made = backend, options

    @property
    def nixl(self) -> NixlBackend:
        """The backend, without what is wrapped around it."""
        return getattr(self.backend, "inner", self.backend)

    def insert_all(self, prefix: str, count: int, value: Value) -> None:
        """Insert one value under many keys; tensors with memory of their own."""
        pages = self.source(value) if isinstance(value, PagesValue) else None
        for index in range(count):
            payload = make_tensor(value, filled=True) if pages is None else pages
            self.buffer.insert(Key(f"{prefix}{index}"), payload)
        self.flush()

    def take_all(self, home: tuple[str, int], prefix: str, count: int, value: Value) -> None:
        """Take what was inserted under many keys, some at a time; look at every byte of some."""
        flying: deque[tuple[Transfer[None], Any]] = deque()
        pages = self.destination(value) if isinstance(value, PagesValue) else None
        for index in range(count):
            out = make_tensor(value, filled=False) if pages is None else pages
            flying.append((self.buffer.drop_select(Key(f"{prefix}{index}", *home), out), out))
            if len(flying) == AT_ONCE:
                flying.popleft()[0].wait(self.wait)
        while flying:
            transfer, out = flying.popleft()
            transfer.wait(self.wait)
            self.check(value, out)

    def reconnect(self, home: tuple[str, int], key: str, count: int, value: Value) -> None:
        """Make a node, select a value with it and close it, many times."""
        for index in range(count):
            other = Node(*self._made, name=f"consumer {index}")
            other.take(Key(key, *home), value, verb="select")
            other.close()

    def lose_links(self) -> None:
        """Lose every link."""

        def lose() -> None:
            for link in self.endpoint.links():
                self.endpoint.drop(link, lost(link.peer.name, "by order of a test"))

        self.endpoint.call_soon(lose)
        self.flush()

    def invite(self, nbytes: int, *, nowhere: bool = False) -> tuple[bytes, bytes]:
        """Return the card, and the place of a destination; or of one that is mapped no more."""
        memory = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE))
        found = self.nixl.main.memory.lend(np.frombuffer(memory, dtype=np.uint8, count=nbytes))
        if nowhere:
            unmap = ctypes.CDLL(None).munmap
            assert unmap(ctypes.c_void_p(found.table.rows[0, 0].item()), ctypes.c_size_t(len(memory))) == 0
        self._invited = memory, found
        return self.nixl.card(), found.place()

    def progress(self) -> None:
        """Let the library do its part."""
        self.nixl.main.progress()

    def still(self) -> bool:
        """Whether everything of the library has gone with the backend."""
        return self.nixl.main.still and not self.nixl.movers.living()

    def met(self) -> int:
        """Number of peers that the agents know that begin transfers."""
        return sum(len(agent._peers) for agent in self.nixl.movers.living())

    def agents(self) -> list[str]:
        """Names of the agents that begin transfers and are not closed."""
        return [agent.name for agent in self.nixl.movers.living()]

    def whole(self, name: str) -> bool:
        """Whether a destination that was marked is as it was marked."""
        self.require_marked(name)
        return True

    def cpu(self, seconds: float) -> float:
        """Share of a core that this process uses while it has nothing to do."""
        before = time.process_time()
        time.sleep(seconds)
        return (time.process_time() - before) / seconds

    def used(self) -> Used:
        """What this process uses."""
        return used()


class Used(msgspec.Struct, frozen=True):
    """What a process uses.

    Attributes:
        descriptors: Open files, without those by which ZeroMQ wakes its sockets: a link that is kept keeps two.
        tasks: Threads, native ones included.
        heap: Bytes that C and C++ hold. Not what is resident: that is as large as it ever had to be.
        blocks: Pieces of memory that Python holds.
    """

    descriptors: int
    tasks: int
    heap: int
    blocks: int

    def more_than(self, before: Used) -> Used:
        """Return how much more of each there is."""
        return Used(*(getattr(self, name) - getattr(before, name) for name in self.__struct_fields__))


class _MallInfo(ctypes.Structure):
    """What glibc's `mallinfo2` returns."""

    _fields_ = (
        ("_before", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("_between", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("_after", ctypes.c_size_t * 2),
    )


_mallinfo = ctypes.CDLL(None).mallinfo2
_mallinfo.restype = _MallInfo


def used() -> Used:
    """Look at this process, after what is garbage has gone: sockets are closed by threads of their own."""
    gc.collect()
    time.sleep(SETTLES)
    gc.collect()
    found, heap = resources(collect=False), _mallinfo()
    events = sum(_target(path) == "anon_inode:[eventfd]" for path in Path("/proc/self/fd").iterdir())
    return Used(found.descriptors - events, found.tasks, heap.uordblks + heap.hblkhd, sys.getallocatedblocks())


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
