"""The scheduler half of a hand-over: a state machine for each request, on the prefill and on the decode side.

A decode request goes through: *claiming* (each rank asks its prefill rank to hold the value) - *claimed* (only now
the engine is told that there is something to load) - *loading* - *over*. Whatever goes wrong before the load makes
the engine compute the prompt itself, with a counter; only a failure in the middle of a load reaches the engine's own
failure policy.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from kvbridge import tracing
from kvbridge.abc.connector import RequestView, SchedulerHalf
from kvbridge.connector.consumers import consumers
from kvbridge.connector.handoff_state import FEWEST, HandoffSettings, State, Wanted
from kvbridge.connector.params import (
    VERSION,
    Handoff,
    encode_digest,
    parse_handoff,
    response_params,
    wants_decode,
    wants_prefill,
)
from kvbridge.connector.plan import ClaimOrder, LoadOrder, Plan, RemoteKey, Report, SaveOrder
from kvbridge.connector.shunned import NO_ANSWER, Shunned
from kvbridge.errors import ConfigError, KeyUnknownError, KVBridgeError, TransferTimeoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

CLAIMS = (State.CLAIMING, State.CLAIMED)
"""States in which ranks may hold a value, and nothing moves."""

CLAIM_GRACE = 3.0
"""Seconds beyond `claim_timeout` after which a claim that no worker reported on counts as failed."""


class HandoffScheduler(SchedulerHalf[Plan, Report]):
    """Plans hand-overs. Called from the engine's scheduler thread only; never blocks, never raises for a client."""

    def __init__(self, settings: HandoffSettings) -> None:
        self.counters: Counter[str] = Counter()
        self._settings = settings
        self._fewest = max(FEWEST, settings.min_tokens)
        self._addresses: tuple[str, ...] = ()
        self._generations: tuple[int, ...] = ()
        self._wanted: dict[str, Wanted] = {}
        self._claims: dict[int, str] = {}
        self._claim_ids = itertools.count(1)
        self._early: dict[str, str] = {}
        self._shunned = Shunned()
        self._plan = Plan()

    def set_directory(self, addresses: Sequence[str], generations: Sequence[int]) -> None:
        """Set the control addresses and incarnations of this engine's workers, in rank order."""
        self._addresses = tuple(addresses)
        self._generations = tuple(generations)

    @property
    def claiming(self) -> int:
        """Requests that wait for a prefill engine's answer."""
        return sum(wanted.state is State.CLAIMING for wanted in self._wanted.values())

    @property
    def idle(self) -> bool:
        """Whether the workers have no orders to hear."""
        return self._plan.empty

    # -- decode side ------------------------------------------------------------------------------------------

    def matched(self, request: RequestView, local_tokens: int) -> int | None:
        """Say how many tokens can be loaded."""
        if not wants_prefill(request.params):
            return 0
        wanted = self._wanted.get(request.id)
        if wanted is None:
            wanted = self._wanted[request.id] = self._start(request, local_tokens)
        if wanted.state is State.CLAIMING and time.monotonic() > wanted.deadline:
            self._shun(wanted)
            self._give_up(request.id, wanted, TransferTimeoutError("the workers did not report on the claim"))
        if wanted.state is State.CLAIMING:
            return None
        if wanted.state is not State.CLAIMED:
            return 0
        missing = wanted.tokens - local_tokens
        if missing >= self._fewest:
            return missing
        self._forget_claim(request.id, wanted, "local_hit" if missing < FEWEST else "too_short")
        return 0

    def _start(self, request: RequestView, local_tokens: int) -> Wanted:
        """Check what the client sent and ask for the value."""
        self.counters["requests"] += 1
        tracing.begin("decode", request.id, tokens=request.num_tokens, local=local_tokens)
        try:
            handoff = parse_handoff(request.params or {})
            key = self._check(request, handoff)
        except KVBridgeError as error:
            return self._refuse(request, error)
        missing = request.num_tokens - local_tokens
        if missing < self._fewest:
            why = "local_hit" if missing < FEWEST else "too_short"
            self.counters[why] += 1
            tracing.end("decode", request.id, outcome=why, key=key.id)
            self._plan.drops.append(key)
            return Wanted(State.OVER)
        if key.engine in self._shunned:
            self.counters["recomputed"] += 1
            self.counters["miss_shunned"] += 1
            tracing.end("decode", request.id, outcome="recomputed", key=key.id, error="its engine does not answer")
            return Wanted(State.OVER)
        claim = next(self._claim_ids)
        tracing.mark("claiming", request.id, key=key.id, missing=missing)
        self._claims[claim] = request.id
        self._plan.claims.append(ClaimOrder(claim, key))
        deadline = time.monotonic() + self._settings.claim_timeout + CLAIM_GRACE
        return Wanted(State.CLAIMING, request.num_tokens, key, claim, deadline)

    def _check(self, request: RequestView, handoff: Handoff) -> RemoteKey:
        settings = self._settings
        if not settings.consumes:
            raise ConfigError("this engine's kv_role is kv_producer: it does not take what others prefilled")
        for what, found, expected in (
            ("tokens", handoff.tokens, request.num_tokens),
            ("block_size", handoff.block_size, settings.block_size),
            ("number of ranks", len(handoff.addresses), settings.ranks),
        ):
            if found != expected:
                raise ConfigError(f"the params are for {what} {found}, this request or engine has {expected}")
        digest = handoff.digest_bytes
        if not request.plain:
            raise ConfigError("the prompt has embeddings, which no digest covers")
        if digest != request.digest():
            raise ConfigError("the params belong to another prompt")
        return RemoteKey(handoff.key, handoff.addresses, handoff.generations, digest)

    def _refuse(self, request: RequestView, error: KVBridgeError) -> Wanted:
        self.counters["recomputed"] += 1
        self.counters["refused_params"] += 1
        tracing.end("decode", request.id, outcome="recomputed", **tracing.why(error))
        logger.warning("request %s is computed here: %s", request.id, error)
        return Wanted(State.OVER)

    def allocated(self, request: RequestView, block_ids: Sequence[int], local_tokens: int, tokens: int) -> None:
        """Order the load into the blocks that the engine allocated."""
        wanted = self._wanted.get(request.id)
        if wanted is None or wanted.key is None:
            return
        if tokens == 0 and wanted.state in CLAIMS:  # vLLM does not wait for every request
            self._forget_claim(request.id, wanted, "not_used")
            return
        if wanted.state is not State.CLAIMED:
            return
        skip = local_tokens // self._settings.block_size
        blocks = -(-wanted.tokens // self._settings.block_size)
        wanted.state = State.LOADING
        tracing.mark("loading", request.id, key=wanted.key.id, blocks=blocks - skip, skip=skip)
        self._plan.loads.append(LoadOrder(request.id, wanted.claim, tuple(block_ids[skip:blocks]), skip))

    def absorb(self, report: Report) -> None:
        """Take in what the workers say of claims."""
        for claim, (code, message) in report.refused.items():
            request_id = self._claims.get(claim)
            wanted = self._wanted.get(request_id) if request_id is not None else None
            if request_id is not None and wanted is not None and wanted.state in CLAIMS:
                self.counters[f"miss_{code}"] += 1
                if code in NO_ANSWER:
                    self._shun(wanted)
                if code == KeyUnknownError.code and wanted.key is not None:
                    self._plan.drops.append(wanted.key)  # it may still come: then nobody wants it any more
                self._give_up(request_id, wanted, KVBridgeError(message))
        for claim, count in report.granted.items():
            wanted = self._wanted.get(self._claims.get(claim, ""))
            if wanted is None or wanted.state is not State.CLAIMING:
                continue
            wanted.granted += count
            if wanted.granted >= self._settings.ranks:
                wanted.state = State.CLAIMED
                if wanted.key is not None:
                    self._shunned.answered(wanted.key.engine)

    def received(self, request_id: str, *, failed: bool) -> None:
        """Take note that a load ended on all ranks."""
        wanted = self._wanted.get(request_id)
        if wanted is None or wanted.state is not State.LOADING:
            return
        wanted.state = State.OVER
        self._claims.pop(wanted.claim, None)
        self.counters["failed_loads" if failed else "loads"] += 1
        tracing.end("decode", request_id, outcome="load failed" if failed else "loaded")

    def _shun(self, wanted: Wanted) -> None:
        if wanted.key is not None:
            self._shunned.failed(wanted.key.engine)

    def _give_up(self, request_id: str, wanted: Wanted, error: KVBridgeError) -> None:
        self.counters["recomputed"] += 1
        tracing.end("decode", request_id, outcome="recomputed", **tracing.why(error))
        logger.warning("request %s is computed here: %s", request_id, error)
        self._release(wanted)

    def _forget_claim(self, request_id: str, wanted: Wanted, why: str) -> None:
        self.counters[why] += 1
        tracing.end("decode", request_id, outcome=why)
        self._release(wanted)

    def _release(self, wanted: Wanted) -> None:
        if wanted.state in CLAIMS:
            self._plan.releases.append(wanted.claim)
        self._claims.pop(wanted.claim, None)
        wanted.state = State.OVER

    # -- prefill side, layer by layer --------------------------------------------------------------------------

    def computing(self, request: RequestView, block_ids: Sequence[int]) -> None:
        """Order a prompt's hand-over by layers in this plan's step, which computes the rest of it and no more."""
        found = self._blocks(request, block_ids) if self._delivers(request) else []
        if not found:
            return
        key = self._early[request.id] = uuid.uuid4().hex
        self._plan.layers.append(SaveOrder(request.id, key, request.digest(), tuple(found), self._to(request)))
        tracing.mark("computing", request.id, key=key, blocks=len(found))

    def preempted(self, request_id: str) -> None:
        """Take note that the engine took a request's blocks away: this plan's step may write to them."""
        if self._early.pop(request_id, "") or request_id in self._plan.withdrawals:
            self._plan.fences.append(request_id)

    def _delivers(self, request: RequestView) -> bool:
        return bool(wants_decode(request.params) and self._settings.produces and request.plain)

    def _blocks(self, request: RequestView, block_ids: Sequence[int]) -> list[int]:
        """Return the blocks of the prompt; none if the engine does not name all, or cannot be reached yet."""
        blocks = -(-request.num_tokens // self._settings.block_size)
        return list(block_ids[:blocks]) if blocks <= len(block_ids) and self._addresses else []

    def _to(self, request: RequestView) -> tuple[str, ...]:
        return consumers(request.id, self._settings.ranks) if self._settings.pushes else ()

    # -- both sides -------------------------------------------------------------------------------------------

    def finished(
        self, request: RequestView, block_ids: Sequence[int], *, completed: bool, failed: bool = False
    ) -> tuple[bool, dict[str, Any] | None]:
        """Take note that a request ended; hand its blocks over if it was prefilled for another engine."""
        wanted = self._wanted.pop(request.id, None)
        if wanted is not None and wanted.state is not State.OVER:
            tracing.end("decode", request.id, outcome=f"the request ended while {wanted.state.value}")
        if wanted is not None and wanted.state is State.LOADING:
            self.counters["failed_loads"] += failed  # the engine ends it before it tells that the load has ended
            self._plan.cancels.append(request.id)
            self._claims.pop(wanted.claim, None)
        elif wanted is not None:
            self._release(wanted)
        elif wants_prefill(request.params):
            self._drop_unused(request)
        early = self._early.pop(request.id, "")
        if completed and self._delivers(request):
            found = self._blocks(request, block_ids)
            if found:
                return True, self._hand_over(request, found, early)
            self.counters["not_handed_over"] += 1
        if early:
            self._plan.withdrawals.append(request.id)
        return bool(early), None

    def _hand_over(self, request: RequestView, block_ids: list[int], early: str) -> dict[str, Any]:
        digest = request.digest()
        key = early or uuid.uuid4().hex
        self._plan.saves.append(SaveOrder(request.id, key, digest, tuple(block_ids), self._to(request)))
        self.counters["handed_over"] += 1
        tracing.mark("prefilled", request.id, key=key, tokens=request.num_tokens, blocks=len(block_ids))
        handoff = Handoff(
            v=VERSION,
            key=key,
            digest=encode_digest(digest),
            tokens=request.num_tokens,
            block_size=self._settings.block_size,
            addresses=self._addresses,
            generations=self._generations,
        )
        return response_params(handoff, engine_id=self._settings.engine_id, request_id=request.id, block_ids=block_ids)

    def _drop_unused(self, request: RequestView) -> None:
        """Tell the prefill engine that a request was given up before it was ever scheduled."""
        try:
            handoff = parse_handoff(request.params or {})
            self._plan.drops.append(
                RemoteKey(handoff.key, handoff.addresses, handoff.generations, handoff.digest_bytes)
            )
        except KVBridgeError:
            return

    def plan(self) -> Plan:
        """Return what the workers have to do next."""
        plan, self._plan = self._plan, Plan()
        return plan
