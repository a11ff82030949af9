"""The worker half of a hand-over: carries out plans with a LookupBuffer and reports each outcome exactly once."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbridge.abc.buffer import Claim, Key, LookupBuffer
from kvbridge.abc.connector import Outcome, WorkerHalf
from kvbridge.connector.durations import Durations
from kvbridge.connector.plan import ClaimOrder, LoadOrder, Plan, RemoteKey, Report, SaveOrder
from kvbridge.errors import BusyError, KVBridgeError, SpecMismatchError
from kvbridge.transfer import failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.connector.layerwise import Announce, LayerwiseSaves
    from kvbridge.memory import Pages
    from kvbridge.memory.layout import CacheLayout
    from kvbridge.transfer import Transfer

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Load:
    """A load under way."""

    claim: Claim | None
    transfer: Transfer[None]
    pages: Pages | None
    started: float


class HandoffWorker(WorkerHalf[Plan, Report]):
    """Carries out hand-overs of one rank. Called from the engine's worker thread only.

    Args:
        buffer: The LookupBuffer.
        layout: The rank's cache.
        rank: This worker's rank: it talks to the same rank of the other engine.
        claim_timeout: Seconds that the prefill engine may take to answer.
        lease: Seconds for which a value waits for its consumer.
        announce: Tells a consumer at an address of a value that was inserted: its key, pages and digest.
        layerwise: What hands values over instead, and tells of them, where that is wanted layer by layer.
    """

    def __init__(
        self,
        buffer: LookupBuffer,
        layout: CacheLayout,
        *,
        rank: int,
        claim_timeout: float,
        lease: float,
        announce: Announce | None = None,
        layerwise: LayerwiseSaves | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.durations = Durations()
        self._buffer = buffer
        self._layout = layout
        self._rank = rank
        self._claim_timeout = claim_timeout
        self._lease = lease
        self._announce = announce
        self.layerwise = layerwise
        self._claims: dict[int, Transfer[Claim]] = {}
        self._granted: dict[int, Claim] = {}
        self._loads: dict[str, _Load] = {}
        self._saves: dict[str, tuple[Transfer[None], int, float]] = {}
        self._report = Report()

    def begin(self, plan: Plan) -> None:
        """Start what a plan asks for."""
        for claim_order in plan.claims:
            self._claim(claim_order)
        for save_order in plan.saves:
            self._save(save_order)
        for load_order in plan.loads:
            self._load(load_order)
        # What is not wanted any more comes last: it may have been ordered in this same plan.
        for claim in plan.releases:
            self._release(claim)
        for request_id in plan.cancels:
            if request_id in self._loads:
                self._loads[request_id].transfer.cancel()
        if plan.drops:
            with contextlib.suppress(KVBridgeError):  # best effort: the lease is the guarantee
                self._buffer.drop([self._key(key) for key in plan.drops if self._rank < len(key.addresses)])

    def poll(self) -> Outcome:
        """Return what has ended since the last call."""
        outcome = Outcome()
        if self.layerwise is not None:
            outcome.sent |= self.layerwise.poll()
        self._poll_claims()
        for request_id, (saved, nbytes, started) in list(self._saves.items()):
            if saved.poll():
                del self._saves[request_id]
                outcome.sent.add(request_id)
                self._saved(request_id, saved, nbytes, started)
        for request_id, load in list(self._loads.items()):
            if load.transfer.poll():
                del self._loads[request_id]
                outcome.received.add(request_id)
                if not self._loaded(request_id, load):
                    outcome.failed.add(request_id)
        return outcome

    def _poll_claims(self) -> None:
        for claim, transfer in list(self._claims.items()):
            if transfer.poll():
                self._claimed(claim, transfer)
        for claim, granted in list(self._granted.items()):
            if granted.lost is not None:  # its request waits for blocks: it can still be computed
                self._refused(claim, granted.lost)
                self._release(claim)

    def report(self) -> Report | None:
        """Return what the scheduler half has to know of claims."""
        if not (self._report.granted or self._report.refused):
            return None
        report, self._report = self._report, Report()
        return report

    def close(self) -> None:
        """Cancel everything. Idempotent."""
        for claim in self._claims.values():
            claim.cancel()
        for load in self._loads.values():
            load.transfer.cancel()
        if self.layerwise is not None:
            self.layerwise.close()
        self._buffer.close()

    def saving(self, request_id: str, pages: Pages) -> None:
        """Take note that these pages are to be handed over. For subclasses that look at what leaves."""

    def loaded(self, request_id: str, pages: Pages) -> None:
        """Take note that a load filled these pages. For subclasses that look at what arrived."""

    # -- inside -----------------------------------------------------------------------------------------------

    def _key(self, key: RemoteKey) -> Key:
        return Key(key.id, key.addresses[self._rank], key.generations[self._rank])

    def _claim(self, order: ClaimOrder) -> None:
        try:
            transfer = self._buffer.claim(self._key(order.key), digest=order.key.digest, timeout=self._claim_timeout)
        except KVBridgeError as error:
            transfer = failed(f"claiming {order.key.id!r}", error)
        self._claims[order.claim] = transfer

    def _claimed(self, claim: int, transfer: Transfer[Claim]) -> None:
        del self._claims[claim]
        if transfer.error is None:
            self._granted[claim] = transfer.result()
            self._report.granted[claim] = 1
        else:
            self._refused(claim, transfer.error)

    def _refused(self, claim: int, error: KVBridgeError) -> None:
        self.counters["refused_claims"] += 1
        self._report.refused[claim] = (error.code, f"rank {self._rank}: {error}")

    def _release(self, claim: int) -> None:
        asked = self._claims.pop(claim, None)
        if asked is not None:
            asked.on_done(lambda done: None if done.error else done.result().release())
            asked.cancel()
        granted = self._granted.pop(claim, None)
        if granted is not None:
            granted.release()

    def _load(self, order: LoadOrder) -> None:
        claim = self._granted.pop(order.claim, None)
        pages: Pages | None = None
        started = time.monotonic()
        try:
            if claim is None:
                raise BusyError(f"the claim {order.claim} is not held by rank {self._rank}")
            pages = self._pages(order.block_ids)
            transfer = claim.fill(pages, order.skip)
        except KVBridgeError as error:
            transfer = failed(f"loading {order.request_id}", error)
        self._loads[order.request_id] = _Load(claim, transfer, pages, started)

    def _loaded(self, request_id: str, load: _Load) -> bool:
        error = load.transfer.error
        if error is None and load.pages is not None:
            self.counters["loads"] += 1
            self.counters["loaded_bytes"] += load.pages.nbytes
            self.durations.add("load", time.monotonic() - load.started)
            self.loaded(request_id, load.pages)
            return True
        if load.claim is not None:
            load.claim.release()
        self.counters["failed_loads"] += 1
        self.failures[f"load:{type(error).__name__}"] += 1
        logger.warning("rank %d could not load the KV of request %s: %s", self._rank, request_id, error)
        return False

    def _save(self, order: SaveOrder) -> None:
        nbytes = 0
        started = time.monotonic()
        try:
            pages = self._pages(order.block_ids)
            nbytes = pages.nbytes
            self.saving(order.request_id, pages)
            if self.layerwise is not None:
                transfer, started = self.layerwise.take(order)
            else:
                transfer = self._insert(order, pages)
        except KVBridgeError as error:
            transfer = failed(f"handing over {order.request_id}", error)
        self._saves[order.request_id] = (transfer, nbytes, started)

    def _insert(self, order: SaveOrder, pages: Pages) -> Transfer[None]:
        key = Key(order.key)
        transfer = self._buffer.insert(key, pages, digest=order.digest, lease=self._lease)
        if order.to and self._announce is not None and not transfer.error:
            self._announce(key, pages, order.digest, order.to[self._rank])
        return transfer

    def _saved(self, request_id: str, saved: Transfer[None], nbytes: int, started: float) -> None:
        if saved.error is None:
            self.counters["saves"] += 1
            self.counters["saved_bytes"] += nbytes
            self.durations.add("save", time.monotonic() - started)
        else:
            self.counters["failed_saves"] += 1
            self.failures[f"save:{type(saved.error).__name__}"] += 1
            logger.warning("rank %d could not hand over the KV of request %s: %s", self._rank, request_id, saved.error)

    def _pages(self, block_ids: Sequence[int]) -> Pages:
        if 0 in block_ids:
            raise SpecMismatchError("the null block 0 is never moved: the engine named it among a request's blocks")
        return self._layout.pages([block_ids] * len(self._layout.groups))
