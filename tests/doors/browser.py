"""A headless Chromium: a page's DOM after its scripts ran, and its screenshot as an array."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NAMES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE = 90.0
FLAGS = (
    "--headless",
    "--no-sandbox",  # it runs as root in containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--allow-file-access-from-files",  # one file may look into another that it frames
    "--host-resolver-rules=MAP * ~NOTFOUND",  # nothing is fetched, whatever a page asks for
)


def installed() -> str:
    """The browser's path. Without one the test is skipped, but fails where the environment says that this is CI."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    reason = f"found no browser named {', '.join(NAMES)}; to look at the page, install one: apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def run(profile: Path, url: str, *flags: str, width: int, height: int) -> bytes:
    """Let a browser with an empty profile do one thing; returns what it printed."""
    command = [installed(), *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", *flags, url]
    log = profile.with_suffix(".log")
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True) as browser,
    ):
        try:
            printed, _ = browser.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the browser did not end within {DEADLINE:.0f} s; its last words:\n{log.read_text()[-2000:]}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)  # its group: a browser is many processes
            shutil.rmtree(profile, ignore_errors=True)
    assert browser.returncode == 0, log.read_text()[-2000:]
    return printed


def dom(profile: Path, url: str, *, width: int, height: int = 800) -> str:
    """The page's DOM after its scripts ran."""
    return run(profile, url, "--dump-dom", width=width, height=height).decode()


def screenshot(profile: Path, url: str, *flags: str, width: int, height: int) -> NDArray[np.int64]:
    """The page's pixels: `(height, width, 3)`."""
    file = profile.with_suffix(".png")
    run(profile, url, f"--screenshot={file}", *flags, width=width, height=height)
    pixels = read_png(file.read_bytes())
    assert pixels.shape == (height, width, 3)
    return pixels


def read_png(data: bytes) -> NDArray[np.int64]:
    """Decode a PNG of 8-bit RGB or RGBA that is not interlaced; alpha is dropped."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, header = 8, b"", b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        header = body if kind == b"IHDR" else header
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    assert (depth, interlaced) == (8, 0)
    channels = {2: 3, 6: 4}[colour]
    lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    pixels = np.zeros((height + 1, width + 1, channels), np.int64)  # a row above and a column left of the picture
    for y, line in enumerate(lines, 1):
        _unfilter(int(line[0]), line[1:].reshape(width, channels), pixels[y - 1], pixels[y])
    return pixels[1:, 1:, :3]


def _unfilter(kind: int, coded: NDArray[np.uint8], above: NDArray[np.int64], row: NDArray[np.int64]) -> None:
    if kind == 0:
        row[1:] = coded
    elif kind == 1:
        row[1:] = np.cumsum(coded, axis=0, dtype=np.int64) & 255
    elif kind == 2:
        row[1:] = (coded + above[1:]) & 255
    else:
        predict = _average if kind == 3 else _paeth
        for channel in range(coded.shape[1]):
            up, out = above[:, channel].tolist(), [0]
            for x, value in enumerate(coded[:, channel].tolist(), 1):
                out.append((value + predict(out[x - 1], up[x], up[x - 1])) & 255)
            row[:, channel] = out


def _average(left: int, up: int, corner: int) -> int:
    return (left + up) // 2


def _paeth(left: int, up: int, corner: int) -> int:
    near = left + up - corner
    distances = abs(near - left), abs(near - up), abs(near - corner)
    return (left, up, corner)[distances.index(min(distances))]
