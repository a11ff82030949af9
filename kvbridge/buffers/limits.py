"""What a key, a digest and a duration may be, in every LookupBuffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.control.messages import MAX_DIGEST, MAX_KEY, MAX_NOTE, MAX_SECONDS
from kvbridge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.abc.buffer import Key


def check_limits(keys: Sequence[Key], digest: bytes, seconds: float, note: bytes = b"") -> None:
    """Check what is to be sent against the protocol's limits: a peer would drop it without an answer.

    Raises:
        ConfigError: It breaks one.
    """
    for key in keys:
        if not key.id or len(key.id) > MAX_KEY or not key.id.isascii():
            raise ConfigError(f"the key {key.id[:50]!r}: expected 1 to {MAX_KEY} ASCII characters, such as a UUID")
    if len(digest) > MAX_DIGEST:
        raise ConfigError(f"the digest has {len(digest)} bytes, at most {MAX_DIGEST} are possible")
    if len(note) > MAX_NOTE:
        raise ConfigError(f"the note has {len(note)} bytes, at most {MAX_NOTE} are possible")
    if not 0 <= seconds <= MAX_SECONDS:
        raise ConfigError(f"a duration of {seconds} s: expected 0 to {MAX_SECONDS} s")
