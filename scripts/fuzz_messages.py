"""Feeds bytes that nobody would send to the decoder of the control plane: python scripts/fuzz_messages.py [SECONDS].

Whatever comes, the decoder returns a message, or raises what an endpoint expects, and takes memory in proportion to the
bytes. It starts from one frame of every kind of message. What breaks it is written to a file `crash-...`.
"""

from __future__ import annotations

import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import get_args

import atheris  # type: ignore[import-not-found]
import msgspec

with atheris.instrument_imports(include=["kvbridge.control", "kvbridge.memory"]):
    from kvbridge.control import messages

REFUSED = (msgspec.DecodeError, RecursionError)
MEMORY_PER_BYTE = 256
"""Bytes of memory for one byte of a frame: the smallest object of Python takes 28, and lists grow ahead."""

ROOM = 64 << 10


def feed(frame: bytes) -> None:
    """Decode one frame.

    Raises:
        AssertionError: It took more memory than such a frame may.
    """
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        message = messages.decode(frame)
    except REFUSED:
        message = None
    _, peak = tracemalloc.get_traced_memory()
    if peak - before > ROOM + MEMORY_PER_BYTE * len(frame):
        raise AssertionError(f"{len(frame)} bytes took {peak - before} bytes of memory")
    if message is not None:
        messages.encode(message)


def samples(folder: Path) -> None:
    """Write a frame of every kind of message: fields of their types, as small as they may be."""
    kinds = [kind for union in (messages.Handshake, messages.Routed) for kind in get_args(union)]
    identity = messages.Identity("n", 1, "b", {"k": "v"}, b"c")
    for kind in kinds:
        values: dict[str, object] = {}
        for field in msgspec.structs.fields(kind):
            values[field.name] = _least(field.name, field.type, identity)
        (folder / kind.__name__).write_bytes(messages.encode(kind(**values)))


def _least(name: str, found: object, identity: messages.Identity) -> object:
    if name == "identity":
        return identity
    if name == "spec":
        from kvbridge.memory import PagesSpec  # noqa: PLC0415 - beside its use

        return PagesSpec((16384,), (7,))
    text = str(found)
    if "tuple" in text:
        return ()
    for kind, value in (("str", "k"), ("bytes", b"d"), ("float", 1.0), ("bool", True), ("int", 1)):
        if f"'{kind}'" in text or text == kind:
            return value
    return {}


def main() -> None:
    """Feed for a while."""
    seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        samples(Path(folder))
        options = [f"-max_total_time={seconds}", "-max_len=4096", "-print_final_stats=1", "-verbosity=0"]
        atheris.Setup([sys.argv[0], folder, *options], feed)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
