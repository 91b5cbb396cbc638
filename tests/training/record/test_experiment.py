"""The stored description of a run, and finding a run by it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from training.errors import BadInput
from training.record.experiment import Experiment, find_runs, known_runs


def experiment(run: str, name: str | None = None, **settings: Any) -> Experiment:
    return Experiment(
        name=name or run,
        run=run,
        config={"seed": 0, "experiment": name, "max_steps": 5, **settings},
        git_revision="abc",
        base_model="owner/model",
        base_model_checksum="0" * 64,
        created=datetime(2026, 11, 21, tzinfo=UTC),
    )


def test_runs_that_differ_in_luck_and_name_alone_have_the_same_settings() -> None:
    one = experiment("r1", "a")
    assert (
        one.config_hash == experiment("r2", "b", seed=7).config_hash != experiment("r3", "a", max_steps=6).config_hash
    )
    assert len(one.config_hash) == 12


def test_runs_are_found_by_name_key_and_its_first_letters(tmp_path: Path) -> None:
    for one in (
        experiment("r12345", "long"),
        experiment("r19999"),
        experiment("r2", "seeds"),
        experiment("r3", "seeds", seed=1),
    ):
        one.save(tmp_path / f"{one.run}-base")
    found = find_runs(known_runs(tmp_path), ["long", "r199", "r2"])
    assert [(e.run, folder.name) for e, folder in found] == [
        ("r12345", "r12345-base"),
        ("r19999", "r19999-base"),
        ("r2", "r2-base"),
    ]
    for names, named in (
        (["r1"], "several runs: r12345, r19999"),
        (["seeds"], "r2, r3"),
        (["no"], "no run 'no'"),
        ([], "name a run; known runs: "),
    ):
        with pytest.raises(BadInput, match=named):
            find_runs(known_runs(tmp_path), names)


def test_a_whole_key_names_one_run_and_not_those_that_begin_with_it(tmp_path: Path) -> None:
    for run, name in (("1", None), ("10", None), ("11", None), ("r7", "1x"), ("1x9", None)):
        experiment(run, name).save(tmp_path / f"{run}-base")
    known = known_runs(tmp_path)
    assert [e.run for e, _ in find_runs(known, ["1", "10", "1x"])] == ["1", "10", "r7"]
    with pytest.raises(BadInput, match="there is no run '12'"):
        find_runs(known, ["12"])


def test_an_unknown_name_lists_the_newest_runs_only(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"r{number}-base").mkdir()
        experiment(f"r{number}").save(tmp_path / f"r{number}-base")
    known = known_runs(tmp_path)
    with pytest.raises(BadInput, match="there is no run ''; known runs: "):
        find_runs(known[:1], [""])
    with pytest.raises(BadInput) as refused:
        find_runs(known, ["no"])
    assert str(refused.value).endswith(f"known runs: {', '.join(e.run for e, _ in known[2:])} and 2 older ones")


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    experiment("r1").save(tmp_path)
    assert Experiment.load(tmp_path) == experiment("r1")
    (tmp_path / "experiment.json").write_text("{")
    with pytest.raises(BadInput, match="experiment.json is damaged"):
        Experiment.load(tmp_path)
    with pytest.raises(BadInput, match="holds no run"):
        Experiment.load(tmp_path / "absent")
