"""Errors of the operating system as kvbridge's own: the one place where that is done."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvbridge.errors import CapacityError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Map what the system raises.

    Args:
        what: What is being done, for the message.

    Raises:
        CapacityError: The disk is full, or this user's share of it.
        TransportError: Anything else, with the system's own code and words.
    """
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "no code")
        kind = CapacityError if error.errno in FULL else TransportError
        raise kind(f"{what} failed ({name}): {error}") from error


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
