"""`TierMover`: moves values between the slots of one rank and a store, as the scheduler half orders."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbridge.abc.buffer import Key, LookupBuffer
from kvbridge.connector.durations import Durations
from kvbridge.errors import DuplicateKeyError, KeyMissError, KVBridgeError, TransferTimeoutError
from kvbridge.memory import Pages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.connector.reuse_plan import ReusePlan, ReuseReport, TierOrder
    from kvbridge.memory import Region
    from kvbridge.transfer import Transfer

MOVING = ("read", "write")
"""Orders that move bytes."""


@dataclass(eq=False)
class _Moving:
    """An order under way: its transfers, one for each key, or one for all."""

    order: TierOrder
    what: str
    transfers: list[Transfer[Any]]
    count: Callable[[list[Transfer[Any]]], int]
    started: float
    error: KVBridgeError | None = None


class TierMover:
    """Carries out orders for one tier in one rank. Called from the engine's worker thread only.

    Args:
        index: The tier's number, from 0 for the first below the slots.
        buffer: The store's LookupBuffer.
        regions: The slots' regions.
        rank: This worker's rank: each has values of its own.
        timeout: Seconds that an order may take.
        close: Releases the store, after the buffer.
    """

    def __init__(
        self,
        index: int,
        buffer: LookupBuffer,
        regions: Sequence[Region],
        *,
        rank: int,
        timeout: float,
        close: Callable[[], None],
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.durations = Durations()
        self._index = index
        self._buffer = buffer
        self._regions = regions
        self._rank = rank
        self._timeout = timeout
        self._close = close
        self._moving: list[_Moving] = []

    def begin(self, plan: ReusePlan) -> None:
        """Start what a plan asks of this tier. Never blocks."""
        for order in plan.lookups:
            self._start("lookup", order, self._look_up, _leading_found)
        for order in plan.promotions:
            self._start("read", order, self._promote, _leading_done)
        for order in plan.demotions:
            self._start("write", order, self._demote, _kept)
        for order in plan.removals:
            self._start("removal", order, self._remove, len)

    def poll(self, report: ReuseReport) -> None:
        """Report which orders have ended since the last call."""
        now = time.monotonic()
        for moving in list(self._moving):
            if now > moving.started + self._timeout and moving.error is None:
                moving.error = TransferTimeoutError(f"the tier did not answer within {self._timeout:g} s")
                for transfer in moving.transfers:
                    transfer.cancel()
            if all(transfer.poll() for transfer in moving.transfers):
                self._moving.remove(moving)
                self._ended(moving, report)

    def close(self) -> None:
        """Cancel everything and release the store. Idempotent, bounded."""
        for moving in self._moving:
            for transfer in moving.transfers:
                transfer.cancel()
        self._buffer.close()
        self._close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _start(
        self,
        what: str,
        order: TierOrder,
        begin: Callable[[TierOrder], list[Transfer[Any]]],
        count: Callable[[list[Transfer[Any]]], int],
    ) -> None:
        if order.tier == self._index:
            started = time.monotonic()
            self._moving.append(_Moving(order, what, begin(order), count, started))

    def _ended(self, moving: _Moving, report: ReuseReport) -> None:
        done = moving.count(moving.transfers)
        errors = (transfer.error for transfer in moving.transfers)
        error = moving.error or next(
            (one for one in errors if one is not None and not isinstance(one, (KeyMissError, DuplicateKeyError))), None
        )
        report.ended[moving.order.job] = 1
        report.found[moving.order.job] = done
        if error is not None:
            report.failed[moving.order.job] = f"rank {self._rank}: {error}"
            self.failures[f"{moving.what}:{type(error).__name__}"] += 1
        self.durations.add(moving.what, time.monotonic() - moving.started)
        if moving.what in MOVING:
            self.counters[f"{moving.what}_bytes"] += done * sum(region.page_bytes for region in self._regions)

    def _key(self, key: bytes) -> Key:
        return Key(f"{key.hex()}.{self._rank}")

    def _look_up(self, order: TierOrder) -> list[Transfer[Any]]:
        return [self._buffer.contains([self._key(key) for key in order.keys], timeout=self._timeout)]

    def _promote(self, order: TierOrder) -> list[Transfer[Any]]:
        return [
            self._buffer.select(self._key(key), Pages.of(self._regions, [slot]), timeout=self._timeout)
            for key, slot in zip(order.keys, order.slots, strict=True)
        ]

    def _demote(self, order: TierOrder) -> list[Transfer[Any]]:
        return [
            self._buffer.insert(self._key(key), Pages.of(self._regions, [slot]), lease=math.inf)
            for key, slot in zip(order.keys, order.slots, strict=True)
        ]

    def _remove(self, order: TierOrder) -> list[Transfer[Any]]:
        self._buffer.drop([self._key(key) for key in order.keys])
        return []


def _leading_found(transfers: list[Transfer[Any]]) -> int:
    """How many keys were found, counted from the first without a gap."""
    if transfers[0].error is not None:
        return 0
    found = transfers[0].result()
    return found.index(False) if False in found else len(found)


def _leading_done(transfers: list[Transfer[Any]]) -> int:
    """How many values were read, likewise."""
    return next((index for index, transfer in enumerate(transfers) if transfer.error is not None), len(transfers))


def _kept(transfers: list[Transfer[Any]]) -> int:
    """How many values are in the store, whoever put them there."""
    return sum(transfer.error is None or isinstance(transfer.error, DuplicateKeyError) for transfer in transfers)
