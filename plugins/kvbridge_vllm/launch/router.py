"""Starts and stops a vllm-router between prefill and decode engines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvbridge_vllm.launch.errors import RouterStartError
from kvbridge_vllm.launch.process import ServerProcess, child_environment, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Router(ServerProcess):
    """A running vllm-router, which sends a request to a prefill engine and then to a decode engine.

    See `ServerProcess` for its life.
    """

    start_error = RouterStartError

    def __init__(
        self,
        prefill: Sequence[str],
        decode: Sequence[str],
        log_dir: Path,
        *,
        name: str = "router",
        extra_args: Sequence[str] = (),
    ) -> None:
        """Starts the router on a free loopback port and does not wait for it.

        It opens its port once all engines are healthy.

        Args:
            prefill: URLs of the prefill engines.
            decode: URLs of the decode engines.
            log_dir: for ``NAME.log``.
            name: for the log file and messages.
            extra_args: more arguments for the router.

        Raises:
            RouterStartError: the process could not be started.
        """
        port = free_port()
        command = [sys.executable, "-m", "vllm_router.launch_router"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        # Its metrics server has a fixed port by default, so a second router on the machine would not start.
        command += ["--prometheus-port", str(free_port()), "--prometheus-host", "127.0.0.1"]
        # The default of 30 s would add half of that to the start on average.
        command += ["--worker-startup-check-interval", "1"]
        # "nixl" names the wire protocol: the prefill engine's kv_transfer_params are passed on, unread.
        command += ["--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin"]
        for url in prefill:
            command += ["--prefill", url]
        for url in decode:
            command += ["--decode", url]
        super().__init__(name, [*command, *extra_args], port=port, env=child_environment({}), log_dir=log_dir)

    def phase(self) -> str:
        """Says what the starting router does."""
        return "waiting for the engines"
