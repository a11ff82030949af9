"""The part of a worker half that hands KV over layer by layer, while the engine computes the last step of a prompt.

The blocks belong to a request that still runs. The engine may preempt it, and give its blocks to another one without a
word; so the scheduler half tells of it, and the step that could write to them waits until nobody reads them any more.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kvbridge.abc.buffer import Key
from kvbridge.buffers.chain import all_of
from kvbridge.connector.computing import Computing
from kvbridge.errors import KVBridgeError, TransferTimeoutError
from kvbridge.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.connector.plan import Plan, SaveOrder
    from kvbridge.layers.layered import LayeredBuffer
    from kvbridge.memory import Pages
    from kvbridge.memory.layout import CacheLayout

logger = logging.getLogger(__name__)

Announce: TypeAlias = "Callable[[Key, Pages, bytes, str], None]"

FENCE_TIMEOUT = 60.0
"""Seconds after which blocks that are still read end the engine. Reads end long before: they have deadlines."""


@dataclass(eq=False)
class _Early:
    """A request whose parts are inserted one after the other."""

    order: SaveOrder
    keys: list[Key]
    parts: list[Pages]
    inserts: dict[int, Transfer[None]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)


class LayerwiseSaves:
    """One rank's. Called from the engine's worker thread only.

    Args:
        buffer: The LookupBuffer, in parts.
        layout: The rank's cache, with the names of its layers.
        rank: This worker's rank.
        lease: Seconds for which a value waits for its consumer.
        announce: Tells a consumer at an address of a part that was inserted: its key, pages and digest.
        computing: Says when what the engine has queued is computed.
    """

    def __init__(
        self,
        buffer: LayeredBuffer,
        layout: CacheLayout,
        *,
        rank: int,
        lease: float,
        announce: Announce | None = None,
        computing: Computing | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._computing = computing or Computing()
        self._buffer = buffer
        self._layout = layout
        self._rank = rank
        self._lease = lease
        self._announce = announce
        names = iter(layout.layers)
        self._layers = [{name for _ in range(size) for name in next(names)} for size in buffer.sizes]
        self._left: list[set[str]] = []
        self._early: dict[str, _Early] = {}
        self._step: list[_Early] = []
        self._withdrawn: dict[str, Transfer[None]] = {}

    def prepare(self, plan: Plan) -> None:
        """Take a step's orders, before it computes anything.

        Raises:
            TransferTimeoutError: Blocks that the step may write to are still read: it must not be run.
        """
        for request_id in plan.withdrawals:
            self._withdraw(request_id)
        for request_id in plan.fences:
            self._fence(request_id)
        self._step = []
        for order in plan.layers:
            self._begin(order)
        self._left = [set(names) for names in self._layers] if self._step else []

    def computed(self, layer: str) -> None:
        """Hand over the part that is complete with this layer."""
        for part, left in enumerate(self._left):
            if layer in left:
                left.discard(layer)
                if not left:
                    self._insert_all(part)

    def finish(self) -> None:
        """Hand over what no layer's end was told of, after everything was computed."""
        for part, left in enumerate(self._left):
            if left:
                self.counters["late_parts"] += len(self._step)
                self._insert_all(part)
        self._step, self._left = [], []

    def take(self, order: SaveOrder) -> tuple[Transfer[None], float]:
        """Return the hand-over of a request that has ended, and when it began: now, if it was not handed over before.

        Raises:
            SpecMismatchError: It names a block that cannot be moved.
        """
        early = self._early.pop(order.request_id, None)
        if early is None:
            early = self._made(order)
            for part in range(len(early.keys)):  # it was computed, or it would not have ended
                early.inserts[part] = self._insert(early, part)
        return self._buffer.whole(Key(order.key), _in_order(early)), early.started

    def poll(self) -> set[str]:
        """Return requests that were withdrawn and whose blocks are free now."""
        over = {request_id for request_id, transfer in self._withdrawn.items() if transfer.poll()}
        for request_id in over:
            del self._withdrawn[request_id]
        return over

    def close(self) -> None:
        """Give up what is not computed yet. Idempotent."""
        self._computing.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _made(self, order: SaveOrder) -> _Early:
        pages = self._layout.pages([order.block_ids] * len(self._layout.groups))
        return _Early(order, self._buffer.keys(Key(order.key)), self._buffer.split(pages))

    def _begin(self, order: SaveOrder) -> None:
        try:
            early = self._made(order)
        except KVBridgeError as error:
            logger.warning("request %s is handed over when it has ended: %s", order.request_id, error)
            return
        self._early[order.request_id] = early
        self._step.append(early)

    def _insert_all(self, part: int) -> None:
        mark = self._computing.mark()
        for early in self._step:
            what = f"inserting {early.keys[part].id!r}"
            early.inserts[part] = self._computing.after(mark, what, partial(self._insert, early, part))
        self.counters["early_parts"] += len(self._step)

    def _insert(self, early: _Early, part: int) -> Transfer[None]:
        order, key, pages = early.order, early.keys[part], early.parts[part]
        transfer = self._buffer.inner.insert(key, pages, digest=order.digest, lease=self._lease)
        if order.to and self._announce is not None and transfer.error is None:
            self._announce(key, pages, order.digest, order.to[self._rank])
        return transfer

    def _give_up(self, early: _Early) -> Transfer[None]:
        inserts = _in_order(early)
        self._computing.give_up(inserts)
        self._buffer.drop([Key(early.order.key)])
        return all_of(inserts, f"giving up {early.order.request_id}")

    def _withdraw(self, request_id: str) -> None:
        early = self._early.pop(request_id, None)
        over: Transfer[None] = Transfer(f"giving up {request_id}")
        over.resolve(None)
        self._withdrawn[request_id] = self._give_up(early) if early is not None else over

    def _fence(self, request_id: str) -> None:
        early = self._early.pop(request_id, None)
        over = self._give_up(early) if early is not None else self._withdrawn.get(request_id)
        if over is None:
            return
        self.counters["layer_fences"] += 1
        _wait(over, FENCE_TIMEOUT)


def _in_order(early: _Early) -> list[Transfer[None]]:
    """Return the inserts in the order of their keys; layers may be computed in another one."""
    return [transfer for _, transfer in sorted(early.inserts.items())]


def _wait(over: Transfer[None], timeout: float) -> None:
    """Wait until nothing uses a transfer's memory, however it ends."""
    try:
        over.wait(timeout)
    except KVBridgeError as error:
        if not over.poll():
            raise TransferTimeoutError(
                f"{over.what}: its blocks are the engine's again, and are still read after {timeout:g} s; to go on "
                "could mean wrong tokens somewhere else"
            ) from error
