"""Convert HTML mail to the text that its reader sees: line by line, without markup, styles and scripts."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from environment.mail_text import one_line

_HIDDEN = frozenset({"script", "style", "title"})
_LINES = frozenset({"address", "br", "dd", "div", "dt", "footer", "header", "li", "section", "tr"})
_MAX_QUOTES = 10
_PARAGRAPHS = frozenset(
    {"article", "blockquote", "dl", "form", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "ol", "p", "pre", "table", "ul"}
)
# html.parser takes quadratic time for unterminated tags and comments (minutes for 100 kB). It may raise on marked
# sections, which only Outlook writes. All of them are removed before parsing.
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NO_TAG = re.compile(r"<(?![^<>]*>)")


def html_to_text(html: str) -> str:
    """Return the text of `html`. Lines of a quoted reply (`blockquote`) begin with `> `, as in plain mail. Never
    raises.
    """
    reader = _Reader()
    reader.feed(_NO_TAG.sub("&lt;", _COMMENT.sub("", html)).replace("<![", "<! "))
    reader.close()
    return reader.text()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._lines: list[str] = []
        self._line: list[str] = []
        self._hidden: str | None = None
        self._as_written = False
        self._quotes = 0

    def text(self) -> str:
        self._break()
        return "\n".join(self._lines).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden = tag
        elif tag == "body":
            self._hidden = None  # a title that was never closed ends here
        elif tag in ("td", "th"):
            self._line.append(" ")
        self._block(tag)
        if tag == "blockquote":
            self._quotes += 1
        elif tag == "pre":
            self._as_written = True

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = None
        if tag != "br":
            self._block(tag)
        if tag == "blockquote":
            self._quotes = max(0, self._quotes - 1)
        elif tag == "pre":
            self._as_written = False

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        first, *others = data.split("\n") if self._as_written else [data]
        self._line.append(first)
        for line in others:
            self._break()
            self._line.append(line)

    def _block(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._break()
            if self._lines and self._lines[-1]:
                self._lines.append("")
        elif tag == "br" or (tag in _LINES and one_line("".join(self._line))):
            self._break()

    def _break(self) -> None:
        """End the line."""
        line = "".join(self._line)
        line = line.rstrip() if self._as_written else one_line(line)
        self._line.clear()
        if line or (self._lines and self._lines[-1]):
            self._lines.append("> " * min(self._quotes, _MAX_QUOTES) + line if line else "")
