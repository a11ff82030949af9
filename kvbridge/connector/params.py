"""`kv_transfer_params`: what travels from the prefill engine through a router to the decode engine.

The convention is that of vLLM's NIXL connector, which routers speak: a prefill request carries `do_remote_decode`,
its response carries `do_remote_prefill` and the remote fields. What kvbridge needs stands under the key `kvbridge`.
A router passes all of it on unread; a client can send anything, so everything is checked.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from kvbridge.connector.digest import DIGEST_BYTES
from kvbridge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
NAMESPACE = "kvbridge"

_Text = Annotated[str, Meta(max_length=256)]
_Key = Annotated[str, Meta(pattern=r"^[!-~]{1,256}$")]
_Address = Annotated[str, Meta(pattern=r"^tcp://[^\s/]+:[0-9]{1,5}$", max_length=256)]
_Generation = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class Handoff(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What the decode engine needs to fetch a prompt's KV.

    Attributes:
        v: Version of this structure.
        key: Id of the value, the same on every rank.
        digest: Digest of the prompt, base64.
        tokens: Tokens of the prompt.
        block_size: Tokens of a block.
        addresses: Control address of each rank of the prefill engine.
        generations: Incarnation of each of them.
    """

    v: int
    key: _Key
    digest: _Text
    tokens: Annotated[int, Meta(ge=1)]
    block_size: Annotated[int, Meta(ge=1)]
    addresses: Annotated[tuple[_Address, ...], Meta(min_length=1, max_length=1024)]
    generations: Annotated[tuple[_Generation, ...], Meta(min_length=1, max_length=1024)]

    @property
    def digest_bytes(self) -> bytes:
        """The digest.

        Raises:
            ConfigError: It is not base64, or not of a digest's length.
        """
        try:
            digest = base64.b64decode(self.digest, validate=True)
        except ValueError as error:  # of which binascii.Error is one kind
            raise ConfigError(f"kv_transfer_params.{NAMESPACE}.digest is not base64") from error
        if len(digest) != DIGEST_BYTES:
            raise ConfigError(
                f"kv_transfer_params.{NAMESPACE}.digest: found {len(digest)} bytes, expected {DIGEST_BYTES}"
            )
        return digest


def wants_decode(params: Mapping[str, Any] | None) -> bool:
    """Whether a request asks this engine to prefill for another one."""
    return isinstance(params, dict) and params.get("do_remote_decode") is True


def wants_prefill(params: Mapping[str, Any] | None) -> bool:
    """Whether a request says that its prompt was prefilled elsewhere."""
    return isinstance(params, dict) and params.get("do_remote_prefill") is True


def parse_handoff(params: Mapping[str, Any]) -> Handoff:
    """Read what a client sent.

    Raises:
        ConfigError: It is not a hand-over of this version; the message says what was found.
    """
    found = params.get(NAMESPACE)
    if not isinstance(found, dict):
        raise ConfigError(
            f"kv_transfer_params.{NAMESPACE}: found {type(found).__name__}, expected an object: the prefill engine "
            "must run KVBridgeConnector too"
        )
    if found.get("v") != VERSION:
        raise ConfigError(f"kv_transfer_params.{NAMESPACE}.v: found {found.get('v')!r}, expected {VERSION}")
    try:
        handoff = msgspec.convert(found, Handoff)
    except (msgspec.ValidationError, UnicodeError) as error:  # the latter for half of a surrogate pair
        raise ConfigError(f"kv_transfer_params.{NAMESPACE}: {error}") from error
    if len(handoff.addresses) != len(handoff.generations):
        raise ConfigError(f"kv_transfer_params.{NAMESPACE}: one generation for each address is expected")
    return handoff


def response_params(handoff: Handoff, *, engine_id: str, request_id: str, block_ids: list[int]) -> dict[str, Any]:
    """Build the params of a prefill response, in the convention of vLLM's NIXL connector."""
    host, _, port = handoff.addresses[0].removeprefix("tcp://").rpartition(":")
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_block_ids": block_ids,
        "remote_host": host,
        "remote_port": int(port),
        "tp_size": len(handoff.addresses),
        NAMESPACE: msgspec.to_builtins(handoff),
    }


def encode_digest(digest: bytes) -> str:
    """Write a digest as text."""
    return base64.b64encode(digest).decode("ascii")
