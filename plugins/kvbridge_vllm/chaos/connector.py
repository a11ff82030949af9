"""`ChaosConnector`: KVBridgeConnector on a control plane that loses messages. Loaded by `kv_connector_module_path`.

It takes one more option in `kv_connector_extra_config`: `"chaos": {"rules": FILE}`.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import msgspec

from kvbridge.config import convert
from kvbridge_vllm.chaos.endpoint import LossyEndpoint
from kvbridge_vllm.chaos.rules import OPTION, RulesFile
from kvbridge_vllm.connector import KVBridgeConnector


class ChaosConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`chaos`.

    Attributes:
        rules: File with the rules for this engine's messages; see `rules.py`.
    """

    rules: str


class ChaosConnector(KVBridgeConnector):
    """The same connector, whose control messages go through rules."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        transfer = copy.copy(vllm_config.kv_transfer_config)
        extra = dict(transfer.kv_connector_extra_config)
        config = convert(ChaosConfig, extra.pop(OPTION, {}), f"kv_connector_extra_config.{OPTION}")
        transfer.kv_connector_extra_config = extra
        vllm_config = copy.copy(vllm_config)
        vllm_config.kv_transfer_config = transfer
        self.control = functools.partial(LossyEndpoint, rules=RulesFile(Path(config.rules)))
        super().__init__(vllm_config, role, kv_cache_config)
