"""Names and values for the synthetic company, made up from the word lists in `synthetic_text.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Literal

Split = Literal["train", "test"]

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
SIBLING_NAME = 0.25  # share of names that repeat part of an earlier one: a first name, a project


@cache
def text() -> dict[str, Any]:
    """Return the company's templates and word lists, parsed once."""
    return tomllib.loads(Path(__file__).with_name("synthetic_text.toml").read_text(encoding="utf-8"))


@cache
def split_names(split: Split) -> dict[str, list[str]]:
    """Return the words that names in inboxes of `split` are made of; no two-word name can occur in both splits."""
    names, test = text()["names"], split == "test"

    def share(words: Sequence[str]) -> list[str]:
        return [word for i, word in enumerate(words) if (i % 3 == 0) == test]

    owners = [stem + end for stem in names["owner_last_stem"] for end in names["owner_last_end"]]
    return {
        "project_second": share(names["project_second"]),
        "brand": share(names["brand"]),
        "person_last": share(names["person_last"]),
        "owner_last": share(owners),
    }


def day_month(day: date) -> str:
    """`14 March`, whatever the locale."""
    return f"{day.day} {MONTHS[day.month - 1]}"


class Names:
    """Draws names that are new to one inbox, and values of every sort that its mails state."""

    def __init__(self, rng: Random, split: Split, projects: int) -> None:
        self.rng = rng
        self.split: Split = split
        self._taken: set[str] = set()
        self._first_names: list[str] = []
        self._used_projects: dict[str, list[str]] = {}
        self._phones = cycle(rng.sample([f"555-01{n:02d}" for n in range(100)], 100))
        self.projects = [self._project() for _ in range(projects)]

    def _unused(self, make: Callable[[], str]) -> str:
        name = make()
        while name in self._taken:
            name = make()
        self._taken.add(name)
        return name

    def person(self) -> str:
        """Return a first and last name. Every fourth name repeats an earlier first name."""

        def make() -> str:
            sibling = self._first_names and self.rng.random() < SIBLING_NAME
            first = self.rng.choice(self._first_names if sibling else text()["names"]["person_first"])
            return f"{first} {self.rng.choice(split_names(self.split)['person_last'])}"

        name = self._unused(make)
        self._first_names.append(name.partition(" ")[0])
        return name

    def _project(self) -> str:
        pool = split_names(self.split)["project_second"]
        return self._unused(lambda: f"{self.rng.choice(text()['names']['project_first'])} {self.rng.choice(pool)}")

    def firm(self, kinds: str) -> str:
        """Return a brand followed by a word of the list `kinds`: a place, company or team."""
        pool = split_names(self.split)["brand"]
        return self._unused(lambda: f"{self.rng.choice(pool)} {self.rng.choice(text()['names'][kinds])}")

    def value(self, sort: str, day: date, avoid: Sequence[str] = ()) -> str:
        """Return a value as mails write it, none of those in `avoid`; dates come one to ten weeks after `day`."""
        value = self._any_value(sort, day)
        while value in avoid:
            value = self._any_value(sort, day)
        return value

    def _any_value(self, sort: str, day: date) -> str:
        rng = self.rng
        match sort:
            case "time":
                return f"{rng.randrange(8, 18):02d}:{rng.choice((0, 10, 15, 20, 30, 40, 45, 50)):02d}"
            case "room":
                return f"Room {rng.randrange(1, 7)}{rng.choice('ABCDEFGH')}"
            case "date":
                return day_month(day + timedelta(days=rng.randrange(8, 75)))
            case "amount":
                return f"${rng.randrange(120, 970) * 100:,}"
            case "bill":
                return f"${rng.randrange(105, 990) * 10:,}"
            case "phone":
                return next(self._phones)
            case "floor":
                return f"Floor {rng.randrange(1, 15)}"
            case "badge":
                return f"B-{rng.randrange(1000, 10000)}"
            case "bay":
                return f"Bay {rng.randrange(11, 100)}"
            case "person":
                return self.person()
            case "vendor" | "caterer":
                return self.firm(f"{sort}_trade")
            case "venue" | "hotel" | "team":
                return self.firm(f"{sort}_kind")
            case _:
                raise KeyError(sort)

    def entity(self, sort: str) -> str:
        """Return a new subject of a fact. Projects repeat with other aspects, so that names resemble each other."""
        if sort in ("contact", "newcomer"):
            return self.person()
        if sort == "client":
            return self.firm("client_trade")
        used = self._used_projects.setdefault(sort, [])
        projects = used if used and self.rng.random() < SIBLING_NAME else self.projects
        for pool in (projects, self.projects):
            free = [f"{p} {a}" for p in pool for a in text()["aspects"][sort] if f"{p} {a}" not in self._taken]
            if free:
                break
        entity = self.rng.choice(free)
        self._taken.add(entity)
        if (project := " ".join(entity.split()[:2])) not in used:
            used.append(project)
        return entity
