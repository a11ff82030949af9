"""The ZeroMQ sockets of an endpoint: one bound ROUTER, one DEALER a dialled peer, and a way to wake the thread.

Messages above the size limit are cut off by the socket before memory is taken for them. Sends never block: a peer
that does not read loses messages and is then found dead by its silence.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import parse_monitor_message

from kvbridge.control.messages import MAX_MESSAGE_BYTES, Message, encode
from kvbridge.control.secret import Keys
from kvbridge.control.watch import Watch
from kvbridge.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.control.outbound import Dial

LOST_EVENTS = int(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)

MISTRUST_EVENTS = int(
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

MAX_SOCKETS = 16384
"""Sockets of an endpoint; a dialled peer takes three."""

SHORT = 0.0005
"""Seconds below which a wait is a sleep: polls count milliseconds."""

MAX_FRAMES_PER_POLL = 64
"""Frames read from one socket before the others have their turn."""

HEARTBEAT_MS = 500
"""Milliseconds between the sockets' own heartbeats. Threads of ZeroMQ answer them, so that a process whose
interpreter is busy is not taken for a dead one."""

MAX_QUEUED = 10_000
"""Messages that may wait for one peer."""


class Connection:
    """The socket of one dialled peer. Belongs to the endpoint's thread."""

    def __init__(self, owner: Sockets, dealer: zmq.Socket[bytes], dial: Dial) -> None:
        self._owner = owner
        self.dealer: zmq.Socket[bytes] | None = dealer
        self.dial = dial
        self.monitor = dealer.get_monitor_socket(LOST_EVENTS | MISTRUST_EVENTS | zmq.EVENT_CONNECTED)

    def send(self, frame: bytes) -> None:
        """Send a frame; dropped when the socket is closed or its queue is full."""
        if self.dealer is not None:
            self._owner.touch(self.dealer)
            with contextlib.suppress(zmq.Again):
                self.dealer.send(frame, zmq.DONTWAIT)

    def close(self) -> None:
        """Close the socket. Idempotent. What was sent just before still goes out."""
        dealer, self.dealer = self.dealer, None
        if dealer is not None:
            self._owner.forget(self, dealer)
            dealer.disable_monitor()
            self.monitor.close(linger=0)  # it would wait for the collector of garbage otherwise
            dealer.close(linger=100)


