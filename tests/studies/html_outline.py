"""A strict reading of an HTML page: its elements must close in order, and what it says is kept by element."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "hr", "img", "input"}


class Outline(HTMLParser):
    """What a page is made of.

    Attributes:
        elements: every element's name and attributes, in order.
        texts: the text directly inside each of them.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[int] = []
        self.feed(page)
        self.close()
        assert not self._open, f"not closed: {[self.elements[index][0] for index in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> repeats an attribute"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.texts.append("")
        if tag not in _VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self.elements[self._open.pop()][0] == tag, f"</{tag}> is out of order"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]] += data

    def all(self, tag: str) -> list[tuple[dict[str, str], str]]:
        """Every element of that name: attributes and text."""
        return [
            (attributes, text)
            for (name, attributes), text in zip(self.elements, self.texts, strict=True)
            if name == tag
        ]

    def text_of(self, tag: str) -> list[str]:
        """The text of every element of that name."""
        return [text.strip() for _, text in self.all(tag)]
