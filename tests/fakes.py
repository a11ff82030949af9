"""A fake LookupBuffer whose answers a test writes, for the connector's worker half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.abc import Claim, Key, LookupBuffer
from kvbridge.memory import PagesSpec
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbridge.errors import KVBridgeError


class FakeTransfer(Transfer[Any]):
    """Records a cancel; ends with it at once where `obedient`."""

    __slots__ = ("cancels", "obedient")

    def __init__(self, what: str, *, obedient: bool = True) -> None:
        super().__init__(what, self._cancelled)
        self.cancels = 0
        self.obedient = obedient

    def _cancelled(self) -> None:
        self.cancels += 1
        if self.obedient:
            self.fail(cancelled(self.what))


class FakeClaim(Claim):
    """Counts what is done with it."""

    def __init__(self, *, obedient: bool = True, refuse: Callable[[], Transfer[Any]] | None = None) -> None:
        self.spec = PagesSpec((), ())
        self.fills: list[tuple[Any, int, FakeTransfer]] = []
        self.releases = 0
        self.gone: KVBridgeError | None = None
        self._obedient = obedient
        self._refuse = refuse

    @property
    def lost(self) -> KVBridgeError | None:
        return self.gone

    def fill(self, out: Any, skip: int = 0) -> Transfer[None]:
        if self._refuse is not None:
            return self._refuse()
        transfer = FakeTransfer("filling", obedient=self._obedient)
        self.fills.append((out, skip, transfer))
        return transfer

    def release(self) -> None:
        self.releases += 1

    @property
    def ended(self) -> bool:
        """Whether nothing is held at the producer any more."""
        return bool(self.releases) or any(transfer.poll() for _, _, transfer in self.fills)


class FakeBuffer(LookupBuffer):
    """Answers nothing by itself: a test resolves or fails `inserts` and `claims`."""

    def __init__(self, *, obedient: bool = True) -> None:
        self.obedient = obedient
        self.inserts: dict[str, tuple[Any, bytes, float, FakeTransfer]] = {}
        self.claims: list[tuple[Key, bytes, float, FakeTransfer]] = []
        self.given: list[FakeClaim] = []
        self.dropped: list[Key] = []
        self.closed = 0

    def insert(
        self, key: Key, payload: Any, *, digest: bytes = b"", lease: float = 0.0, note: bytes = b""
    ) -> Transfer[None]:
        transfer = FakeTransfer(f"inserting {key.id}", obedient=self.obedient)
        self.inserts[key.id] = payload, digest, lease, transfer
        return transfer

    def claim(self, key: Key, *, digest: bytes = b"", take: bool = True, timeout: float = 0.0) -> Transfer[Claim]:
        transfer = FakeTransfer(f"claiming {key.id}", obedient=self.obedient)
        self.claims.append((key, digest, timeout, transfer))
        return transfer

    def grant(self, index: int = -1, claim: FakeClaim | None = None) -> FakeClaim:
        """Answer a claim. A transfer that ended before does not take it: then it is given back, as a buffer does."""
        given = claim or FakeClaim(obedient=self.obedient)
        transfer = self.claims[index][3]
        if transfer.poll():
            given.release()
        self.given.append(given)
        transfer.resolve(given)
        return given

    def drop_select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
        raise NotImplementedError

    def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
        raise NotImplementedError

    def contains(self, keys: Sequence[Key], *, timeout: float = 0.0) -> Transfer[list[bool]]:
        raise NotImplementedError

    def drop(self, keys: Sequence[Key]) -> None:
        self.dropped.extend(keys)

    def stats(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        self.closed += 1
