"""A peer that is no endpoint: a raw socket whose every message a test writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import zmq

from kvbridge.control.messages import Hello, Identity, Message, Ping, Pong, Welcome, decode, encode
from kvbridge.memory import TensorSpec

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tests.nodes import Node

M = TypeVar("M")

SPEC = TensorSpec("uint8", (1000,), 1, "numpy")


class FakePeer:
    """Answers handshakes and heartbeats as long as somebody calls `read`.

    Args:
        like: The node whose backend and card it claims to have.
        card: Another card.
    """

    def __init__(self, like: Node, *, card: bytes | None = None, generation: int = 77) -> None:
        here = like.endpoint.here
        self.identity = Identity(
            "fake", generation, here.backend, here.fingerprint, here.card if card is None else card
        )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sock = self._context.socket(zmq.ROUTER)
        self._sock.setsockopt(zmq.LINGER, 0)
        self._sock.bind("tcp://127.0.0.1:*")
        self.address = self._sock.getsockopt_string(zmq.LAST_ENDPOINT)
        self.heard: list[Message] = []
        self.origin = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()
        self._context.destroy()

    def say(self, *messages: Message) -> None:
        for message in messages:
            self._sock.send_multipart([self.origin, encode(message)])

    def noise(self, frame: bytes) -> None:
        self._sock.send_multipart([self.origin, frame])

    def read(self, seconds: float) -> None:
        """Answer handshakes and heartbeats for a while, and keep everything else."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._sock.poll(int(left * 1000) + 1):
            self._take()

    def await_message(self, kind: type[M], timeout: float = 5.0) -> M:
        """Read until a message of this kind comes; it is not kept."""
        deadline = time.monotonic() + timeout
        while True:
            for message in self.heard:
                if isinstance(message, kind):
                    self.heard.remove(message)
                    return message
            left = deadline - time.monotonic()
            if left <= 0 or not self._sock.poll(int(left * 1000) + 1):
                raise AssertionError(f"no {kind.__name__} came: {self.heard}")
            self._take()

    def _take(self) -> None:
        self.origin, frame = self._sock.recv_multipart()
        message = decode(frame)
        if isinstance(message, Hello):
            self.say(Welcome(self.identity))
        elif isinstance(message, Ping):
            self.say(Pong())
        else:
            self.heard.append(message)
