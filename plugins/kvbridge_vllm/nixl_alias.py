"""The connector under the name `NixlConnector`, for routers that accept known class names only.

Use it with `"kv_connector": "NixlConnector", "kv_connector_module_path": "kvbridge_vllm.nixl_alias"`: vLLM prefers
the module path over its registry.
"""

from __future__ import annotations

from kvbridge_vllm.connector import KVBridgeConnector


class NixlConnector(KVBridgeConnector):
    """`KVBridgeConnector` under another name."""
