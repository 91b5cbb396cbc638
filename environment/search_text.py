"""Words: what a text is about, for search and for the policies that do not learn.

One definition serves everywhere, so that "all content words of the question" means the same to the database, to the
baseline and to whoever measures search.
"""

from __future__ import annotations

import re

# A word is a run of letters and digits, as FTS5's unicode61 tokenizer has it. Inside a word, a single . ' @ & or - is
# kept for the reader ("555-0173", "o'neil", "4b"); search splits it again and looks for the parts side by side.
_WORD = re.compile(r"[^\W_]+(?:[-.'’@&][^\W_]+)*")
_PART = re.compile(r"[^\W_]+")

ELLIPSIS = "…"

# A number as people write it: 555-0173, $31,000, 10:30am, 4.5%. To search it is several words.
_NUMBER = re.compile(r"[$€£]?[^\W_]*\d(?:[-.,:/]?\d)*[^\W_]*%?")
_NUMBER_REACH = 32

# Words that say how a question is asked, not what it is about. "may" is absent on purpose: it is also a month.
_STOP_WORDS = """
    a about above after again against all also am an and any anyone anything are around as at be became because been
    before being below between both but by can cannot could did do does doing done down during each either else ever
    every few for from further get gets give given gives go goes going got had has have having he her here hers herself
    him himself his how however i if in into is it its itself just know let like made make many me mean more most much
    must my myself need no nor not now of off on once one only or other our ours ourselves out over own please s said
    same say says shall she should so some such t tell than that the their theirs them themselves then there these they
    this those through to too under until up upon us very was we were what whatever when where whether which while who
    whom whose why will with within without would yes you your yours yourself yourselves
    aren't can't couldn't didn't doesn't don't hadn't hasn't haven't he's how's i'd i'll i'm i've isn't it's let's
    she's that's there's they're wasn't we'd we'll we're we've weren't what's when's where's who's won't wouldn't you'd
    you'll you're you've
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def words(text: str) -> list[str]:
    """The words of `text` in lower case and in order, repeated ones included. Each word is letters and digits only."""
    return _PART.findall(text.lower())


def content_words(text: str) -> list[str]:
    """The words that `text` is about: lower case, in order, each once, without stop and question words.

    Forms such as `4b`, `o'neil` and `555-0173` stay whole; a possessive `'s` is cut off.
    """
    found: dict[str, None] = {}
    for match in _WORD.finditer(text.lower()):
        word = match.group().replace("’", "'")
        if word in STOP_WORDS:
            continue
        word = word.removesuffix("'s")
        if word and word not in STOP_WORDS:
            found[word] = None
    return list(found)


def number_across(text: str, position: int) -> tuple[int, int]:
    """Start and end of the number that `position` falls inside of; `position` twice where it falls inside of none.

    Numbers are followed for 32 characters to either side.
    """
    for match in _NUMBER.finditer(text, max(0, position - _NUMBER_REACH), position + _NUMBER_REACH):
        if match.start() < position < match.end():
            return match.span()
    return position, position


def with_whole_numbers(passage: str, text: str) -> str:
    """`passage`, cut out of `text` with an ellipsis at each cut, lengthened where a cut goes through a number.

    A passage that occurs in `text` several times, with different numbers around it, stays as it is.
    """
    piece = passage.removeprefix(ELLIPSIS).removesuffix(ELLIPSIS)
    if not (piece[:1].isdigit() or piece[-1:].isdigit()):
        return passage
    rests = set()
    for found in re.finditer(re.escape(piece), text):
        first, last = number_across(text, found.start())[0], number_across(text, found.end())[1]
        rests.add((text[first : found.start()], text[found.end() : last]))
    if len(rests) != 1:
        return passage
    before, after = rests.pop()
    head = ELLIPSIS if passage.startswith(ELLIPSIS) else ""
    tail = ELLIPSIS if passage.endswith(ELLIPSIS) else ""
    return f"{head}{before}{piece}{after}{tail}"
