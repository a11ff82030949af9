"""Every message of the control plane: tagged msgspec structs with limits, so that decoding a peer's bytes is safe.

Bytes of KV never travel here. `seq` numbers offers of one pipe, `xid` numbers questions of one consumer. Durations
are relative, in seconds: clocks of two hosts are never compared.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from kvbridge.memory.payload import Spec  # noqa: TC001 - msgspec reads the annotations at run time

PROTOCOL = 3
"""Version of this protocol. Peers of two versions refuse each other."""

MAX_MESSAGE_BYTES = 1 << 20
"""Bytes of one message, enforced by the socket before memory is taken."""

MAX_BLOB = MAX_MESSAGE_BYTES // 4
"""Bytes of a descriptor."""

MAX_KEYS = 2048
"""Keys in one question."""

MAX_KEY = 256
"""Characters of a key."""

MAX_DIGEST = 64
"""Bytes of a digest."""

MAX_NOTE = 48 << 10
"""Bytes of a note: with the rest of what a store keeps of a value they are less than 64 KiB."""

MAX_SECONDS = 86400
"""Longest duration."""

MAX_TEXT = 4096
"""Characters of a text."""

Word = Annotated[str, Meta(max_length=64)]
KeyId = Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Blob = Annotated[bytes, Meta(max_length=MAX_BLOB)]
Digest = Annotated[bytes, Meta(max_length=MAX_DIGEST)]
Note = Annotated[bytes, Meta(max_length=MAX_NOTE)]
Seq = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Fields = Annotated[dict[Word, Text], Meta(max_length=128)]


class Identity(msgspec.Struct, frozen=True):
    """Who a peer is: the same facts from both sides of a handshake.

    Attributes:
        name: Engine id and rank, for messages and logs.
        generation: Random number of one life of the endpoint.
        backend: Name of the backend.
        fingerprint: Everything that makes KV mean something else; both sides must be equal.
        card: What a peer needs to reach the backend; opaque to the core.
        address: Where the endpoint listens.
    """

    name: Text
    generation: Seq
    backend: Word
    fingerprint: Fields
    card: Blob
    address: Text = ""


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=False, omit_defaults=True):
    """Base of all messages."""


class Hello(_Message, frozen=True):
    """First message of the side that dials."""

    protocol: int
    identity: Identity


class Welcome(_Message, frozen=True):
    """The handshake is accepted."""

    identity: Identity


class Refused(_Message, frozen=True):
    """The handshake is refused: each differing field as `(field, here, there)`, seen from the refusing side."""

    code: Word
    message: Text
    differences: Annotated[tuple[tuple[Text, Text, Text], ...], Meta(max_length=128)] = ()


class Ping(_Message, frozen=True):
    """Are you alive? Any message answers it in spirit; `Pong` does in fact."""


class Pong(_Message, frozen=True):
    """Alive."""


class Bye(_Message, frozen=True):
    """This link is over: closed in order, or unknown here after a restart."""

    code: Word
    message: Text = ""


class Fence(_Message, frozen=True):
    """Consumer to producer: tell me when nothing moves any more that you began to write to me over earlier links.

    It is sent again until the answer is here, with the same number.
    """

    xid: Seq


class Fenced(_Message, frozen=True):
    """Producer to consumer: nothing does that was under way when this `Fence` came."""

    xid: Seq


class Offer(_Message, frozen=True):
    """Sender to receiver: a payload is ready to be moved.

    `valid` is for how long the sender keeps it in place, counted from when the receiver asked (`Select`, `Renew`)
    or else from when the offer arrives. `note` is what the user of a buffer has to say of the value.
    """

    channel: Word
    seq: Seq
    tag: Seq
    spec: Spec
    descriptor: Blob
    valid: Seconds
    note: Note = b""


class Accept(_Message, frozen=True):
    """Receiver to sender: move it here. Sent where the sender has a part in moving the bytes."""

    channel: Word
    seq: Seq
    descriptor: Blob


class Landed(_Message, frozen=True):
    """Sender to receiver: the bytes that I moved are in place, or the move failed (`code`) and has ended."""

    channel: Word
    seq: Seq
    code: Word = ""
    message: Text = ""


class Done(_Message, frozen=True):
    """Receiver to sender: I am through with this offer; the source is yours again. `taken` is false on failure."""

    channel: Word
    seq: Seq
    taken: bool


class Withdrawn(_Message, frozen=True):
    """Sender to receiver: the offer is void; the reason is an error code."""

    channel: Word
    seq: Seq
    code: Word
    message: Text


class Abort(_Message, frozen=True):
    """Receiver to sender: stop moving. Answered by `Landed` once nothing can land any more."""

    channel: Word
    seq: Seq


class Renew(_Message, frozen=True):
    """Receiver to sender: I still want this offer."""

    channel: Word
    seq: Seq


class Renewed(_Message, frozen=True):
    """Sender to receiver: the offer stands for `valid` more seconds from when `Renew` was sent."""

    channel: Word
    seq: Seq
    valid: Seconds


class End(_Message, frozen=True):
    """Sender to receiver: no further offer will come on this pipe."""

    channel: Word


class Select(_Message, frozen=True):
    """Consumer to producer: offer me this key, or tell me why not. `wait` is for how long a missing key may come."""

    channel: Word
    xid: Seq
    key: KeyId
    digest: Digest
    take: bool
    wait: Seconds


class Miss(_Message, frozen=True):
    """Producer to consumer: no value; the reason is an error code."""

    channel: Word
    xid: Seq
    code: Word
    message: Text


class Cancel(_Message, frozen=True):
    """Consumer to producer: forget this `Select`."""

    channel: Word
    xid: Seq


class Ask(_Message, frozen=True):
    """Consumer to producer: which of these keys are here?"""

    channel: Word
    xid: Seq
    keys: Annotated[tuple[KeyId, ...], Meta(max_length=MAX_KEYS)]


class Answer(_Message, frozen=True):
    """Producer to consumer: for each key of `Ask`, whether it has a live value."""

    channel: Word
    xid: Seq
    present: Annotated[tuple[bool, ...], Meta(max_length=MAX_KEYS)]


class Drop(_Message, frozen=True):
    """Consumer to producer: nobody wants these keys any more."""

    channel: Word
    xid: Seq
    keys: Annotated[tuple[KeyId, ...], Meta(max_length=MAX_KEYS)]


class Push(_Message, frozen=True):
    """Producer to consumer: a value of so many bytes is here for you. Take it if you have room, or ask for it later."""

    channel: Word
    key: KeyId
    digest: Digest
    nbytes: Seq


Handshake: TypeAlias = Hello | Welcome | Refused | Ping | Pong | Bye | Fence | Fenced
Routed: TypeAlias = (
    Offer
    | Accept
    | Landed
    | Done
    | Withdrawn
    | Abort
    | Renew
    | Renewed
    | End
    | Select
    | Miss
    | Cancel
    | Ask
    | Answer
    | Drop
    | Push
)
Message: TypeAlias = Handshake | Routed

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def text(error: object) -> str:
    """Write an error as a text that a message can carry."""
    return str(error)[:MAX_TEXT]


def encode(message: Message) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode(frame: bytes) -> Message:
    """Decode a peer's bytes.

    Raises:
        msgspec.DecodeError: They are not a message of this protocol, or break a limit.
    """
    return _decoder.decode(frame)
