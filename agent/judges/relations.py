"""How the parts of an answer stand to each other, compared with those of the reference: order, rows, agents."""

from __future__ import annotations

from itertools import pairwise, product

from agent.judges.facts import NEGATIONS, Fact, ParsedText, Word


def exchanged(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> str | None:
    """Return why the parts of the reference are in another relation in the answer, or None.

    Parts of one list item, or of one row of a table, must not be mixed with those of another. Two parts of one kind with a
    word between them must keep their order, and so must the words of a name of three or more.
    """
    parts = [part for part in ours.tokens if isinstance(part, Fact) or part.can_name or part.folded in NEGATIONS]
    agents = _agents(ours), _agents(theirs)
    passive = set() if all(agents) else set().union(*agents)
    order: list[int] = []
    where: dict[int, int] = {}
    for token in theirs.tokens:
        same = [place for place, part in enumerate(parts) if _same(part, token)]
        same.sort(key=lambda place: (place in order, not order or parts[place].item != parts[order[-1]].item))
        order += same[:1]
        where |= dict.fromkeys(same[:1], token.item)
    if reason := _mixed(parts, order, where):
        return reason
    joined = {
        place
        for place, (first, second) in enumerate(pairwise(parts), start=1)
        if kind_of(first) == kind_of(second) == "name" and second.span[0] - first.span[1] == 1
        if where.get(place) == where.get(place - 1)
    }
    last: dict[tuple[int, str], int] = {}
    for place, part in enumerate(parts):
        negates = isinstance(part, Word) and part.folded in NEGATIONS and {place, place + 1} <= set(order)
        if negates and order.index(place + 1) != order.index(place) + 1:
            return f"{parts[place + 1].text!r} is not what the answer negates"
        if isinstance(part, Word) and not part.capitalised and part.stem in asked.stems:
            continue
        before = last.get((part.item, kind_of(part)))
        last[part.item, kind_of(part)] = place
        if before is None or not {before, place} <= set(order):
            continue
        apart = place - before > 1 or ours.tokens.index(part) - ours.tokens.index(parts[before]) > 1
        long_name = place in joined and bool(joined & {place - 1, place + 1})
        turned_round = not long_name and bool(passive & {part.text, parts[before].text})
        in_order = order.index(before) <= len(order) - 1 - order[::-1].index(place)
        if (apart or long_name or kind_of(part) == "word") and in_order == turned_round:
            return f"{part.text!r} is exchanged with {parts[before].text!r}"
    return None


def _mixed(parts: list[Fact | Word], order: list[int], where: dict[int, int]) -> str | None:
    """Return why parts of one item or row of the reference are mixed with those of another in the answer, or None.

    `order` has the places of the answer's parts in the reference, `where` the item of the answer that has each of them.
    """
    for group, least in (([part.item for part in parts], 1), ([part.row for part in parts], 2)):
        kinds: dict[int, set[str]] = {}
        for part, number in zip(parts, group, strict=True):
            kinds.setdefault(number, set()).add(kind_of(part))
        for number, its in kinds.items():
            own = [place for place, part in enumerate(order) if group[part] == number]
            between = order[own[0] : own[-1]] if own and len(its) >= least else []
            if mixed := [parts[part] for part in between if group[part] != number and kind_of(parts[part]) in its]:
                return f"{mixed[0].text!r} belongs to another part of the reference"
    stated = {(parts[place].item, kind_of(parts[place])) for place in order}
    for item in set(where.values()):
        here = {(parts[place].item, kind_of(parts[place])) for place, other in where.items() if other == item}
        needed = product({own for own, _ in here}, {kind for _, kind in here} - {"word"})
        if amiss := sorted(stated.intersection(needed) - here):
            return f"the answer puts a {amiss[0][1]} in place of another"
    return None


def _agents(text: ParsedText) -> set[str]:
    """Return the names after "by"."""
    agents: set[str] = set()
    for token, before in zip(text.tokens[1:], text.tokens, strict=False):
        if isinstance(token, Word) and token.capitalised and (before.text.lower() == "by" or before.text in agents):
            agents.add(token.text)
    return agents


def _same(part: Fact | Word, token: Fact | Word) -> bool:
    if isinstance(part, Fact) or isinstance(token, Fact):
        return isinstance(part, Fact) and isinstance(token, Fact) and part.agrees(token)
    return part.stem == token.stem


def kind_of(part: Fact | Word) -> str:
    return part.kind if isinstance(part, Fact) else "name" if part.capitalised else "word"
