"""`kvbridge check`: is this `--kv-transfer-config` right, and do two of them fit together? Nothing is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbridge.abc import Store
from kvbridge.config import ConnectorConfig, HandoffConfig, TierConfig, connector_config, convert, nearest
from kvbridge.errors import ConfigError, KVBridgeError
from kvbridge.policies import create_policy
from kvbridge.registry import load_backend, probe_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RIGHT, WRONG, UNREADABLE = 0, 1, 2

CONNECTORS = {"KVBridgeConnector": None, "NixlConnector": "kvbridge_vllm.nixl_alias"}
"""Class names of the connector, and the module path without which vLLM takes its own class of that name."""

ROLES = ("kv_producer", "kv_consumer", "kv_both")

VLLM_FIELDS = (
    "kv_connector",
    "kv_role",
    "kv_connector_extra_config",
    "kv_connector_module_path",
    "engine_id",
    "kv_buffer_device",
    "kv_port",
    "enable_permute_local_kv",
    "kv_load_failure_policy",
)

MUST_AGREE: dict[str, Callable[[ConnectorConfig], str | None]] = {
    "backend": lambda config: config.handoff.backend if config.handoff else None,
    "model_id": lambda config: config.model_id,
    "mode": lambda config: "GET" if config.mode == "GET" else "PUT or PUT_ASYNC",
    "layers": lambda config: str(config.layers or "all"),
    "checksum": lambda config: str(config.checksum).lower(),
}
"""What has to be equal in both engines."""


def run(texts: Sequence[str]) -> int:
    """Check one or two configurations, print every finding, return the exit code."""
    if len(texts) > 2:  # noqa: PLR2004 - a prefill and a decode engine
        print(f"give one or two configurations, found {len(texts)}", file=sys.stderr)
        return UNREADABLE
    parsed: list[tuple[str, dict[str, Any]]] = []
    for index, text in enumerate(texts):
        try:
            parsed.append(_read(text, index))
        except (OSError, ValueError) as error:
            print(f"cannot read configuration {index + 1}: {error}", file=sys.stderr)
            return UNREADABLE
    findings: list[str] = []
    typed: list[ConnectorConfig | None] = []
    for where, raw in parsed:
        config, found = _check_one(raw)
        typed.append(config)
        findings.extend(f"{where}: {finding}" for finding in found)
    if len(parsed) == 2 and not findings:  # noqa: PLR2004 - likewise
        findings.extend(_check_pair(parsed, typed))
    for finding in findings:
        print(finding, file=sys.stderr)
    if not findings:
        names = " and ".join(where for where, _ in parsed)
        print(f"right: {names}" + (" fit together" if len(parsed) > 1 else ""))
        for (where, raw), config in zip(parsed, typed, strict=True):
            if config is not None:
                print(f"  {where}: {raw['kv_role']}, {'; '.join(_flows(config))}")
    return WRONG if findings else RIGHT


def _flows(config: ConnectorConfig) -> list[str]:
    """Say what a configuration asks for."""
    found = []
    if config.handoff is not None:
        found.append(f"backend {_with_options(config.handoff)}")
    if config.reuse:
        found.append("reuse " + ", then ".join(_with_options(tier) for tier in config.reuse))
    return found


def _with_options(flow: HandoffConfig | TierConfig) -> str:
    return f"{flow.backend}, {json.dumps(flow.options) if flow.options else 'default options'}"


def _read(text: str, index: int) -> tuple[str, dict[str, Any]]:
    where = f"configuration {index + 1}"
    if text == "-":
        raw = sys.stdin.read()
    elif text.lstrip().startswith("{"):
        raw = text
    else:
        where, raw = text, Path(text).read_text(encoding="utf-8")
    value = json.loads(raw)
    if not isinstance(value, dict):
        raise ValueError(f"{where} is a JSON {type(value).__name__}, expected an object")  # noqa: TRY004 - content
    return where, value


def _check_one(raw: dict[str, Any]) -> tuple[ConnectorConfig | None, list[str]]:
    findings = [
        f"{key}: unknown field of vLLM's --kv-transfer-config; {nearest(key, VLLM_FIELDS)}"
        for key in raw
        if key not in VLLM_FIELDS
    ]
    name = raw.get("kv_connector")
    if name not in CONNECTORS:
        findings.append(f"kv_connector: found {name!r}; {nearest(str(name), CONNECTORS)}")
    elif CONNECTORS[name] is not None and raw.get("kv_connector_module_path") != CONNECTORS[name]:
        findings.append(
            f"kv_connector_module_path: found {raw.get('kv_connector_module_path')!r}, expected "
            f"{CONNECTORS[name]!r}: without it vLLM takes its own {name}"
        )
    if raw.get("kv_role") not in ROLES:
        findings.append(f"kv_role: found {raw.get('kv_role')!r}; {nearest(str(raw.get('kv_role')), ROLES)}")
    config: ConnectorConfig | None = None
    try:
        extra = raw.get("kv_connector_extra_config")
        if extra is None:
            raise ConfigError('kv_connector_extra_config: missing; expected at least {"backend": "cpu"}')
        config = connector_config(extra)
        for where, flow in config.backends():
            findings.extend(_check_backend(where, flow))
        if config.reuse:
            create_policy(config.reuse[0].policy, 1)
    except KVBridgeError as error:
        findings.append(str(error))
    return config, findings


def _check_backend(where: str, flow: HandoffConfig | TierConfig) -> list[str]:
    cls = load_backend(flow.backend)
    convert(cls.Options, flow.options, f"kv_connector_extra_config.{where}options")
    probed = probe_backend(flow.backend, flow.options)
    if not probed.probe.ok:
        return [f"the backend {flow.backend!r} cannot work on this machine: {probed.probe.reason}"]
    named = f"kv_connector_extra_config.{where}backend: {flow.backend!r}"
    if where == "reuse[0]." and probed.capabilities is not None and not probed.capabilities.slots:
        return [f'{named} has no slots for blocks; put {{"backend": "cpu"}} before it, and it becomes a tier below']
    if where.startswith("reuse") and where != "reuse[0]." and not issubclass(cls, Store):
        return [f"{named} is not a store; a tier below the first is one"]
    return []


def _check_pair(parsed: Sequence[tuple[str, dict[str, Any]]], typed: Sequence[ConnectorConfig | None]) -> list[str]:
    findings: list[str] = []
    roles = {raw["kv_role"] for _, raw in parsed}
    if len(roles) == 1 and roles != {"kv_both"}:
        findings.append(
            f"kv_role: both are {roles.pop()}; expected one kv_producer (prefill) and one kv_consumer (decode)"
        )
    ids = [raw.get("engine_id") for _, raw in parsed]
    if ids[0] is not None and ids[0] == ids[1]:
        findings.append(f"engine_id: both are {ids[0]!r}; leave it out, or give each engine its own")
    first, second = typed
    if first is None or second is None:
        return findings
    for field, of in MUST_AGREE.items():
        here, there = of(first), of(second)
        if here != there:
            findings.append(f"{field}: {here!r} against {there!r}; both engines need the same")
    if bool(first.secret_file) != bool(second.secret_file):
        findings.append("secret_file: only one has it; both engines need a file with the same secret, or neither")
    if first.port and first.port == second.port and first.host == second.host:
        findings.append(f"port: both are {first.port} on {first.host}; use 0 for ephemeral ports")
    return findings
