"""The contracts.

A backend author reads `backend.py`, `store.py` if his is one, and `pool.py` if it keeps blocks of a cache for reuse;
who moves values reads `pipe.py` and `buffer.py`; who drives an engine reads `connector.py`; `policy.py` is for who
wants another order of eviction.
"""

from kvbridge.abc.backend import Backend, Held, Landing, Move, MoveState, Transport
from kvbridge.abc.buffer import Claim, Key, LookupBuffer
from kvbridge.abc.connector import SchedulerHalf, WorkerHalf
from kvbridge.abc.pipe import Offered, RecvPipe, SendPipe
from kvbridge.abc.policy import Policy
from kvbridge.abc.pool import SlotPool
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
    "Policy",
    "Ready",
    "RecvPipe",
    "SchedulerHalf",
    "SendPipe",
    "SlotPool",
    "Store",
    "Stored",
    "Task",
    "Transport",
    "WorkerHalf",
]
