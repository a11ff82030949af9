"""A plain TCP connection on loopback, for comparison: as many bytes, in one run, with nothing around it."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from kvbridge.bench.raw import Raw
from kvbridge.errors import TransportError
from kvbridge.threads import Loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

HEAD = struct.Struct("!Q")
PORT = struct.Struct("!H")
TIMEOUT = 60.0


class PlainSocket(Raw):
    """One side of the connection. The order of the pages does not matter to it: it sends one run."""

    def __init__(self, options: Mapping[str, Any], memory: NDArray[np.uint8], page: int) -> None:
        del options
        self._memory = memory
        self._page = page
        self._server: socket.socket | None = None
        self._sock: socket.socket | None = None
        self._loop: Loop | None = None

    def card(self) -> bytes:
        """Listen, and return the port."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self._loop = Loop("bench-socket", self._receive, self._wake)
        return PORT.pack(self._server.getsockname()[1])

    def meet(self, card: bytes) -> None:
        """Connect."""
        self._sock = socket.create_connection(("127.0.0.1", PORT.unpack(card)[0]), TIMEOUT)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def move(self, name: str, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Send as many bytes, and wait for the other side's word that it has them."""
        del name, target
        if self._sock is None:
            raise TransportError("the socket is not connected")
        nbytes = len(source) * self._page
        self._sock.sendall(HEAD.pack(nbytes))
        self._sock.sendall(self._memory[:nbytes].data)
        if self._sock.recv(1) != b"!":
            raise TransportError("the other side of the socket has gone")

    def progress(self) -> None:
        """Nothing: a thread receives."""

    def close(self) -> None:
        """Close everything."""
        if self._loop is not None:
            self._loop.stop(1.0)
        for one in (self._sock, self._server):
            if one is not None:
                one.close()

    def _receive(self) -> None:
        if self._server is None:
            return
        if self._sock is None:
            self._sock, _ = self._server.accept()
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = bytearray(HEAD.size)
        self._fill(memoryview(head))
        self._fill(self._memory[: HEAD.unpack(head)[0]].data)
        self._sock.sendall(b"!")

    def _fill(self, rest: memoryview) -> None:
        while rest and self._sock is not None:
            count = self._sock.recv_into(rest)
            if not count:
                raise TransportError("the other side of the socket has gone")
            rest = rest[count:]

    def _wake(self) -> None:
        """Make the thread's wait end."""
        for one in (self._sock, self._server):
            if one is not None:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # it is not connected any more
