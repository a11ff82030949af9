"""`Looking`: a claim that looks for its key in a store, again and again, until it is there or the time is over."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, TypeAlias

from kvbridge.errors import KeyUnknownError, KVBridgeError, TransferTimeoutError
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.buffer import Claim
    from kvbridge.abc.store import Stored
    from kvbridge.buffers.keeper import Header
    from kvbridge.buffers.moving import Ended, Moving
    from kvbridge.control.endpoint import Endpoint

FIRST_LOOK, LAST_LOOK = 0.002, 0.1
"""Seconds between two looks for a key that is not there yet: they double from the first to the last."""

ANSWER_GRACE = 1.0
"""Seconds that a store's answer may take beyond the time that a value was given to arrive."""

Found: TypeAlias = "tuple[Header, Stored]"


class Looking:
    """One claim. `start` and `stop` belong to the endpoint's thread; the transfer finishes as soon as its end is sure.

    Args:
        endpoint: Whose thread is used.
        what: What it does, for messages.
        limit: Seconds for the value to arrive.
        look: Makes one look, to be started; calls what it is given with what was found, or an error, at its end.
        claim: Makes the claim of what was found.
        unwanted: Takes what a look found after the transfer had finished without it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        what: str,
        limit: float,
        look: Callable[[Ended[Found | None]], Moving[Found | None]],
        claim: Callable[[Found], Claim],
        unwanted: Callable[[Found], None],
    ) -> None:
        self.transfer: Transfer[Claim] = Transfer(what, lambda: endpoint.call_soon(lambda: self.stop(cancelled(what))))
        self._endpoint = endpoint
        self._limit = limit
        self._make = look
        self._claim = claim
        self._unwanted = unwanted
        self._present: Moving[Found | None] | None = None
        self._pause = FIRST_LOOK
        self._deadline = math.inf

    def start(self) -> None:
        """Look for the first time, unless it was stopped before."""
        late = TransferTimeoutError(f"{self.transfer.what}: the store did not answer within {self._limit:g} s")
        self._deadline = time.monotonic() + self._limit
        deadline = self._endpoint.after(self._limit + ANSWER_GRACE, lambda: self.stop(late))
        self.transfer.on_done(lambda _: deadline.cancel())
        self._look()

    def stop(self, why: KVBridgeError) -> None:
        """Finish the transfer, if it has not, and ask the present look for an end."""
        self.transfer.fail(why)
        if self._present is not None:
            self._present.stop(why)

    def _look(self) -> None:
        if not self.transfer.poll():
            self._present = self._make(self._looked)
            self._present.start()

    def _looked(self, found: Found | None, error: KVBridgeError | None) -> None:
        self._present = None
        if self.transfer.poll():
            if found is not None:
                self._unwanted(found)
        elif error is not None:
            self.transfer.fail(error)
        elif found is not None:
            self.transfer.resolve(self._claim(found))
        else:
            self._look_again()

    def _look_again(self) -> None:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            self.transfer.fail(KeyUnknownError(f"{self.transfer.what}: no value arrived within {self._limit:g} s"))
            return
        self._endpoint.after(min(self._pause, remaining), self._look)
        self._pause = min(2 * self._pause, LAST_LOOK)
