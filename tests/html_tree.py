"""HTML as a tree, for tests. The parser is strict: what is not closed, or closed out of order, is an error."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VOID = {"br", "col", "hr", "img", "input", "link", "meta"}


class Node:
    def __init__(self, tag: str, attributes: dict[str, str | None], parent: Node | None) -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children: list[Node | str] = []

    def all(self, tag: str | None = None, **attributes: str) -> list[Node]:
        return [
            node
            for node in self._walk()
            if tag in (None, node.tag)
            and all(wanted in (node.attributes.get(name) or "").split() for name, wanted in attributes.items())
        ]

    def _walk(self) -> Iterator[Node]:
        for child in self.children:
            if isinstance(child, Node):
                yield child
                yield from child._walk()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()


class _Parser(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self._open = Node("", {}, None)
        self.feed(text)
        self.close()
        assert self._open is self.root, f"<{self._open.tag}> is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        node = Node(tag, dict(attrs), self._open)
        self._open.children.append(node)
        if tag not in VOID:
            self._open = node

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.tag, f"</{tag}> closes <{self._open.tag}>"
        assert self._open.parent is not None
        self._open = self._open.parent

    def handle_data(self, data: str) -> None:
        self._open.children.append(data)


def parse(text: str) -> Node:
    return _Parser(text).root
