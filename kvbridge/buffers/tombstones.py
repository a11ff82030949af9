"""Why a key that once had a value has none any more, so that asking again fails at once instead of timing out."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbridge.errors import KVBridgeError

KEEP = 600.0
"""Seconds for which a key is remembered: longer than any router retries."""

MAX_KEYS = 100_000
"""Keys remembered at most, about 30 MB. The oldest go first."""


class Tombstones:
    """Keys with the error that each of them answers. Belongs to one thread."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, tuple[float, KVBridgeError]] = OrderedDict()

    def set(self, key: str, error: KVBridgeError) -> None:
        """Remember why a key has no value."""
        now = time.monotonic()
        self._keys[key] = (now + KEEP, error)
        self._keys.move_to_end(key)
        while self._keys and (len(self._keys) > MAX_KEYS or next(iter(self._keys.values()))[0] < now):
            self._keys.popitem(last=False)

    def get(self, key: str) -> KVBridgeError | None:
        """Return why a key has no value; None if nothing is known of it."""
        found = self._keys.get(key)
        return None if found is None else found[1]

    def discard(self, key: str) -> None:
        """Forget a key: it is used anew."""
        self._keys.pop(key, None)
