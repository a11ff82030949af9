"""What is sent before each chunk: 32 bytes, so that both sides post the same things in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvbridge.errors import ProtocolError
from kvbridge_nccl import library

if TYPE_CHECKING:
    from kvbridge_nccl.library import Group

MARK = 0x6B76627269646765
"""First word of a header."""

HEADER, DATA = 0, 1
"""Tags of the two kinds of messages."""


class Header(NamedTuple):
    """What comes next.

    Attributes:
        number: Of the transfer.
        nbytes: Of the chunk.
        last: Whether it is the value's last chunk.
        nccl: Whether the chunk comes over NCCL.
    """

    number: int
    nbytes: int
    last: bool
    nccl: bool

    def send(self, group: Group) -> tuple[Any, Any]:
        """Begin to send it. Returns what to wait for, and what to keep until then."""
        torch = library.load()
        words = torch.tensor([MARK, self.number, self.nbytes, 2 * self.nccl + self.last], dtype=torch.int64)
        return group.send(words, HEADER), words


class Expected:
    """A header that is being received."""

    def __init__(self, group: Group) -> None:
        torch = library.load()
        self._words = torch.zeros(4, dtype=torch.int64)
        self._group = group
        self._work = group.receive(self._words, HEADER)

    def wait(self, most: int) -> Header:
        """Wait for it.

        Args:
            most: Bytes that a chunk may have.

        Raises:
            PeerLostError: It did not come in time, or will not come.
            ProtocolError: It makes no sense.
        """
        self._group.wait(self._work)
        mark, number, nbytes, flags = self._words.tolist()
        if mark != MARK or number < 0 or not 0 <= nbytes <= most or flags not in range(4):
            raise ProtocolError(f"the producer announced {nbytes} bytes, at most {most} were to come, flags {flags}")
        return Header(number, nbytes, bool(flags & 1), bool(flags & 2))
