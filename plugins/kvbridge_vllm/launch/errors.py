"""What can go wrong with a server that the launcher started, as exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_BODY_SHOWN = 500  # characters of an error body in the message; the whole body stays in the attribute


class LaunchError(Exception):
    """Base of the launcher's errors."""


class StartError(LaunchError):
    """A server did not become ready.

    Attributes:
        summary: what happened, in one line.
        log_path: the server's log.
    """

    def __init__(self, summary: str, log_path: Path, tail: str) -> None:
        """Shows the summary and the end of the log in the message."""
        super().__init__(f"{summary}; the end of {log_path}:\n{tail}")
        self.summary = summary
        self.log_path = log_path


class EngineStartError(StartError):
    """An engine ended, or was not ready in time; the message holds the last lines of its log."""


class RouterStartError(StartError):
    """A router ended, or was not ready in time; the message holds the last lines of its log."""


class EngineHTTPError(LaunchError):
    """A server answered with another status than 200.

    Attributes:
        status: the HTTP status.
        body: the body, parsed if it was JSON, else as text.
    """

    def __init__(self, status: int, body: Any) -> None:
        """Keeps both for the caller and shows both in the message."""
        super().__init__(f"HTTP status {status}: {str(body)[:_BODY_SHOWN]}")
        self.status = status
        self.body = body
