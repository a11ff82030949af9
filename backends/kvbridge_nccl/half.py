"""`Half`: one side of a value on its way, which the endpoint's thread looks at while the group's thread works."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kvbridge.abc import Move, MoveState
from kvbridge_nccl.chunks import cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge.errors import KVBridgeError
    from kvbridge.memory import Payload
    from kvbridge_nccl.chunks import Chunk
    from kvbridge_nccl.cuda import CudaChunk


class Half(Move):
    """A value in chunks, until it has ended. The lock is a barrier: after `end` nothing of the value is touched.

    Args:
        number: Of the transfer, in its group.
        payload: The value, or where it belongs.
        chunk: Bytes that travel at one time.
    """

    def __init__(self, number: int, payload: Payload, chunk: int) -> None:
        self.number = number
        self._chunks: Iterator[tuple[Chunk | CudaChunk, bool]] = cut(payload, chunk)
        self._use = threading.Lock()
        self._ended = False
        self._error: KVBridgeError | None = None

    def step(self) -> MoveState:
        """Look whether it has ended."""
        with self._use:
            if not self._ended:
                return MoveState.WAIT
            if self._error is not None:
                raise self._error
            return MoveState.DONE

    def end(self, error: KVBridgeError | None) -> None:
        """Take note that all has moved, or that nothing more will. Idempotent. Any thread."""
        with self._use:
            if not self._ended:
                self._ended, self._error = True, error
                self._chunks = iter(())
