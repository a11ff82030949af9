"""A select is a claim and then its fill: one transfer made of the two halves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.transfer import Transfer

if TYPE_CHECKING:
    from kvbridge.abc.buffer import Claim
    from kvbridge.memory import Payload


def fill_claim(claim: Transfer[Claim], out: Payload, skip: int) -> Transfer[None]:
    """Chain the two halves of a select."""
    current: list[Transfer[Any]] = [claim]
    unwanted: list[bool] = []

    def cancel() -> None:
        unwanted.append(True)
        current[-1].cancel()

    transfer: Transfer[None] = Transfer(claim.what, cancel)

    def claimed(done: Transfer[Claim]) -> None:
        if done.error is not None:
            transfer.fail(done.error)
            return
        fill = done.result().fill(out, skip)
        if fill.error is not None:  # the destination does not fit: the producer has its memory back at once
            done.result().release()
        current.append(fill)
        if unwanted:  # cancelled between the two halves
            fill.cancel()
        fill.on_done(lambda done: done.hand_on(transfer))

    claim.on_done(claimed)
    return transfer
