"""The contracts.

A backend author reads `backend.py`, and `store.py` if his is one; who moves values reads `pipe.py` and `buffer.py`;
who drives an engine reads `connector.py`.
"""

from kvbridge.abc.backend import Backend, Held, Landing, Move, MoveState, Transport
from kvbridge.abc.buffer import Claim, Key, LookupBuffer
from kvbridge.abc.connector import SchedulerHalf, WorkerHalf
from kvbridge.abc.pipe import Offered, RecvPipe, SendPipe
from kvbridge.abc.store import Ready, Store, Stored, Task

__all__ = [
    "Backend",
    "Claim",
    "Held",
    "Key",
    "Landing",
    "LookupBuffer",
    "Move",
    "MoveState",
    "Offered",
    "Ready",
    "RecvPipe",
    "SchedulerHalf",
    "SendPipe",
    "Store",
    "Stored",
    "Task",
    "Transport",
    "WorkerHalf",
]
