"""The description of a run, written next to its history when it starts, to identify and compare runs later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from training.errors import BadInput
from training.files import write_text

EXPERIMENT_FILE = "experiment.json"
_LISTED = 10
"""Known runs, the newest, that an error about an unknown name lists."""
MAIL_TASK = "email-search"
Where = TypeVar("Where")
"""Location of a run: its folder, or None."""


class Resumption(BaseModel):
    """A restart of an interrupted run."""

    at: datetime
    git_revision: str | None
    code: str | None


class Experiment(BaseModel):
    """A training run's name and everything that it depends on."""

    name: str
    """Chosen by the user; several runs, for example with other seeds, may share it."""
    run: str
    """Key of the run: the same settings, data and code have the same key."""
    config: dict[str, Any]
    """All settings of the training."""
    git_revision: str | None
    """Commit of the code, with `+changes` when files differed from it; `None` outside a repository."""
    code: str | None = None
    """SHA-256 of the code that the run began with; `None` for runs that did not record it."""
    data: dict[str, str] = Field(default_factory=dict)
    """Data artifact -> id of its version."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Setting that names a file or a function -> sha256 of its content when the run began."""
    seeds: dict[str, int] = Field(default_factory=dict)
    base_model: str
    base_model_checksum: str
    base_model_content: str | None = None
    """Checksum of weights, tokenizer, chat template and configuration; `None` for runs that did not record it."""
    created: datetime
    resumptions: tuple[Resumption, ...] = ()
    stopped: str | None = None
    """Reason why the run stopped; `None` while it is unfinished."""

    @property
    def config_hash(self) -> str:
        """Twelve hexadecimal digits of the settings without name and seed: equal for runs that differ by the seed only."""
        settings = {key: value for key, value in self.config.items() if key not in ("experiment", "seed")}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def task(self) -> str:
        """The task that was trained; runs of the e-mail agent do not record it."""
        return str(self.config.get("task", MAIL_TASK))

    @property
    def latest_code(self) -> str | None:
        """SHA-256 of the code that the run was last started with."""
        return self.resumptions[-1].code if self.resumptions else self.code

    def began_on(self, checksum: str, content: str | None) -> bool:
        """Return whether the run began on this base model, as far as it recorded it."""
        recorded = self.base_model_content is not None and content is not None
        return self.base_model_checksum == checksum and (not recorded or self.base_model_content == content)

    def resuming(self, folder: Path, published: Sequence[Experiment] = ()) -> Experiment:
        """Return this experiment as a continuation of the one in `folder`, which keeps its original description.

        Raises:
            BadInput: a run of the same key next to `folder`, or one of `published`, began on another base model. The numbers of
                scheduled runs are no keys: another task's run may have the same.
        """
        here = (Experiment.load(file.parent) for file in folder.parent.glob(f"{self.run}*/{EXPERIMENT_FILE}"))
        for begun in () if self.run.isdigit() else (*here, *published):
            if begun.run == self.run and not begun.began_on(self.base_model_checksum, self.base_model_content):
                raise BadInput(
                    f"run {self.run} began on other files of {begun.base_model} (weights, tokenizer, chat template or "
                    "configuration): restore those, or start a new run (--no-cache, or another experiment)"
                )
        if not (folder / EXPERIMENT_FILE).exists():
            return self
        begun = Experiment.load(folder)
        again = Resumption(at=self.created, git_revision=self.git_revision, code=self.code)
        first = {"created": begun.created, "git_revision": begun.git_revision, "code": begun.code}
        return self.model_copy(update={**first, "resumptions": (*begun.resumptions, again)})

    def save(self, folder: Path) -> None:
        """Write `experiment.json`, all or nothing."""
        write_text(folder / EXPERIMENT_FILE, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Experiment:
        """Load the experiment in `folder`. Raises BadInput if it is missing or damaged."""
        file = folder / EXPERIMENT_FILE
        try:
            return cls.parse(file.read_bytes(), str(file))
        except FileNotFoundError:
            raise BadInput(f"{folder} holds no run: {EXPERIMENT_FILE} is missing") from None

    @classmethod
    def parse(cls, content: bytes, where: str) -> Experiment:
        """Parse what `save` wrote. Raises BadInput, which names `where` it comes from, if it is damaged."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise BadInput(f"{where} is damaged: {error.errors()[0]['msg']}") from None


def known_runs(runs: Path) -> list[tuple[Experiment, Path]]:
    """Return every run below `runs` with its folder, oldest first. Raises BadInput if one is damaged."""
    return sorted(((Experiment.load(file.parent), file.parent) for file in runs.glob(f"*/{EXPERIMENT_FILE}")), key=_age)


def find_runs(known: Sequence[tuple[Experiment, Where]], names: list[str]) -> list[tuple[Experiment, Where]]:
    """Return the known runs with these names. A name is that of an experiment, or the key of a run or its first letters.

    The first letters count only where nothing has exactly that name.

    Raises:
        BadInput: no name is given, or a name fits no run or several.
    """
    listed = [e.run if e.name == e.run else f"{e.name} ({e.run})" for e, _ in known[-_LISTED:]]
    older = f" and {len(known) - _LISTED} older ones" if len(known) > _LISTED else ""
    there = (
        f"known runs: {', '.join(listed)}{older}"
        if known
        else "no run has been recorded yet: --pipeline train records one"
    )
    if not names:
        raise BadInput(f"name a run; {there}")
    found = []
    for name in names:
        fitting = [(e, folder) for e, folder in known if name in (e.name, e.run)]
        if name and not fitting:  # every key begins with the empty name of an unset variable
            fitting = [(e, folder) for e, folder in known if e.run.startswith(name)]
        if not fitting:
            raise BadInput(f"there is no run {name!r}; {there}")
        if len(fitting) > 1:
            raise BadInput(f"{name!r} names several runs: {', '.join(e.run for e, _ in fitting)}; name one of them")
        found += fitting
    return found


def _age(found: tuple[Experiment, object]) -> tuple[datetime, str]:
    return found[0].created, found[0].run
