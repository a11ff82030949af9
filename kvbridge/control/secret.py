"""A secret that all engines of a deployment share: who does not know it cannot connect, and cannot listen.

It is turned into the key pair of a CurveZMQ server, the same in every engine. A client needs the server's public key,
which never travels; its own key pair is made for each connection. So a connection is between two who know the secret,
encrypted, and what was recorded cannot be read later by who learns it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import zmq
from zmq.utils import z85

from kvbridge.errors import ConfigError

if TYPE_CHECKING:
    from typing import Self

SHORTEST = 16
"""Characters that a secret has at least."""

PERSON = b"kvbridge control"
"""Keeps keys that are made of the same secret for something else apart."""


class Keys(NamedTuple):
    """The key pair that is made of a secret, as ZeroMQ writes keys.

    Attributes:
        public: For clients.
        private: For servers.
    """

    public: bytes
    private: bytes

    @classmethod
    def of(cls, secret: str) -> Self:
        """Make the keys.

        Raises:
            ConfigError: The secret is too short, or this ZeroMQ has no encryption.
        """
        if len(secret) < SHORTEST:
            raise ConfigError(f"the secret has {len(secret)} characters, expected {SHORTEST} or more, chosen at random")
        if not zmq.has("curve"):
            raise ConfigError("this build of ZeroMQ has no CURVE encryption: install pyzmq's own wheel from PyPI")
        private = z85.encode(hashlib.blake2b(secret.encode(), digest_size=32, person=PERSON).digest())
        return cls(zmq.curve_public(private), private)


def read_secret(path: str) -> str:
    """Read the file that holds the secret; an empty path means that there is none.

    Raises:
        ConfigError: It cannot be read, or others may read it.
    """
    if not path:
        return ""
    file = Path(path)
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"secret_file {path}: other users may read it; chmod 600 {path}")
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"secret_file {path}: {error}") from error
