"""The vLLM connector of kvbridge.

`register` is the entry point of the group `vllm.general_plugins`: vLLM calls it in every process, and more than once
in some. It must be cheap, must never raise, and must not import numba or torch before vLLM did.
"""

from __future__ import annotations

import logging

CONNECTOR = "KVBridgeConnector"
MODULE = "kvbridge_vllm.connector"


def register() -> None:
    """Make `KVBridgeConnector` known to vLLM's factory. Idempotent."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: PLC0415 - a peer

    if CONNECTOR not in KVConnectorFactory._registry:  # noqa: SLF001 - there is no public question
        KVConnectorFactory.register_connector(CONNECTOR, MODULE, CONNECTOR)
    share_logging()


def share_logging(*more: str) -> None:
    """Send kvbridge's log lines where vLLM's go: vLLM configures its own logger only. Idempotent.

    Args:
        *more: Packages whose lines belong to kvbridge's, such as a backend's.
    """
    vllm = logging.getLogger("vllm")
    for name in ("kvbridge", "kvbridge_vllm", *more):
        logger = logging.getLogger(name)
        if not logger.handlers and vllm.handlers:
            logger.handlers = list(vllm.handlers)
            logger.setLevel(vllm.level)
            logger.propagate = False
