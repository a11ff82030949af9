"""Wrong instances: what is wrong before any peer comes, or after all have gone."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from typing import Any

import msgspec

from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import HandshakeError, UnsupportedError
from kvbridge.memory import Pages
from kvbridge_cpu import CpuBackend, CpuOptions

KEPT: list[Any] = []
"""What leaks: kept for ever."""


class Mutant(CpuBackend):
    name = ""


class ChangesItsMind(Mutant):
    """Claims less when it is asked again."""

    asked = 0

    @property
    def capabilities(self) -> Capabilities:
        self.asked += 1
        found = super().capabilities
        return found if self.asked < 2 else msgspec.structs.replace(found, max_value_bytes=self.asked)


class ThawedOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    capacity: int | str = "2GiB"


class OptionsThaw(Mutant):
    """Its options can be changed by anybody."""

    Options = ThawedOptions


class LaxOptions(msgspec.Struct, frozen=True, kw_only=True):
    capacity: Any = "2GiB"


class TakesAnyOption(Mutant):
    """Does not look at what it is given."""

    Options = LaxOptions


class ProbeRaises(Mutant):
    @classmethod
    def probe(cls, options: CpuOptions) -> Probe:
        if isinstance(options.capacity, int) and options.capacity < 0:
            raise ValueError(options.capacity)
        return super().probe(options)


class ProbeLeaks(Mutant):
    @classmethod
    def probe(cls, options: CpuOptions) -> Probe:
        KEPT.append(tempfile.TemporaryFile())  # noqa: SIM115 - that is what is wrong
        return super().probe(options)


class MoreCapabilities(Capabilities, frozen=True, kw_only=True):
    teleports: bool = True


class UnknownFlag(Mutant):
    @property
    def capabilities(self) -> Capabilities:
        return MoreCapabilities(**msgspec.structs.asdict(super().capabilities))


class ClaimsShared(Mutant):
    """A transport that says its values outlive it."""

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, shared=True)


class ClaimsPages(Mutant):
    """Claims pages and refuses them."""

    def hold(self, payload: Any) -> Any:
        if isinstance(payload, Pages):
            raise UnsupportedError("no pages", flag="pages")
        return super().hold(payload)


class DoesNotDetach(Mutant):
    """Does not claim that its inserts end early, and ends them early."""

    def open_buffer(self, endpoint: Any, **options: Any) -> Any:
        buffer = super().open_buffer(endpoint, **options)
        self._capabilities = msgspec.structs.replace(self._capabilities, detaches=True)
        return buffer

    def __init__(self, options: CpuOptions) -> None:
        super().__init__(options)
        self._capabilities = msgspec.structs.replace(self._capabilities, detaches=False)


class CardChanges(Mutant):
    def card(self) -> bytes:
        return super().card() + os.urandom(2)


class RefusesItsLike(Mutant):
    def accepts(self, card: bytes) -> str | None:
        return super().accepts(card) or ("the card is not mine" if card != self.card() else None)


class AcceptsAnything(Mutant):
    def accepts(self, card: bytes) -> str | None:
        return None


class RaisesAtNonsense(Mutant):
    def accepts(self, card: bytes) -> str | None:
        found = super().accepts(card)
        if found is not None and "card is not one" in found:
            raise HandshakeError(found)
        return found


class HangsInClose(Mutant):
    def close(self) -> None:
        super().close()
        time.sleep(5)


class ClosesOnce(Mutant):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True
        super().close()


class LeaksADescriptor(Mutant):
    def __init__(self, options: CpuOptions) -> None:
        super().__init__(options)
        KEPT.append(os.dup(0))


class LeaksAThread(Mutant):
    def __init__(self, options: CpuOptions) -> None:
        super().__init__(options)
        threading.Thread(target=threading.Event().wait, args=(600,), daemon=True).start()


class LeaksAChild(Mutant):
    def __init__(self, options: CpuOptions) -> None:
        super().__init__(options)
        KEPT.append(subprocess.Popen(["sleep", "20"]))


class LeaksMemory(Mutant):
    def close(self) -> None:
        super().close()
        KEPT.append(b"x" * (8 << 20))


class LeavesAFile(Mutant):
    """Leaves a file in shared memory when it is killed."""

    def __init__(self, options: CpuOptions) -> None:
        super().__init__(options)
        self.file = tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="kvbridge-mutant-")  # noqa: SIM115

    def close(self) -> None:
        super().close()
        self.file.close()


class LeavesFiles(LeavesAFile):
    """Leaves a file in shared memory when it is closed."""

    def close(self) -> None:
        CpuBackend.close(self)
        KEPT.append(self.file)


class LeavesATemporaryFile(LeavesAFile):
    """Leaves a temporary file when it is killed."""

    def __init__(self, options: CpuOptions) -> None:
        CpuBackend.__init__(self, options)
        self.file = tempfile.NamedTemporaryFile(prefix="kvbridge-mutant-")  # noqa: SIM115


class LeavesTemporaryFiles(LeavesATemporaryFile):
    """Leaves a temporary file when it is closed."""

    def close(self) -> None:
        CpuBackend.close(self)
        KEPT.append(self.file)


class OneForAll(Mutant):
    """Closes what all instances share."""

    made: list[CpuBackend] = []  # noqa: RUF012

    def __init__(self, options: CpuOptions) -> None:
        super().__init__(options)
        self.made.append(self)

    def close(self) -> None:
        for one in self.made:
            CpuBackend.close(one)
        self.made.clear()


class Spins(Mutant):
    def __init__(self, options: CpuOptions) -> None:
        super().__init__(options)
        self.over = threading.Event()
        threading.Thread(target=self.spin, daemon=True).start()

    def spin(self) -> None:
        while not self.over.is_set():
            pass

    def close(self) -> None:
        self.over.set()
        super().close()


class LeaksOnFailure(Mutant):
    """Keeps a descriptor for each transfer."""

    def hold(self, payload: Any) -> Any:
        KEPT.append(os.dup(0))
        return super().hold(payload)
