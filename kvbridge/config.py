"""The one conversion of configuration, at the door, into frozen typed structs. Nothing else reads a dict of options.

An unknown key is an error with its path and the nearest name that exists: a misspelt option never runs with defaults.
"""

from __future__ import annotations

import difflib
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kvbridge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

S = TypeVar("S", bound=msgspec.Struct)

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class ConnectorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`kv_connector_extra_config` of the vLLM connector.

    Attributes:
        backend: Name of an installed backend; `kvbridge backends` lists them.
        options: Options of that backend.
        host: Address on which a worker's control port is bound and advertised. Loopback by default.
        port: First control port; worker rank `r` binds `port + r`. 0 for ephemeral ports.
        lease: Seconds for which prefilled KV waits for its decode request.
        claim_timeout: Seconds that a decode request waits for the prefill engine's answer before it recomputes.
        transfer_timeout: Seconds that moving one request's KV may take before the load counts as failed.
        peer_timeout: Seconds after which a peer that is stopped or cut off counts as lost. One that died is noticed
            at once. Raise it where more threads spin than there are cores.
        secret_file: File with a secret that all engines share, for this user's eyes only: who does not know it cannot
            connect, and the control plane is encrypted. Both sides need one, or neither.
        model_id: Name of the model for the check of two engines against each other; the model path by default.
            Set it where the same model lies under two paths.
    """

    backend: str
    options: dict[str, Any] = {}
    host: str = "127.0.0.1"
    port: int = 0
    lease: float = 60.0
    claim_timeout: float = 5.0
    transfer_timeout: float = 30.0
    peer_timeout: float = 6.0
    secret_file: str = ""
    model_id: str = ""


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
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and isinstance(value, dict):
            _check_keys(inner, value, f"{path}.{key}")


def connector_config(values: Mapping[str, Any]) -> ConnectorConfig:
    """Convert and check `kv_connector_extra_config`.

    Raises:
        ConfigError: It is not usable; the message says what was found, what was expected and what to do.
    """
    config = convert(ConnectorConfig, values, "kv_connector_extra_config")
    for name, low, high in (
        ("port", 0, 65535),
        ("lease", 0.1, 86400),
        ("claim_timeout", 0.1, 3600),
        ("transfer_timeout", 0.1, 3600),
        ("peer_timeout", 1, 3600),
    ):
        value = getattr(config, name)
        if not low <= value <= high:
            raise ConfigError(f"kv_connector_extra_config.{name}: found {value}, expected {low} to {high}")
    return config


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
