"""A goodbye is heard, whatever else is noticed of its sender first."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import zmq

from kvbridge.control.messages import PROTOCOL, Ask, Bye, Hello, Identity, Welcome, decode, encode
from kvbridge.errors import PeerClosedError
from tests.nodes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.control.link import Link
    from kvbridge.control.messages import Routed
    from tests.nodes import Node


def test_a_goodbye_counts_although_the_lost_connection_is_noticed_before_it_is_read(
    node: Callable[..., Node],
) -> None:
    here = node()
    reached, gone = threading.Event(), threading.Event()

    def handle(link: Link, message: Routed) -> None:
        reached.set()
        gone.wait(5)
        for _ in range(3):
            link.send(Bye("late", "to a connection that is gone"))

    here.endpoint.call_soon(lambda: here.endpoint.serve("x", handle))
    mine = here.endpoint.here
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 1000)
        dealer.connect(here.endpoint.address)
        dealer.send(encode(Hello(PROTOCOL, Identity("leaving", 5, mine.backend, mine.fingerprint, mine.card))))
        while not isinstance(decode(dealer.recv()), Welcome):
            pass
        dealer.send(encode(Ask("x", 1, ("k",))))
        assert reached.wait(5)
        dealer.send(encode(Bye("closed", "going home")))
    time.sleep(0.3)  # until the connection is gone for the sockets of the endpoint, too
    gone.set()
    eventually(lambda: here.links[0].error is not None, 3, lambda: "the link is still up")
    assert isinstance(here.links[0].error, PeerClosedError), here.links[0].error
