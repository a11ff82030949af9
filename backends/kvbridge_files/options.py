"""Options of the backend `files`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvbridge.config import parse_bytes


class FilesOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where values are kept, and how many.

    Attributes:
        folder: Absolute path of a folder that holds nothing else; `~` is your home. It has to be named, and is made,
            for this user alone, if it is not there. Who names the same folder shares its values.
        capacity: What all files in the folder may have together, as `"64GiB"`: the cap is the folder's, not a
            process's. Give all who share the folder the same.
        when_full: What becomes of a value for which there is no room: `"refuse"` it, or `"evict"` those that were not
            used for longest.
        abandoned_after: Seconds without use after which a value counts as left behind by a process that is gone, and
            gives way to new ones even with `"refuse"`. The default is the longest lease there is; where yours are
            shorter, some minutes more than yours will do.
        fsync: Wait until a value is on the disk before it is put. Without it values outlive their process all the
            same, and what a power failure has cut short is found by its checksums: a miss, never wrong bytes.
        threads: How many values are written and read at one time.
    """

    folder: Annotated[str, Meta(max_length=4096)] = ""
    capacity: int | str = "16GiB"
    when_full: Literal["refuse", "evict"] = "refuse"
    abandoned_after: Annotated[float, Meta(ge=1, le=1e9)] = 86400.0
    fsync: bool = False
    threads: Annotated[int, Meta(ge=1, le=64)] = 4

    def capacity_bytes(self) -> int:
        """Return `capacity` as a number."""
        return parse_bytes(self.capacity, "options.capacity")
