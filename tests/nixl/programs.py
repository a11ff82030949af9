"""Programs that use the backend and end in some way: `python -m tests.nixl.programs NAME OPTIONS`.

Each has a partner in a process of its own. What they find wrong they raise, so that their exit code says it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.abc import Key
from kvbridge.conformance.checks import eventually
from kvbridge.conformance.node import Node
from kvbridge.conformance.peers import Host, RemoteNode
from kvbridge.conformance.values import Geometry, PagesValue, TensorValue
from kvbridge.errors import BackendUnavailableError, KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE = Geometry(page_bytes=(64 << 10,), num_blocks=400)
SMALL = PagesValue(seed=1, ids=(5, 6, 1), geometry=CACHE)
LARGE = PagesValue(seed=2, ids=tuple(range(64, 400)), geometry=CACHE)

kept: list[Any] = []
"""Keeps nodes alive until the interpreter ends, as a program does that forgets to close."""


class Pair:
    """A producer here, a consumer elsewhere, and a hand-over in each direction that has been made."""

    def __init__(self, options: dict[str, Any], **settings: Any) -> None:
        self.here = Node("nixl", options, name="here", **settings)
        self.there = RemoteNode(Host(tempfile.mkdtemp()), "nixl", options, {"name": "there"})
        self._turns = 0
        kept.append(self)
        self.works()

    def works(self) -> None:
        """Hand a value over in each direction."""
        self._turns += 1
        name = f"k{self._turns}"
        self.here.begin_insert(name, name, SMALL)
        self.there.take(Key(name, *self.here.where()), SMALL)
        self.there.begin_insert(name, name, SMALL)
        self.here.take(Key(name, *self.there.where()), SMALL)

    def close(self) -> None:
        """End both."""
        self.here.close()
        self.there.close()
        self.there.host.end()


def closed(options: dict[str, Any]) -> None:
    """End in order."""
    Pair(options).close()


def links_up(options: dict[str, Any]) -> None:
    """End without closing anything."""
    Pair(options)


def in_flight(options: dict[str, Any]) -> None:
    """End in the middle of transfers in both directions, over TCP to and from a process that is stopped."""
    pair = Pair(options)
    pair.there.begin_insert("theirs", "theirs", LARGE)
    pair.here.begin_insert("mine", "mine", LARGE)
    pair.there.begin("mine", "select", Key("mine", *pair.here.where()), LARGE)
    pair.here.begin("theirs", "select", Key("theirs", *pair.there.where()), LARGE)
    pair.there.host.stop()
    time.sleep(0.3)


def dead_peer(options: dict[str, Any]) -> None:
    """End after the partner was killed in the middle of a transfer."""
    pair = Pair(options)
    pair.here.begin_insert("mine", "mine", LARGE)
    pair.there.begin("mine", "select", Key("mine", *pair.here.where()), LARGE)
    pair.there.kill()


def errors(options: dict[str, Any]) -> None:
    """End after the library reported errors of all kinds."""
    pair = Pair(options)
    lib = pair.here.backend.main.lib  # type: ignore[attr-defined]
    for call in (
        lambda: lib.create_backend("NOPE"),
        lambda: lib.add_remote_agent(b"nonsense"),
        lambda: lib.prep_xfer_dlist("nobody", [(1, 1, 0)], "DRAM"),
        lambda: lib.deregister_memory(lib.get_reg_descs([(1, 1, 0, "")], "DRAM")),
    ):
        with pytest.raises(Exception, match="NIXL_ERR"):
            call()
    dead_peer(options)
    pair.works()


def with_torch(options: dict[str, Any]) -> None:
    """End with torch loaded, after a tensor of its was handed over."""
    import torch

    assert torch.get_num_threads()
    pair = Pair(options)
    value = TensorValue(seed=3, shape=(50_000,), dtype="bfloat16", library="torch")
    pair.here.begin_insert("t", "t", value)
    pair.there.take(Key("t", *pair.here.where()), value)


def exception(options: dict[str, Any]) -> None:
    """End by an exception that nobody catches."""
    Pair(options)
    raise KeyError("by order of a test")


def terminated(options: dict[str, Any]) -> None:
    """End by SIGTERM as it is by default."""
    Pair(options)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def _fork(child: Callable[[], None]) -> int:
    """Run something in a forked child that ends as any program does; return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(20)
    for pair in kept:
        pair.there.host._errors._closer.delete = False  # the file is the parent's to delete
    child()
    gc.collect()
    sys.exit(0)


def forks(options: dict[str, Any]) -> None:
    """Fork children that end normally, that use the backend, that close it, while transfers run and between them."""
    pair = Pair(options)
    here = pair.here

    def use() -> None:
        for call in (
            lambda: here.backend.hold(None),  # type: ignore[attr-defined]
            lambda: here.backend.register([]),
            lambda: here.backend.land(None, None, b"", None, 0),  # type: ignore[attr-defined]
            lambda: Node("nixl", options),
        ):
            with pytest.raises(BackendUnavailableError, match="forked"):
                call()

    def close() -> None:
        here.backend.close()
        here.backend.close()

    def forget() -> None:
        kept.clear()
        del pair.here

    for child in (lambda: None, use, close, forget):
        assert _fork(child) == 0, child
        pair.works()
    pair.here.begin_insert("mine", "mine", LARGE)
    pair.there.begin("mine", "select", Key("mine", *here.where()), LARGE)
    children = [_fork(lambda: None) for _ in range(3)]
    assert children == [0, 0, 0], children
    pair.there.end("mine")
    pair.close()


def forks_before(options: dict[str, Any]) -> None:
    """Fork before there is an agent and after there was one: a child may use the library."""

    def use() -> None:
        Pair(options).close()

    assert _fork(use) == 0
    use()
    kept.clear()
    assert _fork(use) == 0


def fork_under_load(options: dict[str, Any]) -> None:
    """Fork while the endpoint's thread is in the library, again and again: a child may find its locks held."""
    pair = Pair(options)
    for turn in range(6):
        pair.here.begin_insert(f"l{turn}", f"l{turn}", LARGE)
        pair.there.begin("l", "drop_select", Key(f"l{turn}", *pair.here.where()), LARGE)
        time.sleep(0.002 * turn)
        assert _fork(lambda: None) == 0
        pair.there.end("l")
    pair.close()


def unavailable(options: dict[str, Any]) -> None:
    """Ask for what cannot be had."""
    try:
        Node("nixl", options)
    except KVBridgeError as error:
        print(type(error).__name__, error, file=sys.stderr)
    else:
        raise AssertionError("it was made")


def closes_fully(options: dict[str, Any]) -> None:
    """Close, keep every object, and look that the library's part of it is gone."""
    node = Node("nixl", options)
    kept.append(node)
    node.close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        pair = Pair(options)
        pair.close()
    eventually(
        lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 2,
        5,
        lambda: str([f.readlink() for f in Path("/proc/self/fd").iterdir() if f.is_symlink()]),
    )


if __name__ == "__main__":
    globals()[sys.argv[1]](json.loads(sys.argv[2]))
