"""Faults on order: what goes wrong in the field, made to happen at a place and time that a test chooses.

A plan (`Faults`) says what strikes which event; a wrapper puts events through it. What a wrapper does is what a real
fault does: it breaks the bytes, the order or the process, never the contract. A failed move has really ended, a
paused one still heeds its abort.

| wrapper | an event is | kinds |
|---|---|---|
| `FaultyTransport(hold=, write=)` | a slice of a held payload, of a move | pause, delay, fail, kill |
| `FaultyTransport(land=)` | a slice of a landing | those, and corrupt, truncate |
| `faulty_send` | a message | delay, drop, duplicate, reorder, truncate, corrupt, fail, kill |
| `faulty_recv` | a message | those, and pause |
| `FaultyBuffer(insert=, select=)` | a call | delay, drop, duplicate, truncate, corrupt, fail, kill |

A slice may also be struck by pause, fail and kill in its middle: `Fault.when`.
"""

from kvbridge.layers.faulty.buffer import FaultyBuffer
from kvbridge.layers.faulty.plan import MOMENTS, Event, Fault, Faults, Kind, When
from kvbridge.layers.faulty.receiving import faulty_recv
from kvbridge.layers.faulty.sending import faulty_send
from kvbridge.layers.faulty.transport import FaultyTransport

__all__ = [
    "MOMENTS",
    "Event",
    "Fault",
    "Faults",
    "FaultyBuffer",
    "FaultyTransport",
    "Kind",
    "When",
    "faulty_recv",
    "faulty_send",
]
