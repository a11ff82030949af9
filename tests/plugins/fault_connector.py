"""A connector with faults that a test turns on and off by files in the folder KVBRIDGE_TEST_FAULTS.

- `hold`: loads do not end, as far as the engine can tell.
- `lost`: a load fails before any byte has come.
- `mute`: nothing comes until a load is cancelled.
- `corrupt`: one bit of what a load brought is wrong, before anything looks at it. `corrupt-1` on rank 1 alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbridge.connector.handoff_worker import HandoffWorker
from kvbridge.errors import PeerLostError
from kvbridge.layers.checked import CheckedBuffer
from kvbridge.transfer import Transfer, cancelled, failed
from kvbridge_vllm.connector import KVBridgeConnector
from tests.mutants.wrapping import Buffer

if TYPE_CHECKING:
    from kvbridge.abc import Claim, Key
    from kvbridge.abc.connector import Outcome


def on(name: str) -> bool:
    return (Path(os.environ["KVBRIDGE_TEST_FAULTS"]) / name).exists()


class Corrupting(Buffer):
    """Spoils what claims bring."""

    def __init__(self, inner: Any, rank: int) -> None:
        super().__init__(inner)
        self._rank = rank

    def claim(self, key: Key, **options: Any) -> Transfer[Claim]:
        claimed = super().claim(key, **options)
        claimed.on_done(self._spoil)
        return claimed

    def _spoil(self, claimed: Transfer[Claim]) -> None:
        if claimed.error is not None:
            return
        claim = claimed.result()
        fill = claim.fill

        def spoilt(out: Any, skip: int = 0) -> Transfer[None]:
            if on("lost"):
                return failed("filling", PeerLostError("lost by order of a test"))
            if on("mute"):
                never: Transfer[None] = Transfer("filling", lambda: never.fail(cancelled("filling")))
                return never
            transfer = fill(out, skip)
            if on("corrupt") or on(f"corrupt-{self._rank}"):
                transfer.on_done(lambda _: _flip(out))
            return transfer

        claim.fill = spoilt  # type: ignore[method-assign]


def _flip(pages: Any) -> None:
    pages.regions[1].rows()[pages.block_ids[1][-1]][0] ^= 1


class FaultyWorker(HandoffWorker):
    def __init__(self, buffer: Any, *arguments: Any, rank: int, **more: Any) -> None:
        if isinstance(buffer, CheckedBuffer):
            buffer.inner = Corrupting(buffer.inner, rank)
        super().__init__(buffer, *arguments, rank=rank, **more)

    def poll(self) -> Outcome:
        held = {}
        if on("hold"):
            held, self._loads = self._loads, {}
        found = super().poll()
        self._loads.update(held)
        return found


class FaultConnector(KVBridgeConnector):
    worker_half = FaultyWorker


class NixlConnector(FaultConnector):
    """Under the name that routers know."""
