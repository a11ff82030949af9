"""`kill -9` of one end's process breaks the pipe for the other within 5 s, and it stays broken."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.errors import KVBridgeError, PipeBrokenError
from tests.nodes import MIB, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.peers import Peer

HEARD_WITHIN = 5.0
"""Seconds within which a waiting call has to end after its peer died."""

NBYTES = 8 * MIB
CHANNELS = {"idle": "recv", "arriving": "recv", "offered": "send", "leaving": "send"}
"""Channels by what is going on in them when the peer dies, and which end is here."""


def open_all(here: Node, there: Peer) -> None:
    other = {"send": "recv", "recv": "send"}
    for channel, end in CHANNELS.items():
        here.open_pipe(channel, end)
        there.do("open_pipe", channel, other[end])


def busy(here: Node, there: Peer) -> dict[str, Callable[[], Any]]:
    """Bring every channel into its state. Returns what waits in each of them."""
    there.do("gate", "gather", 1)
    there.do("gate", "scatter", 1)
    there.do("begin_send", "arriving", "arriving", 1, NBYTES)
    offer = here.pipes["arriving"].peek(5)
    arriving = here.pipes["arriving"].accept(offer, np.zeros(NBYTES, dtype=np.uint8))
    there.do("await_gate", "gather")
    here.begin_send("offered", "offered", 2, NBYTES)
    there.do("await_offer", "offered")
    here.begin_send("leaving", "leaving", 3, NBYTES)
    there.do("begin_recv", "leaving", "leaving", NBYTES)
    there.do("await_gate", "scatter")
    return {
        "idle": lambda: here.pipes["idle"].recv_tensor(timeout=20),
        "arriving": lambda: arriving.wait(20),
        "offered": lambda: here.end("offered", 20),
        "leaving": lambda: here.end("leaving", 20),
    }


@pytest.mark.parametrize("dials", ["here", "there"])
def test_whoever_waits_in_a_pipe_hears_of_the_peers_death(
    node: Callable[..., Node], peer: Callable[..., Peer], dials: str
) -> None:
    here, there = node(), peer()
    here.connect(there.address) if dials == "here" else there.do("connect", here.endpoint.address)
    open_all(here, there)
    waiting = busy(here, there)
    found: dict[str, tuple[float, object]] = {}

    def wait(channel: str) -> None:
        try:
            waiting[channel]()
        except KVBridgeError as error:
            found[channel] = time.monotonic() - killed, type(error)

    there.kill()
    killed = time.monotonic()
    threads = [threading.Thread(target=wait, args=[channel]) for channel in CHANNELS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)
    assert {channel: kind for channel, (_, kind) in found.items()} == dict.fromkeys(CHANNELS, PipeBrokenError)
    assert not {channel: after for channel, (after, _) in found.items() if after > HEARD_WITHIN}
    for channel, end in CHANNELS.items():
        pipe = here.pipes[channel]
        for _ in range(2):
            with pytest.raises(PipeBrokenError):
                pipe.recv_tensor(timeout=1) if end == "recv" else pipe.post(np.ones(3)).wait(1)
    assert here.counters().get("internal_errors", 0) == 0


def test_two_processes_exchange_many_tensors_over_pipes_both_ways(
    node: Callable[..., Node], peer: Callable[..., Peer]
) -> None:
    here, there = node(), peer()
    here.connect(there.address)
    open_all(here, there)
    for seed in range(8):
        here.begin_send(f"{seed}", "offered", seed, 1 + seed * 700_001)
        there.do("begin_send", f"{seed}", "idle", 50 + seed, 1 + seed * 300_001)
    for seed in range(8):
        there.do("recv", "offered", seed, 1 + seed * 700_001)
        here.recv("idle", 50 + seed, 1 + seed * 300_001)
    for seed in range(8):
        here.end(f"{seed}")
        there.do("end", f"{seed}")
    here.await_used(0)
    there.do("await_used", 0)
    there.do("close_pipe", "idle")
    with pytest.raises(KVBridgeError, match="everything was delivered"):
        here.pipes["idle"].recv_tensor(timeout=5)
