"""Hand-overs in one rank: its backend, control endpoint and worker half."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from kvbridge.config import parse_bytes
from kvbridge.connector.computing import Computing
from kvbridge.connector.layerwise import LayerwiseSaves
from kvbridge.control.endpoint import Endpoint
from kvbridge.control.secret import read_secret
from kvbridge.errors import ConfigError
from kvbridge.layers.checked import CheckedBuffer
from kvbridge.layers.layered import LayeredBuffer, part_sizes
from kvbridge.layers.pushing import PushingBuffer
from kvbridge.layers.queued import QueuedBuffer
from kvbridge.memory import checksums
from kvbridge.memory.cuda import Mark
from kvbridge.memory.host_pool import HostPool
from kvbridge.registry import create_backend
from kvbridge_vllm.layout import fingerprint, refuse_micro_batches
from kvbridge_vllm.metrics import COUNTERS, GAUGES, figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.connector import Outcome
    from kvbridge.config import ConnectorConfig, HandoffConfig
    from kvbridge.connector.handoff_worker import HandoffWorker
    from kvbridge.connector.layerwise import Announce
    from kvbridge.connector.plan import Plan, Report
    from kvbridge.memory.layout import CacheLayout
    from kvbridge_vllm.metrics import Figures

logger = logging.getLogger(__name__)


class HandoffRank:
    """Owns what one rank hands KV over with. The backend is made at once: a wrong configuration ends the start.

    Args:
        config: The connector's configuration.
        handoff: That of hand-overs.
        vllm_config: vLLM's.
        kv_cache_config: This worker's.
        half: Class of the worker half.
        endpoint: Makes the control endpoint, from what `Endpoint` takes.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        handoff: HandoffConfig,
        vllm_config: Any,
        kv_cache_config: Any,
        half: type[HandoffWorker],
        endpoint: Callable[..., Endpoint] = Endpoint,
    ) -> None:
        self._config = config
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._half_class = half
        self._endpoint_class = endpoint
        self._name = handoff.backend
        if config.layers:
            refuse_micro_batches(vllm_config)
        path = "kv_connector_extra_config.options" if config.backend else "kv_connector_extra_config.handoff.options"
        self._backend = create_backend(handoff.backend, handoff.options, path)
        self._endpoint: Endpoint | None = None
        self._half: HandoffWorker | None = None
        self._buffer: Any = None
        self._closed = False

    def register(self, layout: CacheLayout, rank: int) -> None:
        """Take the cache: from here on this rank can be reached."""
        config, transfer = self._config, self._vllm_config.kv_transfer_config
        device = next((region.device for region in layout.regions if region.device != "cpu"), None)
        if config.checksum and device is not None:
            raise ConfigError(
                f"kv_connector_extra_config.checksum: True is for KV in host memory, this engine's is on {device}; "
                "leave it out"
            )
        self._backend.register(layout.regions)
        self._endpoint = self._endpoint_class(
            self._backend,
            name=f"{transfer.engine_id} rank {rank}",
            fingerprint={
                **fingerprint(self._vllm_config, self._kv_cache_config, rank, config.model_id),
                "checksum": checksums.NAME if config.checksum else "none",
                "layers of a value": str(config.layers or "all"),
            },
            host=config.host,
            port=config.port and config.port + rank,
            peer_timeout=config.peer_timeout,
            secret=read_secret(config.secret_file),
        )
        self._buffer = self._backend.open_buffer(
            self._endpoint,
            lease=config.lease,
            timeout=config.transfer_timeout,
            patient=not config.layers,  # parts that wait for room could hold the room that others wait for
        )
        if config.mode == "PUT_ASYNC" and transfer.is_kv_producer:
            self._buffer = QueuedBuffer(self._buffer, self._endpoint, HostPool(self._room()))
        if config.checksum:
            self._buffer = CheckedBuffer(self._buffer, self._endpoint)
        announce = self._push(self._endpoint, transfer) if config.mode != "GET" else None
        layerwise: LayerwiseSaves | None = None
        if config.layers:
            self._buffer = layered = LayeredBuffer(self._buffer, part_sizes(layout.layers, config.layers))
            layerwise = LayerwiseSaves(
                layered,
                layout,
                rank=rank,
                lease=config.lease,
                announce=announce,
                computing=Computing(partial(Mark, device) if device is not None else None),
            )
        self._half = self._half_class(
            self._buffer,
            layout,
            rank=rank,
            claim_timeout=config.claim_timeout,
            lease=config.lease,
            announce=announce,
            layerwise=layerwise,
        )
        logger.info(
            "kvbridge: rank %d hands over KV by the backend %r, control address %s, %d regions",
            rank,
            self._name,
            self._endpoint.address,
            len(layout.regions),
        )

    def _push(self, endpoint: Endpoint, transfer: Any) -> Announce:
        """Put what pushes values, and takes what is pushed, around the buffer."""
        room = HostPool(self._room()) if transfer.is_kv_consumer else None
        self._buffer = pushing = PushingBuffer(self._buffer, endpoint, room, lease=self._config.lease)
        return pushing.announce

    def _room(self) -> int:
        return parse_bytes(self._config.room, "kv_connector_extra_config.room")

    @property
    def layerwise(self) -> LayerwiseSaves | None:
        """What hands over layer by layer, if that is wanted."""
        return self._half.layerwise if self._half is not None else None

    def directory(self) -> tuple[str, int] | None:
        """Return this rank's control address and incarnation."""
        return (self._endpoint.address, self._endpoint.here.generation) if self._endpoint else None

    def begin(self, plan: Plan) -> None:
        """Start a plan's orders."""
        if self._half is not None:
            self._half.begin(plan)

    def poll(self) -> Outcome | None:
        """Return what has ended."""
        return self._half.poll() if self._half is not None else None

    def report(self) -> Report | None:
        """Return the outcome of claims."""
        return self._half.report() if self._half is not None else None

    def stats(self) -> Figures:
        """Return counters and gauges by name, and durations since the last call."""
        if self._half is None or self._endpoint is None:
            return {}
        held = self._buffer.stats()
        half = self._half
        return {
            "loaded_bytes": half.counters["loaded_bytes"],
            "saved_bytes": half.counters["saved_bytes"],
            "failed_saves": half.counters["failed_saves"],
            **figures("", half.failures, half.durations),
            **(half.layerwise.counters if half.layerwise is not None else {}),
            **{name: value for name, value in held.items() if name in COUNTERS or name in GAUGES},
            "held_values": held.get("entries", 0.0),
            "held_bytes": held.get("bytes", 0.0),
            "malformed_messages": self._endpoint.counters["malformed_messages"],
            "refused_handshakes": self._endpoint.counters["refused_handshakes"],
            "internal_errors": self._endpoint.counters["internal_errors"],
        }

    def close(self) -> None:
        """Release everything. Idempotent, bounded, safe after a start that failed half-way."""
        if self._closed:
            return
        self._closed = True
        if self._half is not None:
            self._half.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._backend.close()
