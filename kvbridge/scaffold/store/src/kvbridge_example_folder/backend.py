"""What the core asks a store for. The bytes move in `moves`."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
from kvbridge.abc import Move, Ready, Store, Stored, Task
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import BackendUnavailableError, DuplicateKeyError

from kvbridge_example_folder.moves import (
    ExampleFolderMove,
    ExampleFolderStored,
    host_memory,
    read_header,
    system_errors,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.memory import Payload

STALE = 3600.0
"""Seconds after which an unfinished file counts as left behind by a process that was killed."""


class ExampleFolderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the backend. The core refuses unknown keys and wrong types before we see them.

    Attributes:
        folder: Absolute path; `~` is your home. Made if it is not there. Who names the same folder shares its values.
    """

    folder: str = "~/.cache/kvbridge-example-folder"


class ExampleFolderBackend(Store[ExampleFolderOptions]):
    """A file for each value: written under a name that nobody looks for, then linked to its own, as a whole."""

    name: ClassVar[str] = "example_folder"
    Options: ClassVar[type[msgspec.Struct]] = ExampleFolderOptions

    def __init__(self, options: ExampleFolderOptions) -> None:
        super().__init__(options)
        found = self.probe(options)
        if not found.ok:
            raise BackendUnavailableError(f"{self.name!r} cannot work here: {found.reason}")
        self._folder = _resolved(options.folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # KV tells what was asked: nobody else's
        except OSError as error:
            raise BackendUnavailableError(f"cannot make the folder {self._folder}: {error}") from error
        self._sweep()

    @classmethod
    def probe(cls, options: ExampleFolderOptions) -> Probe:
        """Say whether the folder is there, or can be made. Makes nothing, never raises."""
        try:
            folder = _resolved(options.folder)
            there = next(path for path in (folder, *folder.parents) if path.exists())
            if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
                raise ValueError(f"cannot write to {there}")  # noqa: TRY301 - one place makes the sentence
        except (ValueError, OSError, RuntimeError) as error:
            why = f"options.folder is {options.folder!r}, expected the absolute path of a folder to write to: {error}"
            return Probe(ok=False, reason=why)
        return Probe(ok=True, reason=f"files in {folder}")

    @property
    def capabilities(self) -> Capabilities:
        """Claim what is true and no more: the conformance suite tests each flag."""
        return Capabilities(
            buffer=True, takes=True, shared=True, tensors=True, pages=True, cross_process=True, detaches=True
        )

    def put(self, key: str, header: bytes, payload: Payload) -> Move:
        """Start to write a file. The link at its end is what decides between two who put the same key."""
        path = self._path(key)
        if path.exists():
            raise DuplicateKeyError(f"the key {key!r} has a value: use a new key")
        steps = write(path, self._unfinished(), header, host_memory(payload))
        return ExampleFolderMove("writing a value", steps)

    def find(self, key: str, *, take: bool) -> Task[Stored | None]:
        """Open a file. To take it, rename it first: of many who try, one can."""
        with system_errors("finding a value"):
            return Ready(self._take(key) if take else self._open(key))

    def headers(self, keys: Sequence[str]) -> Task[list[bytes | None]]:
        """Read the beginnings of files."""
        with system_errors("looking for values"):
            return Ready([self._header(key) for key in keys])

    def remove(self, keys: Sequence[str]) -> Task[None]:
        """Delete files. Who has one open may still read it."""
        with system_errors("removing values"):
            for key in keys:
                self._path(key).unlink(missing_ok=True)
        return Ready(None)

    def close(self) -> None:
        """Do nothing: between two calls nothing is open, and the values are to stay."""

    def _open(self, key: str) -> Stored | None:
        try:
            return ExampleFolderStored(self._path(key))
        except FileNotFoundError:
            return None

    def _take(self, key: str) -> Stored | None:
        mine = self._unfinished()
        try:
            self._path(key).rename(mine)
        except FileNotFoundError:
            return None
        try:
            return ExampleFolderStored(mine)
        finally:
            mine.unlink()  # what is open can still be read

    def _header(self, key: str) -> bytes | None:
        try:
            with self._path(key).open("rb") as file:
                return read_header(file)
        except FileNotFoundError:
            return None

    def _path(self, key: str) -> Path:
        """A key may have any characters: a hash of it is a safe file name."""
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.value"

    def _unfinished(self) -> Path:
        return self._folder / f"{secrets.token_hex(16)}.part"

    def _sweep(self) -> None:
        """Delete what processes that were killed have left unfinished."""
        for path in self._folder.glob("*.part"):
            try:
                if time.time() - path.stat().st_ctime > STALE:
                    path.unlink()
            except OSError:  # its owner has finished meanwhile, or it is not ours to delete
                continue


def _resolved(folder: str) -> Path:
    """Return the path of a folder; a `ValueError` or `RuntimeError` says why it is none."""
    path = Path(folder).expanduser()
    if not path.is_absolute():
        raise ValueError("it is relative, and each process has its own working directory")
    return path.resolve()
