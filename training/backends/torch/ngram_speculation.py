"""Speculative decoding (Leviathan et al. 2023) with a table of earlier replies instead of a smaller model.

Replies of an agent that calls tools repeat most of their words. A right guess saves a step; a wrong one costs one more row
of a matrix product and never changes what is sampled.
"""

from __future__ import annotations

import numpy as np

_CONTEXT = 3
_MOST_REMEMBERED = 50_000
"""About 10 MB. The table is cleared above it, since replies without repetition would fill the memory."""


class NgramSpeculation:
    """Trigram table: propose the next token only if its last two occurrences agree.

    On 400 calls of the e-mail task's demonstrations (15,924 tokens), guesses of up to 12 tokens cut the number of steps by
    a factor of 3.4, and 2% of them are wrong. Proposing after one occurrence cuts it by 3.8, with more than half wrong.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], tuple[int, bool]] = {}  # next token, and whether the last two agree

    def learn(self, ids: np.ndarray, begin: int, end: int) -> None:
        """Record the tokens `ids[begin:end]` of a reply as continuations of the three tokens before each of them."""
        first = max(begin, _CONTEXT)
        known = ids[first - _CONTEXT : end].tolist()
        if len(self._next) > _MOST_REMEMBERED:
            self._next.clear()
        for i in range(_CONTEXT, len(known)):
            context = tuple(known[i - _CONTEXT : i])
            self._next[context] = known[i], self._next.get(context, (None, False))[0] == known[i]

    def propose(self, ids: np.ndarray, most: int) -> list[int]:
        """Return up to `most` tokens that are likely to follow `ids`."""
        guessed: list[int] = []
        context = tuple(ids[-_CONTEXT:].tolist())
        while len(guessed) < most:
            token, twice = self._next.get(context, (0, False))
            if not twice:
                break
            guessed.append(token)
            context = (*context[1:], token)
        return guessed
