"""Ends and buffers that pass everything on: a mutant overrides the one thing that it does wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.abc import Claim, Key, LookupBuffer, Offered, RecvPipe, SendPipe
from kvbridge_cpu import CpuBackend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbridge.transfer import Transfer


class Send(SendPipe):
    def __init__(self, inner: SendPipe) -> None:
        super().__init__()
        self.inner = inner

    def _post(self, payload: Any, spec: Any, tag: int) -> Transfer[None]:
        return self.inner.post(payload, tag)

    def _close(self) -> None:
        self.inner.close()


class Recv(RecvPipe):
    def __init__(self, inner: RecvPipe) -> None:
        super().__init__()
        self.inner = inner

    def _peek(self, timeout: float) -> Offered | None:
        return self.inner.peek(timeout)

    def _accept(self, offer: Offered, out: Any, skip: int) -> Transfer[None]:
        return self.inner.accept(offer, out, skip)

    def _decline(self, offer: Offered) -> None:
        self.inner.decline(offer)

    def _close(self) -> None:
        self.inner.close()


class Buffer(LookupBuffer):
    def __init__(self, inner: LookupBuffer) -> None:
        self.inner = inner

    def insert(self, key: Key, payload: Any, **options: Any) -> Transfer[None]:
        return self.inner.insert(key, payload, **options)

    def claim(self, key: Key, **options: Any) -> Transfer[Claim]:
        return self.inner.claim(key, **options)

    def drop_select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
        return self.inner.drop_select(key, out, **options)

    def select(self, key: Key, out: Any, **options: Any) -> Transfer[None]:
        return self.inner.select(key, out, **options)

    def contains(self, keys: Sequence[Key], **options: Any) -> Transfer[list[bool]]:
        return self.inner.contains(keys, **options)

    def drop(self, keys: Sequence[Key]) -> None:
        self.inner.drop(keys)

    def stats(self) -> Mapping[str, float]:
        return self.inner.stats()

    def close(self) -> None:
        self.inner.close()


class Wrapping(CpuBackend):
    """The right backend, with its ends and buffers wrapped in what a mutant names."""

    name = ""
    send: type[Send] = Send
    recv: type[Recv] = Recv
    buffer: type[Buffer] = Buffer

    def open_send(self, link: Any, channel: str) -> SendPipe:
        return self.send(super().open_send(link, channel))

    def open_recv(self, link: Any, channel: str) -> RecvPipe:
        return self.recv(super().open_recv(link, channel))

    def open_buffer(self, endpoint: Any, **options: Any) -> LookupBuffer:
        return self.buffer(super().open_buffer(endpoint, **options))
