"""`Raw`: a backend's library without kvbridge, for comparison in the same run.

A distribution names one for its backend in the entry points of the group `kvbridge.raw`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from kvbridge.errors import BackendConflictError
from kvbridge.registry import list_entries, load_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

GROUP = "kvbridge.raw"


class Raw(ABC):
    """One side of a raw transfer, over memory of equal pages, registered and prepared beforehand.

    Args:
        options: Options of the backend.
        memory: The memory.
        page: Bytes of a page.
    """

    @abstractmethod
    def __init__(self, options: Mapping[str, Any], memory: NDArray[np.uint8], page: int) -> None: ...

    @abstractmethod
    def card(self) -> bytes:
        """Return what the other side needs."""

    @abstractmethod
    def meet(self, card: bytes) -> None:
        """Take the other side's card."""

    @abstractmethod
    def move(self, name: str, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Move pages from here to the other side and return when they are there.

        Args:
            name: Of this transfer: what can be prepared is prepared once a name.
            source: Pages here.
            target: Pages there.
        """

    @abstractmethod
    def progress(self) -> None:
        """Let the library of the other side do its part; called again and again there."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


def load_raw(name: str) -> type[Raw] | None:
    """Return the raw library of a backend; None where it has none.

    Raises:
        BackendConflictError: It is not what it should be.
    """
    entries = [entry for entry in list_entries(GROUP) if entry.name == name]
    if not entries:
        return None
    where = f"the raw library {name!r} of {entries[0].distribution} ({entries[0].target})"
    cls = load_entry(GROUP, name, where)
    if not (isinstance(cls, type) and issubclass(cls, Raw)):
        raise BackendConflictError(f"{where} is {cls!r}, expected a subclass of kvbridge.bench.raw.Raw")
    return cls
