"""HTML by functions. Text is escaped unless it is `Html` already, so that nothing in a report can become markup."""

from __future__ import annotations

import html
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Union

from kvbridge.plain import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

_VOID = frozenset({"br", "col", "hr", "input", "link", "meta"})


class Html(str):
    """Text that is markup."""

    __slots__ = ()


Child = Union["Html", str, None, "Iterable[Child]"]


def escape(text: str) -> Html:
    """Make markup that shows a text as it is."""
    return Html(html.escape(plain(text), quote=True))


def join(children: Child) -> Html:
    """Make markup of text, of markup, or of many of both; None is nothing."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return escape(children)
    return Html("".join(join(child) for child in children))


def el(tag: str, *children: Child, **attributes: str | bool | None) -> Html:
    """Make an element.

    Args:
        tag: Its name.
        children: What is in it.
        attributes: Its attributes; `_` stands for `-`, and one at the end is left out (`class_`). True gives an
            attribute without a value; False and None give none.
    """
    shown = "".join(
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{tag}{shown}>" if tag in _VOID else f"<{tag}{shown}>{join(children)}</{tag}>")


def moment(text: str) -> Child:
    """Make an element of a moment in ISO's form; a text that is none stays one."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    shown = found.astimezone(UTC) if found.tzinfo else found
    return el("time", shown.strftime("%Y-%m-%d %H:%M UTC"), datetime=text)
