"""The life of a value, event by event: as log lines at debug level, and as a file that Chrome's tracing shows.

The logger is `kvbridge.trace`. Files come with the connector's option `trace`; `kvbridge trace` reads them. Where
neither is on, an event costs a look at a flag.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from kvbridge.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from kvbridge.transfer import Transfer

logger = logging.getLogger("kvbridge.trace")
own_logger = logging.getLogger(__name__)

CATEGORY = "kvbridge"
MAX_FILE = 64 << 20
"""Bytes of one process's file. Then it ends, with a warning."""

_BEGIN, _END, _MARK = "b", "e", "n"  # Chrome's letters for asynchronous events
_WORDS = {_BEGIN: "begins", _END: "ends", _MARK: "-"}


def begin(what: str, name: str, **facts: object) -> None:
    """Something begins that will end.

    Args:
        what: In a word or two: `held`, `claim`, `fill`.
        name: Whose life this is part of: the key of a value, or a request's id.
        **facts: What else is known.
    """
    _emit(_BEGIN, what, name, facts)


def end(what: str, name: str, **facts: object) -> None:
    """Something ended that began. Arguments as for `begin`."""
    _emit(_END, what, name, facts)


def mark(what: str, name: str, **facts: object) -> None:
    """Something happened that takes no time. Arguments as for `begin`."""
    _emit(_MARK, what, name, facts)


def end_with(what: str, name: str, transfer: Transfer[Any]) -> None:
    """Something that began ends when a transfer finishes, as that does. Arguments as for `begin`."""
    if enabled():
        transfer.on_done(lambda done: end(what, name, **(why(done.error) or {"outcome": "done"})))


def enabled() -> bool:
    """Whether anybody listens."""
    return _file is not None or logger.isEnabledFor(logging.DEBUG)


def why(error: Exception | None) -> dict[str, str]:
    """Say an error, or none, as a fact."""
    return {} if error is None else {"error": f"{type(error).__name__}: {error}"}


def _emit(phase: str, what: str, name: str, facts: dict[str, object]) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        told = " ".join(f"{key}={value}" for key, value in facts.items())
        logger.debug("%s: %s %s %s", name, what, _WORDS[phase], told)
    if _file is not None:
        _file.write(phase, what, name, facts)


class TraceFile:
    """A file of events in Chrome's JSON array format, which needs no end: a killed process leaves a readable one.

    Times are microseconds of Unix time, so that files of several processes can be shown together. Any thread may
    write.

    Args:
        folder: Where it is made, named after the process; the folder is made, too.
        process: What the process is called in it.

    Raises:
        ConfigError: It cannot be made.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._lock = threading.Lock()
        self.path = folder / f"{os.getpid()}-{time.time_ns()}.trace.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] | None = self.path.open("x", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(f"the trace cannot be written to {folder}: {error.strerror}") from error
        self._written = 0
        self._pid = os.getpid()
        self._put("[\n")
        self._put(_line({"ph": "M", "name": "process_name", "pid": self._pid, "args": {"name": process}}))

    def write(self, phase: str, what: str, name: str, facts: dict[str, object]) -> None:
        """Write one event. In a fork of the process it does nothing: the file is the parent's."""
        if os.getpid() != self._pid:
            return
        event = {
            "ph": phase,
            "cat": CATEGORY,
            "name": what,
            "id": name,
            "ts": time.time_ns() / 1000,
            "pid": self._pid,
            "tid": threading.get_native_id(),
            "args": facts,
        }
        with self._lock:
            self._put(_line(event))

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _put(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._written += len(text)
            if self._written <= MAX_FILE:
                return
            reason = f"it has more than {MAX_FILE >> 20} MiB"
        except OSError as error:
            reason = str(error.strerror)
        own_logger.warning("the trace %s ends here: %s", self.path, reason)
        self._file.close()
        self._file = None


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event, default=str) + ",\n"


_file: TraceFile | None = None


def start(folder: Path, process: str) -> None:
    """Write this process's events to a file, until it ends. Idempotent: one file a process.

    Args:
        folder: Where; see `TraceFile`.
        process: What the process is called.

    Raises:
        ConfigError: The file cannot be made.
    """
    global _file  # noqa: PLW0603 - as with logging, which it stands beside, there is one a process
    if _file is None:
        _file = TraceFile(folder, process)
        atexit.register(_file.close)


def stop() -> None:
    """Write no more to the file. Idempotent."""
    global _file  # noqa: PLW0603 - likewise
    if _file is not None:
        atexit.unregister(_file.close)
        _file.close()
        _file = None
