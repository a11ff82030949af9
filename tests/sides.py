"""`Side`: a transport of the test's choice with its endpoint and buffer, for two of them in one process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvbridge.control.endpoint import Endpoint
from tests.nodes import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge.abc import RecvPipe, SendPipe, Transport


class Side:
    def __init__(self, backend: Transport[Any], **settings: Any) -> None:
        self.backend = backend
        self.endpoint = Endpoint(backend, **settings)
        self.buffer = backend.open_buffer(self.endpoint, timeout=10)

    def close(self) -> None:
        self.buffer.close()
        self.endpoint.close()
        self.backend.close()


@contextmanager
def two_sides(
    producer: Transport[Any], consumer: Transport[Any], settings: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
) -> Iterator[tuple[Side, Side]]:
    made = [Side(producer, **settings[0]), Side(consumer, **settings[1])]
    try:
        yield made[0], made[1]
    finally:
        for side in made:
            side.close()


def two_ends(sender: Side, receiver: Side, channel: str = "c") -> tuple[SendPipe, RecvPipe]:
    """Both ends of a pipe."""
    send = sender.backend.open_send(sender.endpoint.dial(receiver.endpoint.address).wait(5), channel)
    inbound = receiver.endpoint._inbound.links
    eventually(lambda: bool(inbound()), 5, lambda: "no link came")
    return send, receiver.backend.open_recv(inbound()[0], channel)
