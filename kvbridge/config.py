"""The one conversion of configuration, at the door, into frozen typed structs. Nothing else reads a dict of options.

An unknown key is an error with its path and the nearest name that exists: a misspelt option never runs with defaults.
"""

from __future__ import annotations

import difflib
import re
from decimal import Decimal
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from kvbridge.errors import ConfigError
from kvbridge.machine import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

S = TypeVar("S", bound=msgspec.Struct)

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class HandoffConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`handoff`: which backend hands KV over to another engine.

    Attributes:
        backend: Name of an installed backend.
        options: Options of that backend.
    """

    backend: str
    options: dict[str, Any] = {}


class TierConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One tier of `reuse`. The first keeps blocks in slots of its own; the others are stores.

    Attributes:
        backend: Name of an installed backend: for the first tier one with slots, such as `cpu`; else a store.
        options: Options of that backend.
        capacity: First tier: bytes that each worker keeps at most.
        policy: First tier: what is given up when it is full, `lru`, `arc`, `s3fifo`, or a policy of a plugin.
        share: First tier: whether all engines of this user on this host that compute the same KV use one pool. The
            policy is `lru` then.
        decoded: First tier: whether blocks of generated tokens are kept too, beside those of prompts.
        min_tokens: First tier: fewer tokens than this are computed rather than loaded.
        exclusive: Lower tiers: whether a block comes into the tier when the slots give it up, and leaves it when it
            comes back (true), or is written to it as soon as it is kept at all (false).
        timeout: Lower tiers: seconds that a request waits for the tier's answer. Then it is computed.
        failures: Lower tiers: after so many failures in a row the tier is left alone for a while.
        retry: Lower tiers: for so many seconds, at first.
    """

    backend: str = "cpu"
    options: dict[str, Any] = {}
    capacity: int | str = "1GiB"
    policy: str = "lru"
    share: bool = False
    decoded: bool = True
    min_tokens: int = 1
    exclusive: bool = False
    timeout: float = 1.0
    failures: int = 3
    retry: float = 5.0


FIRST_TIER = ("capacity", "policy", "share", "decoded", "min_tokens")
"""Options of the first tier only."""

LOWER_TIERS = ("exclusive", "timeout", "failures", "retry")
"""Options of the tiers below it only."""


Address = Annotated[str, Meta(pattern=r"^[^\s/]{1,255}:[0-9]{1,5}$")]


class DiscoveryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How an engine makes itself known to vllm-router.

    Attributes:
        router: `host:port` that the router has as `--vllm-discovery-address`.
        http: `host:port` at which the router reaches this engine's HTTP server.
        role: `"prefill"` or `"decode"`; what `kv_role` says by default.
    """

    router: Address
    http: Address
    role: Literal["", "prefill", "decode"] = ""


class ConnectorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`kv_connector_extra_config` of the vLLM connector.

    Attributes:
        backend: Name of an installed backend; `kvbridge backends` lists them. With `reuse` and without `handoff` it
            is what keeps blocks for reuse, else what hands KV over.
        options: Options of that backend.
        handoff: Which backend hands KV over, where it is not the only thing that is wanted.
        reuse: Where blocks are kept that may be wanted again: one tier, or several, the fastest first.
        host: Address on which a worker's control port is bound and advertised. Loopback by default.
        port: First control port; worker rank `r` binds `port + r`. 0 for ephemeral ports.
        lease: Seconds for which prefilled KV waits for its decode request.
        claim_timeout: Seconds that a decode request waits for the prefill engine's answer before it recomputes.
        min_tokens: A hand-over of fewer missing tokens than this is not fetched: they are computed.
        insecure: Whether other machines may reach a control port without a secret.
        transfer_timeout: Seconds that moving one request's KV may take before the load counts as failed.
        peer_timeout: Seconds after which a peer that is stopped or cut off counts as lost. One that died is noticed
            at once. Raise it where more threads spin than there are cores.
        secret_file: File with a secret that all engines share, for this user's eyes only: who does not know it cannot
            connect, and the control plane is encrypted. Both sides need one, or neither.
        checksum: Whether each block of a hand-over carries a checksum that the decode engine verifies. Both sides need
            it, or neither. For KV in host memory; needs the package xxhash.
        mode: `"GET"`: a value waits at the prefill engine until its decode request asks for it. `"PUT"`: it is pushed
            to the decode engine that the router names in the request's id, as soon as that has room. `"PUT_ASYNC"`:
            the prefill engine has its blocks back when a copy is made, and the copy is pushed.
        layers: 0: all of a request's KV is one value, handed over when its prefill has ended. Else so many layers make
            a value, handed over while the next ones are computed. Both sides need the same number.
        room: Bytes of host memory that each worker has for values that are pushed to it, or that it pushes.
        trace: Folder in which each process writes the life of every hand-over, for `kvbridge trace`.
        discovery: Where a router listens for engines that make themselves known; by default they do not.
        model_id: Name of the model for the check of two engines against each other; the model path by default.
            Set it where the same model lies under two paths.
    """

    backend: str = ""
    options: dict[str, Any] = {}
    handoff: HandoffConfig | None = None
    reuse: tuple[TierConfig, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0
    lease: float = 60.0
    claim_timeout: float = 5.0
    min_tokens: int = 2
    insecure: bool = False
    transfer_timeout: float = 30.0
    peer_timeout: float = 6.0
    secret_file: str = ""
    checksum: bool = False
    mode: Literal["GET", "PUT", "PUT_ASYNC"] = "GET"
    layers: int = 0
    room: int | str = "1GiB"
    trace: str = ""
    discovery: DiscoveryConfig | None = None
    model_id: str = ""

    def backends(self) -> list[tuple[str, HandoffConfig | TierConfig]]:
        """List what names a backend, and where its options stand in the configuration, with a dot after it."""
        found: list[tuple[str, HandoffConfig | TierConfig]] = []
        if self.handoff is not None:
            found.append(("" if self.backend else "handoff.", self.handoff))
        return found + [(f"reuse[{index}].", tier) for index, tier in enumerate(self.reuse)]


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, and list all."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}Known: {', '.join(names) or 'none'}"


def convert(kind: type[S], values: Mapping[str, Any], path: str) -> S:
    """Convert a dict of options into its struct.

    Args:
        kind: The struct.
        values: The options as the user wrote them.
        path: Where they stand, for messages.

    Raises:
        ConfigError: Unknown key, missing key, wrong type; with path and nearest name.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: found {type(values).__name__}, expected an object of options")
    _check_keys(kind, values, path)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        raise ConfigError(f"{path}{where.rstrip('`')}: {message[0].lower()}{message[1:]}") from error


def _check_keys(kind: type[msgspec.Struct], values: Mapping[str, Any], path: str) -> None:
    known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{path}.{key}: unknown option; {nearest(str(key), known)}")
        inner = known[key].type
        if isinstance(inner, UnionType):  # such as `Struct | None`
            inner = next((one for one in inner.__args__ if one is not type(None)), inner)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and isinstance(value, dict):
            _check_keys(inner, value, f"{path}.{key}")


def connector_config(values: Mapping[str, Any]) -> ConnectorConfig:
    """Convert and check `kv_connector_extra_config`.

    Raises:
        ConfigError: It is not usable; the message says what was found, what was expected and what to do.
    """
    path = "kv_connector_extra_config"
    config = convert(ConnectorConfig, _with_tiers(values, path), path)
    _check_ranges(
        config,
        path,
        ("port", 0, 65535),
        ("lease", 0.1, 86400),
        ("claim_timeout", 0.1, 3600),
        ("transfer_timeout", 0.1, 3600),
        ("peer_timeout", 1, 3600),
        ("min_tokens", 1, 1 << 40),
        ("layers", 0, 1 << 16),
    )
    parse_bytes(config.room, f"{path}.room")
    if not (is_loopback(config.host) or config.secret_file or config.insecure):
        raise ConfigError(
            f"{path}.host: other machines reach {config.host!r}, and nobody would be asked who he is; name a "
            'secret_file that all engines share, or say "insecure": true where every machine of that network is yours'
        )
    if config.backend:
        if config.handoff is not None or config.reuse:
            raise ConfigError(
                f"{path}.backend: beside handoff and reuse, each of which names its own backend; move it, and its "
                "options, to the one that is meant"
            )
        return msgspec.structs.replace(config, handoff=HandoffConfig(backend=config.backend, options=config.options))
    if config.handoff is None and not config.reuse:
        raise ConfigError(f"{path}.backend: missing; name a backend to hand KV over, or say handoff or reuse")
    if config.options:
        raise ConfigError(f"{path}.options: without backend; handoff and each tier of reuse have options of their own")
    return config


def _with_tiers(values: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Bring the short ways to write `reuse` into the one long way: a list of tiers."""
    if not isinstance(values, dict) or values.get("reuse") is None:
        return values
    found = dict(values)
    tiers = found["reuse"] if isinstance(found["reuse"], list) else [found["reuse"]]
    if not tiers:
        raise ConfigError(f"{path}.reuse: found an empty list, expected at least one tier")
    if found.get("handoff") is None and "backend" in found and isinstance(tiers[0], dict) and "backend" not in tiers[0]:
        named = {key: found.pop(key) for key in ("backend", "options") if key in found}
        tiers = [{**named, **tiers[0]}, *tiers[1:]]
    for index, tier in enumerate(tiers):
        where = f"{path}.reuse[{index}]" if isinstance(found["reuse"], list) else f"{path}.reuse"
        checked = convert(TierConfig, tier, where)
        wrong = [key for key in (LOWER_TIERS if index == 0 else FIRST_TIER) if key in tier]
        if wrong:
            which = "of the tiers below the first" if index == 0 else "of the first tier"
            raise ConfigError(f"{where}.{wrong[0]}: this is an option {which} only")
        if index and "backend" not in tier:
            raise ConfigError(f"{where}.backend: missing; a tier below the first names a store")
        _check_ranges(
            checked,
            where,
            ("timeout", 1e-3, 86400),
            ("retry", 1e-3, 86400),
            ("failures", 1, 1 << 31),
            ("min_tokens", 1, 1 << 40),
        )
    if tiers[0].get("share"):
        _check_shared(tiers, f"{path}.reuse")
    found["reuse"] = tiers
    return found


def _check_ranges(found: ConnectorConfig | TierConfig, path: str, *ranges: tuple[str, float, float]) -> None:
    for name, low, high in ranges:
        value = getattr(found, name)
        if not low <= value <= high:  # as with a NaN
            raise ConfigError(f"{path}.{name}: found {value}, expected {low} to {high}")


def _check_shared(tiers: list[dict[str, Any]], path: str) -> None:
    if tiers[0].get("policy", "lru") != "lru":
        raise ConfigError(f"{path}.policy: found {tiers[0]['policy']!r}; a pool that engines share has the policy lru")
    if any(tier.get("exclusive") for tier in tiers):
        raise ConfigError(f"{path}.exclusive: blocks of a pool that engines share are written through, not moved")


def parse_bytes(value: int | str, path: str) -> int:
    """Convert a size such as `"4GiB"` or a number of bytes.

    Raises:
        ConfigError: It is no size.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)", str(value).strip())
    if found is None or found[2].upper() not in _UNITS:
        raise ConfigError(f"{path}: found {value!r}, expected a number of bytes or a size such as '512MiB' or '4GiB'")
    return int(Decimal(found[1]) * _UNITS[found[2].upper()])
