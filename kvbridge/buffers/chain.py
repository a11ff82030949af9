"""Transfers made of others: a select is a claim and then its fill, a value in parts is the transfers of its parts."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from kvbridge.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.abc.buffer import Claim
    from kvbridge.errors import KVBridgeError
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


def all_of(transfers: Sequence[Transfer[Any]], what: str) -> Transfer[None]:
    """Make one transfer of several: it finishes when all of them have, and fails with the first failure.

    A failure of one cancels the others, as does a cancellation of the whole. Any thread.
    """
    parts = list(transfers)
    left = itertools.count(len(parts) - 1, -1)
    errors: list[KVBridgeError] = []

    def cancel() -> None:
        for one in parts:
            one.cancel()

    whole: Transfer[None] = Transfer(what, cancel)

    def over(done: Transfer[Any]) -> None:
        if done.error is not None:
            errors.append(done.error)
            cancel()
        if next(left) > 0:
            return
        if errors:
            whole.fail(errors[0])
        else:
            whole.resolve(None)

    if not parts:
        whole.resolve(None)
    for one in parts:
        one.on_done(over)
    return whole
