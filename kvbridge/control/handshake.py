"""The decision of a handshake: two peers work together only if everything that gives KV its meaning is equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvbridge.control.messages import PROTOCOL, Hello, Refused, decode, encode, text
from kvbridge.errors import ConfigError, HandshakeError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.control.messages import Identity

MAX_LISTED = 64
"""Differing fields that a refusal lists."""

MAX_VALUE = 200
"""Characters of a value that it shows."""

ABSENT = "(absent)"


def differences(here: dict[str, str], there: dict[str, str]) -> tuple[tuple[str, str, str], ...]:
    """List `(field, here, there)` for each field of two fingerprints that differs."""
    fields = sorted(here.keys() | there.keys())
    return tuple(
        (field, here.get(field, ABSENT), there.get(field, ABSENT))
        for field in fields
        if here.get(field) != there.get(field)
    )


def refusal(hello: Hello, here: Identity, accepts: Callable[[bytes], str | None]) -> Refused | None:
    """Decide on a peer that dials. None accepts it.

    Args:
        hello: What the peer said.
        here: Our identity.
        accepts: The backend's opinion of the peer's card: None, or the reason of a refusal.
    """
    if hello.protocol != PROTOCOL:
        return Refused(
            ProtocolError.code,
            "the peers speak two versions of the protocol: install one version of kvbridge on both",
            (("protocol", str(PROTOCOL), str(hello.protocol)),),
        )
    found = differences(
        {**here.fingerprint, "backend": here.backend},
        {**hello.identity.fingerprint, "backend": hello.identity.backend},
    )
    if found:
        return Refused(HandshakeError.code, "the peers' KV cannot be exchanged", _shortened(found))
    reason = opinion(accepts, hello.identity.card)
    if reason is not None:
        return Refused(HandshakeError.code, reason)
    return None


def opinion(accepts: Callable[[bytes], str | None], card: bytes) -> str | None:
    """Ask a backend whether it can work with a card; one that raises cannot."""
    try:
        reason = accepts(card)
    except Exception as error:  # whatever a plugin raises over a peer's bytes
        reason = f"the backend could not read the peer's card: {error!r}"
    return None if reason is None else text(reason)


def _shortened(found: tuple[tuple[str, str, str], ...]) -> tuple[tuple[str, str, str], ...]:
    """Cut a list of differences to what one message can carry."""
    listed = tuple((field[:64], here[:MAX_VALUE], there[:MAX_VALUE]) for field, here, there in found[:MAX_LISTED])
    more = len(found) - len(listed)
    return (*listed, (f"and {more} more", "", "")) if more else listed


def refused_error(refused: Refused, name: str) -> HandshakeError:
    """Turn a refusal that a peer sent into an error that lists every differing field with both values."""
    found = tuple((field, here, there) for field, there, here in refused.differences)
    listed = "; ".join(f"{field}: {here} here, {there} at the peer" for field, here, there in found)
    message = f"{name} refused the handshake: {refused.message}"
    return HandshakeError(f"{message} ({listed})" if listed else message, found)


def check_sendable(here: Identity) -> None:
    """Check that peers will be able to read our handshake.

    Raises:
        ConfigError: A name, fingerprint field or card breaks a limit of the protocol.
    """
    try:
        decode(encode(Hello(PROTOCOL, here)))
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ConfigError(f"this endpoint's identity cannot be sent to peers: {error}") from error
