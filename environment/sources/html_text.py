"""Convert HTML mail to the text that its reader sees: line by line, without markup, styles, scripts and hidden elements."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

from environment.mail_text import one_line

_NO_TEXT = frozenset({"script", "style", "template", "title"})
_DELETED = frozenset({"del", "s", "strike"})
_HIDING_STYLE = re.compile(
    r"(?<![\w-])(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|max-height\s*:\s*0(?:px|pt|em|%)?\s*(?:;|!|$)"
    r"|(?:text-indent|left|top)\s*:\s*-\d{3}|opacity\s*:\s*0(?:\.0*)?\s*(?:;|!|$))"
    r"|\A(?=.*overflow\s*:\s*hidden).*(?<![\w-])(?:height|width)\s*:\s*0(?:px)?\s*(?:;|!|$)",
    re.IGNORECASE,
)
_FONT = re.compile(r"(?<![\w-])font(?:-size)?\s*:([^;]*)", re.IGNORECASE)
_SIZE = re.compile(
    r"(?<![\w.#/-])(?:(?P<zero>0(?:\.0*)?)(?:[a-z]{2,4}|%)?|(?:\d+(?:\.\d+)?|\.\d+)(?:cm|in|mm|pc|pt|px|q|rem|vh|vw)"
    r"|initial|medium|(?:xx?-|xxx-)?(?:large|small))(?![\w.%-])",
    re.IGNORECASE,
)
"""A size that does not depend on that of the element around."""
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_CLOSED_BY = {
    "li": frozenset({"li", "p"}),
    **{
        tag: frozenset({"p"})
        for tag in ("address", "blockquote", "div", "dl", "form", "h1", "h2", "h3", "h4", "h5", "h6")
    },
    **{tag: frozenset({"p"}) for tag in ("hr", "ol", "p", "pre", "section", "table", "ul")},
    **{tag: frozenset({"dd", "dt", "p"}) for tag in ("dd", "dt")},
    **{tag: frozenset({"td", "th", "p"}) for tag in ("td", "th")},
    "tr": frozenset({"td", "th", "tr", "p"}),
    "option": frozenset({"option"}),
}
"""Tag -> open elements that its begin ends, as browsers do."""
_INLINE = frozenset({"a", "b", "big", "code", "em", "font", "i", "small", "span", "strong", "sub", "sup", "tt", "u"})
_INLINE_DEPTH = 8
_MAX_DEPTH = 512
"""An element that would be deeper ends the deepest one, as browsers do."""
_LINES = frozenset({"address", "br", "dd", "div", "dt", "footer", "header", "li", "section", "tr"})
_MAX_QUOTES = 10
_MAX_LINK_CHARS = 100
"""Longer targets are for machines, which count who clicked."""
_NOT_DIALLED = re.compile(r"[\s()./-]")
_PARAGRAPHS = frozenset(
    {"article", "blockquote", "dl", "form", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "ol", "p", "pre", "table", "ul"}
)
# Soft hyphens stay: they are part of a word. These only fill previews of mails.
_INVISIBLE = re.compile("[\u034f\u200b-\u200f\u2060-\u2064\ufeff]")
# html.parser takes quadratic time for unterminated tags and comments (minutes for 100 kB). It may raise on marked
# sections, which only Outlook writes. All of them are removed before parsing.
_COMMENT = re.compile(r"<!--(?:-?>|.*?(?:--!?>|\Z))", re.DOTALL)
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
        self._no_text: str | None = None
        self._open: list[tuple[str, bool, bool]] = []  # tag, whether it is hidden, and whether its letters have no size
        self._open_tags: Counter[str] = Counter()
        self._hiding = 0
        self._target = ""  # of the link that is open
        self._link_begin = 0  # where in the line its text begins
        self._raised = False
        self._as_written = False
        self._quotes = 0

    def text(self) -> str:
        self._break()
        return "\n".join(self._lines).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in _NO_TEXT:
            self._no_text = tag
        elif tag == "body":
            self._no_text = None  # a title that was never closed ends here
        elif tag in ("td", "th"):
            self._say(" ")
        self._close_before(tag)
        if tag not in _VOID:
            style = given.get("style") or ""
            hides = tag in _DELETED or "hidden" in given or bool(_HIDING_STYLE.search(style))
            if len(self._open) == _MAX_DEPTH:
                self._close()
            self._open.append((tag, hides, self._has_no_size(style)))
            self._open_tags[tag] += 1
            self._hiding += hides
        self._block(tag)
        if tag == "blockquote":
            self._quotes += 1
        elif tag == "pre":
            self._as_written = True
        elif tag == "img" and "hidden" not in given and not _HIDING_STYLE.search(given.get("style") or ""):
            self._say(given.get("alt") or "")
        elif tag == "a":
            self._end_link()
            self._target, self._link_begin = one_line(given.get("href") or ""), len(self._line)
        elif tag == "sup":
            self._raised = True

    def handle_endtag(self, tag: str) -> None:
        if tag == self._no_text:
            self._no_text = None
        if self._open_tags[tag]:
            while self._open[-1][0] != tag:
                self._close()
            self._close()
        if tag != "br":
            self._block(tag)
        if tag == "blockquote":
            self._quotes = max(0, self._quotes - 1)
        elif tag == "pre":
            self._as_written = False
        elif tag == "a":
            self._end_link()
        elif tag == "sup":
            self._raised = False

    def handle_data(self, data: str) -> None:
        if self._no_text or self._hiding or (self._open and self._open[-1][2]):
            return
        data = _INVISIBLE.sub("", data)
        if self._raised and data.lstrip("+-−")[:1].isdigit() and self._line and self._line[-1][-1:].isalnum():
            data = f"^{data}"  # 10 to the power of 6 is not 106
        first, *others = data.split("\n") if self._as_written else [data]
        self._line.append(first)
        for line in others:
            self._break()
            self._line.append(line)

    def _close(self) -> None:
        tag, hides, _ = self._open.pop()
        self._open_tags[tag] -= 1
        if not self._open_tags[tag]:
            del self._open_tags[tag]
        self._hiding -= hides

    def _has_no_size(self, style: str) -> bool:
        """Return whether the letters of a new element have size 0: layouts set it outside, and a size again inside."""
        declared = _FONT.findall(style)
        size = _SIZE.search(declared[-1]) if declared else None
        return bool(size["zero"]) if size else bool(self._open and self._open[-1][2])

    def _say(self, text: str) -> None:
        if not self._hiding:
            self._line.append(text)

    def _end_link(self) -> None:
        """Add the target of the open link after its text, unless the text shows it."""
        target, self._target = self._target, ""
        scheme, _, bare = target.partition(":")
        scheme = scheme.lower()
        if scheme in ("mailto", "tel"):
            target = bare = bare.partition("?")[0]
        elif scheme in ("http", "https") and bare.startswith("//"):
            bare = bare.removeprefix("//").removeprefix("www.").rstrip("/")
        else:
            return
        if self._hiding or len(target) > _MAX_LINK_CHARS:
            return
        text = one_line("".join(self._line[self._link_begin :])).lower()
        shown = _NOT_DIALLED.sub("", text) if scheme == "tel" else text
        if text and bare.lower() not in shown:
            self._line.append(f" <{target}>")

    def _close_before(self, tag: str) -> None:
        """End the elements that the begin of `tag` ends, with the inline elements within them."""
        closed = _CLOSED_BY.get(tag, frozenset())
        for depth, (other, *_) in enumerate(reversed(self._open[-_INLINE_DEPTH:]), start=1):
            if other in closed:
                for _ in range(depth):
                    self._close()
                return self._close_before(tag)
            if other not in _INLINE:
                return None
        return None

    def _block(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._break()
            if self._lines and self._lines[-1]:
                self._lines.append("")
        elif tag == "br" or (tag in _LINES and any(map(str.strip, self._line))):
            self._break()
        elif tag in _LINES:
            self._line.clear()

    def _break(self) -> None:
        """End the line."""
        line = "".join(self._line)
        line = line.rstrip() if self._as_written else one_line(line)
        self._line.clear()
        self._link_begin = 0
        if line or (self._lines and self._lines[-1]):
            self._lines.append("> " * min(self._quotes, _MAX_QUOTES) + line if line else "")
