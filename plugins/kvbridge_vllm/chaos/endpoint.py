"""`LossyEndpoint`: a control endpoint that loses messages, or gets them late, as long as rules say so."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.control.endpoint import Endpoint
from kvbridge.control.messages import Hello, decode
from kvbridge.control.outbound import Dial

if TYPE_CHECKING:
    from kvbridge.abc.backend import Backend
    from kvbridge_vllm.chaos.rules import Rule, RulesFile

logger = logging.getLogger(__name__)

LEAST_LATE = 0.3
"""Share of a rule's delay by which a message is late at least."""


class LossyEndpoint(Endpoint):
    """Receives what its peers send through rules. What a peer sent first arrives first, late or not.

    The loss of a connection is no message: it is never dropped, but it comes after the messages before it.

    Args:
        backend: See `Endpoint`.
        rules: What happens to messages.
        settings: See `Endpoint`.
    """

    def __init__(self, backend: Backend[Any], *, rules: RulesFile, **settings: Any) -> None:
        self._rules = rules
        self._standing: tuple[Rule, ...] = ()
        self._chooser = random.Random(settings.get("name", ""))  # noqa: S311 - not a secret
        self._late: dict[bytes | Dial, deque[tuple[float, bytes | None]]] = {}
        self._dropped = self._delayed = 0
        super().__init__(backend, **settings)

    def _received(self, origin: bytes | Dial, frame: bytes | None) -> None:
        now = time.monotonic()
        self._look(now)
        sender = self._sender(origin, frame) if self._standing else ""
        rules = [rule for rule in self._standing if sender.startswith(rule.sender)]
        if frame is not None and any(r.kind == "drop" and self._chooser.random() < r.share for r in rules):
            self._dropped += 1
            return
        late = max((rule.seconds * self._chooser.uniform(LEAST_LATE, 1) for rule in rules), default=0.0)
        queue = self._late.get(origin)
        if queue is None and not late:
            super()._received(origin, frame)
            return
        if queue is None:
            queue = self._late[origin] = deque()
        self._delayed += 1
        queue.append((max(now + late, queue[-1][0] if queue else 0.0), frame))
        if len(queue) == 1:
            self.after(queue[0][0] - now, lambda: self._deliver(origin))

    def _deliver(self, origin: bytes | Dial) -> None:
        """Hand on the next message of a peer, which is due; the one after it has its own time."""
        queue = self._late[origin]
        _, frame = queue.popleft()
        if queue:
            self.after(max(0.0, queue[0][0] - time.monotonic()), lambda: self._deliver(origin))
        else:
            del self._late[origin]
        if not (isinstance(origin, Dial) and origin.over):  # its socket is closed: nothing comes from there
            super()._received(origin, frame)

    def _look(self, now: float) -> None:
        standing = self._rules.standing(now)
        if standing == self._standing:
            return
        if self._standing:
            logger.warning("chaos: dropped %d and delayed %d messages", self._dropped, self._delayed)
            self._dropped = self._delayed = 0
        self._standing = standing

    def _sender(self, origin: bytes | Dial, frame: bytes | None) -> str:
        """Return the name of whoever sent a frame; empty where it is not known yet."""
        link = origin.link if isinstance(origin, Dial) else self._inbound.get(origin)
        if link is not None or isinstance(origin, Dial):
            return link.peer.name if link is not None else ""
        try:
            message = decode(frame or b"")
        except (msgspec.DecodeError, RecursionError):
            return ""
        return message.identity.name if isinstance(message, Hello) else ""