class Sockets:
    """All sockets of an endpoint. After construction only `wake` may be called from another thread.

    Args:
        host: Address to bind.
        port: Port to bind; 0 for an ephemeral one.
        peer_timeout: Seconds after which a connection without heartbeats is closed: its process is stopped, or the
            network gone. A process that died closes its connections at once.
        secret: What peers have to know, too; empty for nothing.

    Raises:
        ConfigError: The address cannot be bound.
    """

    def __init__(self, host: str, port: int, peer_timeout: float, secret: str = "") -> None:
        self._keys = Keys.of(secret) if secret else None
        self._heartbeat_timeout = int(peer_timeout * 1000)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._router = self._context.socket(zmq.ROUTER)
        self._configure(self._router)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if self._keys is not None:
            self._router.curve_server = True
            self._router.curve_secretkey = self._keys.private
        try:
            self._router.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self._router.close(linger=0)
            self._context.term()
            raise ConfigError(
                f"cannot bind the control port {host}:{port} ({error.strerror}): choose a free `port`, or 0 for an "
                "ephemeral one, and a `host` that belongs to this machine"
            ) from error
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._outbound: dict[zmq.Socket[bytes], Connection] = {}
        self._watch = Watch(self._woken.fileno())
        self._watch.add(self._router)
        self.touch = self._watch.touch

    def wake(self) -> None:
        """Make `poll` return. Any thread."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def connect(self, address: str, dial: Dial) -> Connection:
        """Open a socket to a peer.

        Raises:
            ConfigError: The address is not one.
        """
        found = re.fullmatch(r"tcp://([^\s/]+):(\d{1,5})", address)
        if found is None or not 0 < int(found[2]) < 1 << 16:
            raise ConfigError(f"{address!r} is not an address of the form tcp://host:port")
        if not _is_numeric(found[1]):
            raise ConfigError(
                f"{address!r} has a name in it, expected an IP address: all peers wait while one is looked up"
            )
        dealer = self._open()
        try:
            outbound = Connection(self, dealer, dial)
        except zmq.ZMQError as error:
            dealer.close(linger=0)
            raise _no_room(error) from error
        try:
            dealer.connect(address)
        except zmq.ZMQError as error:
            outbound.close()
            raise ConfigError(f"{address!r} is not an address that can be reached: {error.strerror}") from error
        self._outbound[dealer] = outbound
        self._outbound[outbound.monitor] = outbound
        self._watch.add(dealer)
        self._watch.add(outbound.monitor)
        return outbound

    def forget(self, outbound: Connection, dealer: zmq.Socket[bytes]) -> None:
        """Stop polling a peer's socket that is about to be closed."""
        for watched in (dealer, outbound.monitor):
            self._outbound.pop(watched, None)
            self._watch.remove(watched)

    def sender(self, origin: bytes, gone: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return a function that sends frames to a peer that dialled us; `gone(origin)` if it is not there."""

        def send(frame: bytes) -> None:
            self.touch(self._router)
            try:
                self._router.send_multipart([origin, frame], zmq.DONTWAIT)
            except zmq.Again:
                return  # it does not read: its silence will tell
            except zmq.ZMQError:
                gone(origin)

        return send

    def reply(self, origin: bytes, message: Message) -> None:
        """Send one message to a peer that dialled us."""
        self.sender(origin, lambda _: None)(encode(message))

    def poll(self, timeout: float) -> list[tuple[bytes | Dial, bytes | None]]:
        """Wait up to `timeout` seconds for frames.

        Returns:
            `(origin, frame)`: origin is a routing id, or the `Dial` of an outbound socket, for which the frame None
            says that its connection is gone.
        """
        frames: list[tuple[bytes | Dial, bytes | None]] = []
        if 0 < timeout < SHORT:  # less than a poll can wait
            time.sleep(timeout)
            timeout = 0.0
        found, woken = self._watch.wait(timeout)
        if woken:
            with contextlib.suppress(OSError):
                self._woken.recv(4096)
        for ready in found:
            if ready is self._router:
                frames.extend(self._read_router())
            elif ready in self._outbound:
                frames.extend(self._read_outbound(self._outbound[ready], ready))
        return frames

    def close(self) -> None:
        """Close everything. Idempotent. The last act of the thread."""
        for outbound in set(self._outbound.values()):
            outbound.close()
        self._watch.close()
        self._router.close(linger=100)
        self._waker.close()
        self._woken.close()
        self._context.destroy(linger=100)

    def _read_router(self) -> list[tuple[bytes | Dial, bytes | None]]:
        frames: list[tuple[bytes | Dial, bytes | None]] = []
        for _ in range(MAX_FRAMES_PER_POLL):
            try:
                parts = self._router.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                break
            frames.append((parts[0], parts[1] if len(parts) == 2 else b""))  # noqa: PLR2004 - origin and one frame
        else:
            self.touch(self._router)  # there may be more
        return frames

    def _read_outbound(self, outbound: Connection, ready: zmq.Socket[bytes]) -> list[tuple[bytes | Dial, bytes | None]]:
        frames: list[tuple[bytes | Dial, bytes | None]] = []
        for _ in range(MAX_FRAMES_PER_POLL):
            try:
                parts = ready.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                break
            if ready is outbound.monitor:
                event = parse_monitor_message(parts)["event"]
                if event & LOST_EVENTS:
                    frames.append((outbound.dial, None))
                elif event & MISTRUST_EVENTS:
                    outbound.dial.mistrusted()
                else:
                    outbound.dial.connected()
            else:
                frames.append((outbound.dial, parts[0] if len(parts) == 1 else b""))
        else:
            self.touch(ready)  # there may be more
        return frames

    def _open(self) -> zmq.Socket[bytes]:
        try:
            dealer = self._context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise _no_room(error) from error
        self._configure(dealer)
        if self._keys is not None:
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
            dealer.curve_serverkey = self._keys.public
        return dealer

    def _configure(self, sock: zmq.Socket[bytes]) -> None:
        sock.setsockopt(zmq.LINGER, 100)
        sock.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, self._heartbeat_timeout)
        sock.setsockopt(zmq.HEARTBEAT_TTL, self._heartbeat_timeout)
        sock.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        sock.setsockopt(zmq.SNDHWM, MAX_QUEUED)
        sock.setsockopt(zmq.RCVHWM, MAX_QUEUED)


def _is_numeric(host: str) -> bool:
    try:
        ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return False
    return True


def _no_room(error: zmq.ZMQError) -> CapacityError:
    return CapacityError(f"cannot open another connection: {error.strerror}; raise the limit of open files")
