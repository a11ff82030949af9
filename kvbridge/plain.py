"""Text from elsewhere, harmless for a terminal and for a page."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}
"""What would move a cursor, turn the direction of a line or cannot be encoded, made visible."""


def plain(text: str) -> str:
    """Return a text without colours and control characters of terminals."""
    return _ANSI.sub("", text.replace("\r\n", "\n")).translate(_CONTROLS)
