"""`Watch`: which ZeroMQ sockets may have something to read, at a cost that does not grow with their number.

ZeroMQ's own poller looks at every socket each time. Each socket also has a descriptor that becomes readable when news
for it comes, and the kernel watches any number of those. The rules of that descriptor (`ZMQ_FD`): it tells of news,
not of messages, so a socket is read until it has nothing more; and any other use of a socket, such as a send, may take
the news in, so that it has to be looked at again without being told (`touch`).
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 256
"""Descriptors that are told of at one time."""


class Watch:
    """For one thread.

    Args:
        plain: A descriptor of another kind, which is watched too.
    """

    def __init__(self, plain: int) -> None:
        self._epoll = select.epoll()
        self._epoll.register(plain, select.EPOLLIN)
        self._plain = plain
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        self._due: dict[zmq.Socket[bytes], None] = {}

    def add(self, sock: zmq.Socket[bytes]) -> None:
        """Watch a socket."""
        descriptor = int(sock.getsockopt(zmq.FD))
        self._sockets[descriptor] = sock
        self._epoll.register(descriptor, select.EPOLLIN)
        self.touch(sock)

    def remove(self, sock: zmq.Socket[bytes]) -> None:
        """Watch a socket no more. It must still be open."""
        descriptor = int(sock.getsockopt(zmq.FD))
        if self._sockets.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
        self._due.pop(sock, None)

    def touch(self, sock: zmq.Socket[bytes]) -> None:
        """Name a socket at the next look: it was used, or not read to its end."""
        self._due[sock] = None

    def wait(self, timeout: float) -> tuple[Iterable[zmq.Socket[bytes]], bool]:
        """Wait up to `timeout` seconds.

        Returns:
            Sockets that may have something to read, each once, and whether the plain descriptor has.
        """
        due, self._due = self._due, {}
        plain = False
        for descriptor, _ in self._epoll.poll(0 if due else timeout, MOST):
            if descriptor == self._plain:
                plain = True
            else:
                due[self._sockets[descriptor]] = None
        return due, plain

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._epoll.close()
        self._due.clear()
        self._sockets.clear()
