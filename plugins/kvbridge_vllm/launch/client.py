"""A small HTTP client for servers on this machine: JSON, event streams and Prometheus metrics.

Built on `http.client`, which reads no proxy settings: a proxy configured for the outside world must not see
loopback traffic.
"""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kvbridge_vllm.launch.errors import EngineHTTPError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OK = 200


def request(method: str, url: str, body: Mapping[str, Any] | None = None, timeout: float = 30) -> tuple[int, Any]:
    """Sends one request and reads the whole answer.

    Args:
        method: the HTTP method.
        url: an absolute http URL.
        body: sent as JSON when given.
        timeout: seconds, for the connection and for each wait on the socket.

    Returns:
        The status, and the body: parsed if it is JSON, else as text.

    Raises:
        OSError: no connection, or no answer in time.
        http.client.HTTPException: the server broke off its answer.
    """
    connection = _connect(method, url, body, timeout)
    try:
        response = connection.getresponse()
        return response.status, _parse(response.read())
    finally:
        connection.close()


def stream(url: str, body: Mapping[str, Any], timeout: float = 120) -> Iterator[Any]:
    """Posts JSON and yields the events of the answer's stream as they arrive, parsed, without ``[DONE]``.

    Args:
        url: an absolute http URL.
        body: sent as JSON; it has to ask for a stream.
        timeout: seconds, for the connection and for each wait on the socket.

    Yields:
        One parsed JSON value per event.

    Raises:
        EngineHTTPError: the status was not 200, or an event carries an error.
        OSError: no connection, or no event in time.
        http.client.HTTPException: the server broke off its answer.
    """
    connection = _connect("POST", url, body, timeout)
    try:
        response = connection.getresponse()
        if response.status != _OK:
            raise EngineHTTPError(response.status, _parse(response.read()))
        for line in response:
            text = line.decode(errors="replace").strip()
            if not text.startswith("data:"):
                continue
            text = text.removeprefix("data:").strip()
            if text == "[DONE]":
                return
            event = json.loads(text)
            if isinstance(event, dict) and "error" in event:
                raise EngineHTTPError(response.status, event)
            yield event
    finally:
        connection.close()


def parse_metrics(text: str) -> dict[str, float]:
    """Parses Prometheus text: the series as written (``name{labels}``) to its value."""
    found = {}
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series and not line.startswith("#"):
            try:
                found[series] = float(value)
            except ValueError:
                continue
    return found


def metric_sum(metrics: Mapping[str, float], name: str) -> float:
    """Sums a metric over its label sets; 0 when there is none."""
    return sum(value for series, value in metrics.items() if series.partition("{")[0] == name)


def _connect(method: str, url: str, body: Mapping[str, Any] | None, timeout: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    path = parts.path or "/"
    if parts.query:
        path = f"{path}?{parts.query}"
    payload = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, payload, {"Content-Type": "application/json"})
    except BaseException:
        connection.close()
        raise
    return connection


def _parse(raw: bytes) -> Any:
    text = raw.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
