"""What the cards of backends have in common: a checksum, and where the process is that made one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kvbridge.errors import ProtocolError

CHECKSUM = 16
"""Bytes of a checksum."""


def seal(body: bytes) -> bytes:
    """Put a checksum before bytes: changed ones can crash a library that is given them."""
    return _checksum(body) + body


def unseal(sealed: bytes, backend: str) -> bytes:
    """Return the bytes that were sealed.

    Raises:
        ProtocolError: They were not sealed, or changed since.
    """
    checksum, body = sealed[:CHECKSUM], sealed[CHECKSUM:]
    if _checksum(body) != checksum:
        raise ProtocolError(f"the card is not one of the backend {backend!r}, or was changed on its way")
    return body


def host_identity() -> tuple[str, str]:
    """Name this kernel and PID namespace, and this kernel and network namespace.

    Processes with the same first name may reach into each other, those with the same second one share loopback.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    pid, net = (Path(f"/proc/self/ns/{kind}").readlink() for kind in ("pid", "net"))
    return f"{boot}/{pid}", f"{boot}/{net}"


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM).digest()
