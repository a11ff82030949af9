"""Listens to an engine's KV events, as a router does, and keeps the account of what is where."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Self

import msgspec
import zmq

from kvbridge_vllm.launch.process import free_port

if TYPE_CHECKING:
    from types import TracebackType

FIELDS = {
    "BlockStored": {
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    },
    "BlockRemoved": {"type", "block_hashes", "medium", "group_idx"},
    "AllBlocksCleared": {"type"},
}
"""What a strict router takes; it drops a batch with anything else in it."""


class Events:
    """Connects to an endpoint that the engine binds later, and reads until the end.

    Attributes:
        there: For each medium the hashes that were stored and not removed, each with its parent.
        wrong: What a router would not have understood.
    """

    def __init__(self) -> None:
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.there: dict[str, dict[bytes, bytes | None]] = {"CPU": {}, "STORAGE": {}}
        self.wrong: list[Any] = []
        self._sequence = -1
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="kv-events")

    @property
    def arguments(self) -> tuple[str, str]:
        wanted = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": ""}
        wanted["endpoint"] = self.endpoint.replace("127.0.0.1", "*")  # else the engine connects, and does not bind
        return "--kv-events-config", json.dumps(wanted)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(10)

    def _listen(self) -> None:
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.subscribe(b"")
            socket.connect(self.endpoint)
            while not self._end.is_set():
                if socket.poll(100):
                    _, sequence, payload = socket.recv_multipart()
                    self._take(int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload))

    def _take(self, sequence: int, batch: list[Any]) -> None:
        if sequence != self._sequence + 1:
            self.wrong.append(f"the number {sequence} after {self._sequence}")
        self._sequence = sequence
        for event in batch[1]:
            if set(event) - FIELDS[event["type"]]:
                self.wrong.append(event)
            medium = event.get("medium")
            if medium in self.there:
                self._account(event, self.there[medium])

    def _account(self, event: dict[str, Any], there: dict[bytes, bytes | None]) -> None:
        hashes = event["block_hashes"]
        if event["type"] == "BlockRemoved":
            if any(there.pop(one, self) is self for one in hashes):
                self.wrong.append(f"removed and was not there: {event}")
            return
        if len(event["token_ids"]) != len(hashes) * event["block_size"] or any(one in there for one in hashes):
            self.wrong.append(f"stored twice, or with other tokens: {event}")
        there.update(zip(hashes, [event["parent_block_hash"], *hashes], strict=False))
