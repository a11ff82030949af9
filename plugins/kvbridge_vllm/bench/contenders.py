"""Who takes part: connectors by name, as engines are configured for them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvbridge.errors import BackendUnavailableError, ConfigError
from kvbridge.registry import find_backend, probe_backend

if TYPE_CHECKING:
    from collections.abc import Mapping

VLLM = "vllm:"
"""What comes before the name of a connector of vLLM's own."""


@dataclass(frozen=True)
class Contender:
    """A connector under test.

    Attributes:
        name: For the tables.
        connector: vLLM's name of its class.
        extra: Its `kv_connector_extra_config`.
        options: More fields of `--kv-transfer-config`.
        port_variable: Environment variable with a port that each engine needs for itself; empty where there is none.
    """

    name: str
    connector: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    port_variable: str = ""

    def config(self, role: str) -> dict[str, Any]:
        """Return `--kv-transfer-config` of an engine: `role` is `"kv_producer"` or `"kv_consumer"`."""
        return {
            "kv_connector": self.connector,
            "kv_role": role,
            **self.options,
            **({"kv_connector_extra_config": dict(self.extra)} if self.extra else {}),
        }


def contender(name: str, options: Mapping[str, Any] | None = None) -> Contender:
    """Return the contender of this name: a backend of kvbridge with its options, or `vllm:NixlConnector`.

    Raises:
        ConfigError: There is no such contender.
        BackendUnavailableError: It cannot work here.
    """
    if name == f"{VLLM}NixlConnector":
        if importlib.util.find_spec("nixl") is None:
            raise BackendUnavailableError(f"{name} needs the package nixl: pip install --no-deps nixl==1.5.1")
        return Contender(
            name,
            "NixlConnector",
            options={"kv_buffer_device": "cpu"},
            port_variable="VLLM_NIXL_SIDE_CHANNEL_PORT",
        )
    if name.startswith(VLLM):
        raise ConfigError(f"{name!r}: of vLLM's own connectors {VLLM}NixlConnector is known here")
    find_backend(name)
    found = probe_backend(name, options).probe
    if not found.ok:
        raise BackendUnavailableError(f"{name}: {found.reason}")
    extra = {"backend": name, "options": dict(options)} if options else {"backend": name}
    return Contender(name, "KVBridgeConnector", extra=extra)
