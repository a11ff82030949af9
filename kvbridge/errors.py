"""Every error that kvbridge raises: one class a kind, each with a stable code that travels over the wire.

A message says what was found, what was expected and what to do. The code is what metrics count and what a peer
sends, so that a failure keeps its kind across processes (`from_code`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class KVBridgeError(Exception):
    """Base of all errors of kvbridge."""

    code: ClassVar[str] = "error"


class ConfigError(KVBridgeError):
    """A configuration is not usable: unknown key, wrong type, value out of range, configurations that disagree."""

    code = "config"


class BackendNotFoundError(KVBridgeError):
    """No installed distribution offers a backend of this name."""

    code = "backend-not-found"


class BackendConflictError(KVBridgeError):
    """Two distributions offer a backend of the same name, or a plugin is not what it claims to be."""

    code = "backend-conflict"


class BackendImportError(BackendConflictError):
    """A plugin cannot be imported; what its import raised is the cause."""

    code = "backend-import"


class BackendUnavailableError(KVBridgeError):
    """The backend is installed but cannot work on this machine; the message is its probe's reason."""

    code = "backend-unavailable"


class UnsupportedError(KVBridgeError):
    """The backend does not claim the capability that this operation needs.

    Attributes:
        flag: The name of the capability flag in `kvbridge.capabilities.Capabilities`.
    """

    code = "unsupported"

    def __init__(self, message: str, flag: str = "") -> None:
        super().__init__(message)
        self.flag = flag


class HandshakeError(KVBridgeError):
    """Two peers refused each other before a byte of KV moved.

    Attributes:
        differences: `(field, here, there)` for every field that differs; empty where the reason is another one.
    """

    code = "handshake"

    def __init__(self, message: str, differences: Sequence[tuple[str, str, str]] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


class PeerLostError(KVBridgeError):
    """The peer died, hung or cannot be reached."""

    code = "peer-lost"


class PeerClosedError(PeerLostError):
    """The peer closed its end in order. What it held is gone."""

    code = "peer-closed"


class StaleGenerationError(KVBridgeError):
    """The peer at that address is another incarnation than the one that was asked for."""

    code = "stale-generation"


class ProtocolError(KVBridgeError):
    """A peer sent something that the protocol does not allow."""

    code = "protocol"


class TransportError(KVBridgeError):
    """A backend's library reported a failure. The vendor's own code is in the message."""

    code = "transport"


class ClosedError(KVBridgeError):
    """You closed this object earlier."""

    code = "closed"


class EndOfPipeError(KVBridgeError):
    """The peer closed its end and everything it sent has been delivered."""

    code = "end"


class PipeBrokenError(KVBridgeError):
    """The peer or the link is gone. A pipe whose link is gone stays broken."""

    code = "broken"


class BusyError(KVBridgeError):
    """Two users of one end of a pipe, or of one claim, at the same time."""

    code = "busy"


class TransferTimeoutError(KVBridgeError):
    """This transfer did not finish before its deadline. The pipe or buffer still works."""

    code = "timeout"


class CancelledError(KVBridgeError):
    """The transfer was cancelled; its memory is free to be reused."""

    code = "cancelled"


class SpecMismatchError(KVBridgeError):
    """The destination does not have the shape, dtype or page sizes of the value."""

    code = "spec-mismatch"


class CapacityError(KVBridgeError):
    """A cap would be exceeded."""

    code = "capacity"


class DuplicateKeyError(KVBridgeError):
    """The key already has a live value; that value stays."""

    code = "duplicate-key"


class KeyMissError(KVBridgeError):
    """Base of the reasons for which a key gives no value."""

    code = "miss"


class KeyUnknownError(KeyMissError):
    """No value arrived under this key before the deadline."""

    code = "unknown-key"


class KeyConsumedError(KeyMissError):
    """The value was taken already: keys are single-use."""

    code = "consumed"


class KeyExpiredError(KeyMissError):
    """The value's lease ended before anybody took it."""

    code = "expired"


class KeyDroppedError(KeyMissError):
    """The value was dropped, or its insert failed; the message has the reason."""

    code = "dropped"


class BindingMismatchError(KeyMissError):
    """The value under this key is KV of something else than the consumer asked for."""

    code = "binding"


class CorruptedError(KVBridgeError):
    """The bytes that arrived are not those that were sent: their checksums differ."""

    code = "corrupted"


class LeaseExpiredError(KVBridgeError):
    """The bytes were read after the producer's lease on them had ended: they do not count."""

    code = "lease-expired"


def _subclasses(cls: type[KVBridgeError]) -> list[type[KVBridgeError]]:
    found = [cls]
    for child in cls.__subclasses__():
        found.extend(_subclasses(child))
    return found


def from_code(code: str, message: str) -> KVBridgeError:
    """Make the error of a given code, as a peer reported it. An unknown code gives a `ProtocolError`."""
    for cls in _subclasses(KVBridgeError):
        if cls.code == code:
            return cls(message)
    return ProtocolError(f"a peer reported an error of the unknown kind {code!r}: {message}")
