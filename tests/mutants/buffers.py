"""Wrong buffers, each a few lines away from a right one."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvbridge.errors import DuplicateKeyError, KeyConsumedError, KeyMissError, KVBridgeError, SpecMismatchError
from kvbridge.layers.faulty import Fault, Faults, FaultyBuffer
from kvbridge.transfer import Transfer
from kvbridge_cpu import CpuBackend
from tests.mutants.wrapping import Buffer, Wrapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbridge.abc import Claim, Key


def _done() -> Transfer[None]:
    transfer: Transfer[None] = Transfer("a transfer that is done")
    transfer.resolve(None)
    return transfer


def _failed(error: KVBridgeError) -> Transfer[Any]:
    transfer: Transfer[Any] = Transfer("a transfer that failed")
    transfer.fail(error)
    return transfer


class CorruptsValues(CpuBackend):
    name = ""

    def open_buffer(self, endpoint: Any, **options: Any) -> Any:
        return FaultyBuffer(super().open_buffer(endpoint, **options), select=Faults(Fault("corrupt", count=0)))


class FirstInFirstOut(Wrapping):
    """Gives values in the order of their inserts, whatever is asked for."""

    class buffer(Buffer):  # noqa: N801
        order: list[str] = []  # noqa: RUF012

        def insert(self, key: Key, payload: Any, **options: Any) -> Transfer[None]:
            type(self).order.append(key.id)
            return self.inner.insert(key, payload, **options)

        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            first = self.order.pop(0) if self.order else key.id
            return self.inner.select(msgspec.structs.replace(key, id=first), out, **options)


class WantsItThere(Wrapping):
    """Does not wait for a key that is still to come."""

    class buffer(Buffer):  # noqa: N801
        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            return self.inner.select(key, out, **{**options, "timeout": 0.01})


class TakesTwice(Wrapping):
    """Takes by copying: the value stays for others."""

    class buffer(Buffer):  # noqa: N801
        def drop_select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            return self.inner.select(key, out, **options)


class SelectTakes(Wrapping):
    class buffer(Buffer):  # noqa: N801
        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            return self.inner.drop_select(key, out, **options)


class HasNoTombstones(Wrapping):
    """Waits for a key that was taken."""

    class buffer(Buffer):  # noqa: N801
        def drop_select(self, key: Key, out: Any, *, timeout: float = 30.0, **options: Any) -> Transfer[None]:
            transfer = self.inner.drop_select(key, out, timeout=timeout, **options)
            with contextlib.suppress(KVBridgeError):
                transfer.wait(5)
            if isinstance(transfer.error, KeyConsumedError):
                time.sleep(5)
            return transfer


class CallsUnknownConsumed(Wrapping):
    class buffer(Buffer):  # noqa: N801
        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            transfer: Transfer[None] = Transfer("a select")

            def ended(done: Transfer[None]) -> None:
                if isinstance(done.error, KeyMissError):
                    transfer.fail(KeyConsumedError("gone"))
                else:
                    done.hand_on(transfer)

            self.inner.select(key, out, **options).on_done(ended)
            return transfer


class Overwrites(Wrapping):
    """Lets a second insert replace the first."""

    class buffer(Buffer):  # noqa: N801
        def insert(self, key: Key, payload: Any, **options: Any) -> Transfer[None]:
            transfer = self.inner.insert(key, payload, **options)
            with contextlib.suppress(KVBridgeError):
                transfer.wait(5)
            if isinstance(transfer.error, DuplicateKeyError):
                self.inner.drop([key])
                return self.inner.insert(key, payload, **options)
            return transfer


class IgnoresTheLease(Wrapping):
    class buffer(Buffer):  # noqa: N801
        def insert(self, key: Key, payload: Any, *, lease: float = 0.0, **options: Any) -> Transfer[None]:
            return self.inner.insert(key, payload, **options)


class ForgetsNotes(Wrapping):
    class buffer(Buffer):  # noqa: N801
        def insert(self, key: Key, payload: Any, *, note: bytes = b"", **options: Any) -> Transfer[None]:
            return super().insert(key, payload, note=note[:100], **options)


class DropsClaimsWithTheLease(Wrapping):
    """Lets a lease end although somebody holds a claim."""

    class buffer(Buffer):  # noqa: N801
        def insert(self, key: Key, payload: Any, *, lease: float = 0.0, **options: Any) -> Transfer[None]:
            if lease:
                timer = threading.Timer(lease, lambda: self.inner.drop([key]))
                timer.daemon = True
                timer.start()
            return self.inner.insert(key, payload, **options)


class DropIsIgnored(Wrapping):
    class buffer(Buffer):  # noqa: N801
        def drop(self, keys: Sequence[Key]) -> None:
            self.inner.drop([key for key in keys if not key.home])


class ContainsLies(Wrapping):
    """Answers for the first key only."""

    class buffer(Buffer):  # noqa: N801
        def contains(self, keys: Sequence[Key], **options: Any) -> Transfer[list[bool]]:
            return self.inner.contains([keys[0]] * len(keys), **options)


class IgnoresTheDigest(Wrapping):
    class buffer(Buffer):  # noqa: N801
        def insert(self, key: Key, payload: Any, *, digest: bytes = b"", **options: Any) -> Transfer[None]:
            return self.inner.insert(key, payload, **options)

        def select(self, key: Key, out: Any, *, digest: bytes = b"", **options: Any) -> Transfer[None]:
            return self.inner.select(key, out, **options)


class FillsTwice(Wrapping):
    """Lets a claim be filled after its release."""

    class buffer(Buffer):  # noqa: N801
        def claim(self, key: Key, **options: Any) -> Transfer[Claim]:
            transfer = self.inner.claim(key, **options)
            with contextlib.suppress(KVBridgeError):
                transfer.wait(5).release = lambda: None  # type: ignore[method-assign]
            return transfer


class SharesClaims(Wrapping):
    """Gives one value to two takers."""

    class buffer(Buffer):  # noqa: N801
        def claim(self, key: Key, *, take: bool = True, **options: Any) -> Transfer[Claim]:
            return self.inner.claim(key, take=False, **options)


class CannotCancel(Wrapping):
    class buffer(Buffer):  # noqa: N801
        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            transfer: Transfer[None] = Transfer("a select that cannot be cancelled")
            self.inner.select(key, out, **options).on_done(lambda done: done.hand_on(transfer))
            return transfer


class LosesCancelledInserts(Wrapping):
    """Keeps the memory of an insert that was cancelled."""

    class buffer(Buffer):  # noqa: N801
        def insert(self, key: Key, payload: Any, **options: Any) -> Transfer[None]:
            hidden = msgspec.structs.replace(key, id=f"{key.id}.hidden")
            self.inner.insert(hidden, payload, **options)
            return self.inner.insert(key, payload, **options)


class CutsKeys(Wrapping):
    """Shortens keys that are too long: two of them become one."""

    class buffer(Buffer):  # noqa: N801
        def insert(self, key: Key, payload: Any, **options: Any) -> Transfer[None]:
            short = key.id.encode("ascii", "ignore").decode()[:200]
            return self.inner.insert(msgspec.structs.replace(key, id=short), payload, **options)


class WaitsAfterClose(Wrapping):
    """Leaves those who wait waiting when it is closed."""

    class buffer(Buffer):  # noqa: N801
        closed = False

        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            transfer: Transfer[None] = Transfer("a select")

            def ended(done: Transfer[None]) -> None:
                if not self.closed:
                    done.hand_on(transfer)

            self.inner.select(key, out, **options).on_done(ended)
            return transfer

        def close(self) -> None:
            self.closed = True
            self.inner.close()


class CloseKeepsValues(Wrapping):
    """Does not tell anybody that it closed."""

    class buffer(Buffer):  # noqa: N801
        def close(self) -> None:
            pass


class CountsWrongly(Wrapping):
    class buffer(Buffer):  # noqa: N801
        def stats(self) -> Mapping[str, float]:
            found = dict(self.inner.stats())
            found["bytes"] = -(-int(found["bytes"]) // 4096) * 4096
            return found


class ForgetsGenerations(Wrapping):
    class buffer(Buffer):  # noqa: N801
        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            return self.inner.select(msgspec.structs.replace(key, generation=0), out, **options)


class NeedsAHome(Wrapping):
    """Cannot find what is at home."""

    class buffer(Buffer):  # noqa: N801
        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            if not key.home:
                return _failed(KeyConsumedError("no home"))
            return self.inner.select(key, out, **options)


class CutsDestinations(Wrapping):
    """Fills as much of a destination as fits."""

    class buffer(Buffer):  # noqa: N801
        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            transfer = self.inner.select(key, out, **options)
            with contextlib.suppress(KVBridgeError):
                transfer.wait(5)
            if isinstance(transfer.error, SpecMismatchError):
                out.reshape(-1)[:] = 1
            return transfer


class OneAtATime(Wrapping):
    """Mixes up what several threads ask for."""

    class buffer(Buffer):  # noqa: N801
        out: Any = None

        def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
            self.out = out
            time.sleep(0.005)
            if self.out.shape == out.shape:
                return self.inner.select(key, self.out, **options)
            return self.inner.select(key, np.zeros_like(out), **options)


class ClaimsForAll(SharesClaims):
    """Lets params be used twice."""


class NeverDone(Wrapping):
    """An insert that never ends."""

    class buffer(Buffer):  # noqa: N801
        def insert(self, key: Key, payload: Any, **options: Any) -> Transfer[None]:
            self.inner.insert(key, payload, **options)
            return Transfer("an insert that never ends")


class ReleaseIsIgnored(Wrapping):
    """A claim that is given back keeps its value."""

    class buffer(Buffer):  # noqa: N801
        def claim(self, key: Key, **options: Any) -> Transfer[Claim]:
            transfer = self.inner.claim(key, **options)
            transfer.on_done(lambda done: None if done.error else setattr(done.result(), "release", lambda: None))
            return transfer


class AnswersTwice(Wrapping):
    """Loads what was given up, and says so."""

    class buffer(Buffer):  # noqa: N801
        def claim(self, key: Key, **options: Any) -> Transfer[Claim]:
            transfer = self.inner.claim(key, **options)

            def wrap(done: Transfer[Claim]) -> None:
                if done.error is None:
                    claim = done.result()
                    claim.fill = lambda out, skip=0: Transfer("a load that never ends")  # type: ignore[method-assign]

            transfer.on_done(wrap)
            return transfer


class SkipsNothing(Wrapping):
    """Fills a claim from its beginning, whatever is to be left out."""

    class buffer(Buffer):  # noqa: N801
        def claim(self, key: Key, **options: Any) -> Transfer[Claim]:
            transfer = self.inner.claim(key, **options)

            def wrap(done: Transfer[Claim]) -> None:
                if done.error is None:
                    done.result().fill = lambda out, skip=0: _done()  # type: ignore[method-assign]

            transfer.on_done(wrap)
            return transfer
