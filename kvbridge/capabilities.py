"""What one backend instance can do: flags that are tested when claimed, and limits."""

from __future__ import annotations

from typing import Literal

import msgspec

Mover = Literal["consumer", "producer", "both"]
"""Which side moves the bytes: the consumer reads, the producer writes, or both post (two-sided)."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Flags and limits of one backend instance.

    A claimed flag is a promise that the conformance suite tests. An operation whose flag is not claimed raises
    `kvbridge.errors.UnsupportedError` naming the flag.

    Attributes:
        pipe: `open_send` and `open_recv` work.
        buffer: `open_buffer` works.
        takes: `drop_select` and `claim(take=True)` work: exactly one caller gets a value, whichever process he is in.
        tombstones: A key whose value was taken, dropped or has expired says so at once, in every process.
        slots: `open_pool` works: it keeps blocks of a cache for reuse.
        shared: Values live in a store and outlive the process that inserted them; `Key.home` does not matter.
        tensors: Payloads may be tensors.
        pages: Payloads may be `Pages`.
        cuda: Payloads may live in GPU memory.
        cross_process: Peers may be two processes of one host.
        cross_host: Peers may be on two hosts.
        detaches: An insert finishes when the backend holds a copy, so that the source is free before any consumer
            asks. Without it the source is held until the value is taken or its lease ends.
        mover: Which side moves the bytes.
        max_value_bytes: Largest single value in bytes; 0 where there is no limit but memory. The core refuses what is
            larger.
        capacity_bytes: Bytes that may be held at one time; 0 where values stay in the caller's memory. The backend
            refuses what does not fit.
    """

    pipe: bool = False
    buffer: bool = False
    takes: bool = False
    tombstones: bool = False
    slots: bool = False
    shared: bool = False
    tensors: bool = False
    pages: bool = False
    cuda: bool = False
    cross_process: bool = False
    cross_host: bool = False
    detaches: bool = False
    mover: Mover = "consumer"
    max_value_bytes: int = 0
    capacity_bytes: int = 0

    @classmethod
    def of_transport(
        cls,
        *,
        mover: Mover,
        tensors: bool = True,
        pages: bool = True,
        cuda: bool = False,
        cross_process: bool = True,
        cross_host: bool = False,
        detaches: bool = False,
        slots: bool = False,
        max_value_bytes: int = 0,
        capacity_bytes: int = 0,
    ) -> Capabilities:
        """Make the capabilities of a transport. Its pipes and buffers are the core's: what those can do is claimed."""
        return cls(
            pipe=True,
            buffer=True,
            takes=True,
            tombstones=True,
            tensors=tensors,
            pages=pages,
            cuda=cuda,
            cross_process=cross_process,
            cross_host=cross_host,
            detaches=detaches,
            slots=slots,
            mover=mover,
            max_value_bytes=max_value_bytes,
            capacity_bytes=capacity_bytes,
        )


class Probe(msgspec.Struct, frozen=True):
    """Whether a backend can work on this machine.

    Attributes:
        ok: Whether it can.
        reason: Why not, or what it found, in one sentence for a human reader.
    """

    ok: bool
    reason: str
