"""`Remote`: an object in a process of its own, whose methods are called by name."""

from __future__ import annotations

import logging
import multiprocessing
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

TIMEOUT = 600.0
"""Seconds that a call may take: to make a million keys takes a minute or two on a busy machine."""


class Served(ABC):
    """What can live in a process of its own."""

    def wait(self, orders: Connection) -> None:
        """Return once an order has come; until then do what has to go on meanwhile."""
        orders.poll(None)

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""


class Remote:
    """A process with one object. It starts when this is made.

    Args:
        kind: The object's class.
        arguments: What it is made with.
        name: Of the process, for messages.
    """

    def __init__(self, kind: type[Served], *arguments: Any, name: str) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, kind, arguments), name=f"kvbridge-bench-{name}", daemon=True
        )
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Wait until the object is made.

        Raises:
            KVBridgeError: It could not be.
        """
        self._answer()

    def call(self, method: str, /, *arguments: Any) -> Any:
        """Call a method and return what it returns.

        Raises:
            KVBridgeError: It failed, or the process is gone.
        """
        self.begin(method, *arguments)
        return self._answer()

    def begin(self, method: str, /, *arguments: Any) -> None:
        """Call a method; `end` waits for it."""
        self._pipe.send((method, arguments))

    def end(self) -> Any:
        """Return what the method that was begun returns. Raises as `call` does."""
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(TIMEOUT):
                raise KVBridgeError(f"the process of {self.name} does not answer")
            said, found = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise KVBridgeError(f"the process of {self.name} ended, see above") from error
        if said:
            raise KVBridgeError(f"{self.name}: {said}")
        return found


def _serve(orders: Connection, kind: type[Served], arguments: tuple[Any, ...]) -> None:
    # Here, and not where the object is made: this process is the benchmark's own. Pauses are a figure of it.
    logging.getLogger("kvbridge").setLevel(logging.CRITICAL)
    served: Served | None = None
    try:
        served = kind(*arguments)
        orders.send(("", None))
        while True:
            served.wait(orders)
            method, given = orders.recv()
            try:
                answer = ("", getattr(served, method)(*given))
            except KVBridgeError as error:
                answer = (str(error), None)
            orders.send(answer)
    except (EOFError, OSError):
        return
    except KVBridgeError as error:
        orders.send((str(error), None))
    finally:
        if served is not None:
            served.close()
