"""How `--resume` finds a run, and its errors if settings, code or data of the run have changed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from commands import resume, train
from commands.data import DataRun
from commands.resume import find_resumable
from configs.gone import GONE
from configs.schema import DataConfig, TrainingConfig
from tasks import recorded_settings
from tasks.coding.rewards import reward_sources
from tasks.coding.settings import CodingSettings
from training.errors import BadInput
from training.record.experiment import Experiment
from training.scoring.scorer import scoring_sources

pytestmark = pytest.mark.service

DATA = DataRun(database=UUID(int=1), scenarios=UUID(int=2))
PREPARED = DataConfig(synthetic_train_inboxes=2)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(resume, "RUNS", tmp_path)
    monkeypatch.setattr(resume, "data_in_store", lambda trained_on, asked: DATA)
    monkeypatch.setattr(resume, "_data_settings", lambda data: PREPARED.model_dump(mode="json"))
    return tmp_path


def begun(runs: Path, name: str, **changes: Any) -> Experiment:
    """A run of these settings; a dict `recorded` replaces what was written down of them. `sources` are those of its task."""
    recorded, sources = changes.pop("recorded", {}), changes.pop("sources", {})
    config = TrainingConfig(experiment=name, **changes)
    experiment = Experiment(
        name=name,
        run=f"r-{name}",
        config=config.model_dump(mode="json") | recorded,
        git_revision=None,
        sources=scoring_sources(config) | sources,
        base_model="m",
        base_model_checksum="0" * 64,
        created=datetime(2026, 11, 21, tzinfo=UTC),
    )
    experiment.save(runs / experiment.run)
    return experiment


def refusal(name: str, *overrides: str) -> str:
    with pytest.raises(BadInput) as caught:
        find_resumable(name, None, list(overrides))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_name_is_enough_and_repeated_settings_are_no_change(runs: Path, tmp_path: Path) -> None:
    begun(runs, "long", max_steps=50, learning_rate=1e-5, blend_weights={"ruler": 1.0})
    file = tmp_path / "settings.yaml"
    file.write_text("trainer: {max_steps: 50, learning_rate: 1.0e-5, experiment: long}\nevaluation: {eval_limit: 7}\n")
    for words in ((None, []), (file, []), (None, ["synthetic_train_inboxes=2"])):
        found = find_resumable("long", *words)
        assert found.experiment.run == "r-long" and found.data == DATA
        assert (found.config.trainer.max_steps, found.config.data.synthetic_train_inboxes) == (50, 2)
    assert find_resumable("r-lo", file, []).config.evaluation.eval_limit == 7


def test_each_changed_setting_is_named_with_both_values(runs: Path) -> None:
    begun(runs, "long", max_steps=50)
    begun(runs, "long-2")
    noted = refusal("long", "max_steps=60", "stop_target=0.9", "emails=mine", "train_questions=mine")
    assert (
        'emails "synthetic" -> "mine", train_questions null -> "mine", max_steps 50 -> 60, stop_target null -> 0.9: '
        in noted
    )
    assert noted.endswith("--set experiment=long-3 instead of --resume")
    assert f'system_prompt null -> "{"a" * 59}...: resume' in refusal("long", f"system_prompt={'a' * 400}")
    assert refusal("long", "experiment=other", "seed=1").endswith("--set experiment=other instead of --resume")
    assert refusal("long", "experiment=long-2").endswith("--set experiment=long-3 instead of --resume")


def test_settings_added_or_removed_since_the_run(runs: Path) -> None:
    begun(runs, "old", recorded={"warm_up": 3})
    assert "warm_up 3 -> no setting any more" in refusal("old")
    experiment = begun(runs, "older")
    del experiment.config["health_seconds"]
    experiment.save(runs / experiment.run)
    assert find_resumable("older", None, []).config.trainer.health_seconds == TrainingConfig().health_seconds
    assert "health_seconds 60.0 -> 7.0" in refusal("older", "health_seconds=7")


def test_a_run_with_settings_of_earlier_versions_is_resumed(runs: Path) -> None:
    old = begun(runs, "old", max_steps=50)
    for path in (path.split(".")[1:] for path in GONE):
        part = old.config
        for above in path[:-1]:
            part = part.setdefault(above, {})
        part[path[-1]] = 7
    old.config["reads_in_vain"] = old.config.pop("max_wrong_reads") + 2
    old.save(runs / old.run)
    resumed = find_resumable("old", None, []).config
    assert (resumed.trainer.max_steps, resumed.agent.max_wrong_reads) == (50, 2)
    assert train._began_with(old, TrainingConfig(experiment="old", max_steps=50, max_wrong_reads=2))
    assert "max_steps 50 -> 60:" in refusal("old", "max_steps=60")


def test_a_resumed_run_says_which_of_its_settings_are_fixed_at_other_values(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(resume, "say", said.append)
    same = begun(runs, "same", recorded={"stall_seconds": 300.0})
    same.config["torch"] |= {"max_grad_norm": 1.0, "lora_alpha": 32.0}
    same.save(runs / same.run)
    find_resumable("same", None, [])
    assert not said
    other = begun(runs, "other", recorded={"stall_seconds": 60.0, "optional_arguments": True})
    other.config["torch"] |= {"max_grad_norm": 0.5, "lora_alpha": 8.0}
    other.save(runs / other.run)
    find_resumable("other", None, [])
    [line] = said
    assert line.startswith(
        "run r-other goes on with values that are fixed now: trainer.stall_seconds=60.0 (now 300.0), "
    )
    assert (
        "torch.max_grad_norm=0.5 (now 1.0)" in line
        and "torch.lora_alpha=8.0 (now 32)" in line
        and "agent.optional_arguments=true (now false)" in line
    )


def test_new_parts_of_a_setting_had_their_defaults(runs: Path) -> None:
    experiment = begun(runs, "old")
    for setting, part in (("torch", "max_running"), ("health", "disk_bytes"), ("verifiable_weights", "few_turns")):
        del experiment.config[setting][part]
    experiment.save(runs / experiment.run)
    assert find_resumable("old", None, []).config.trainer.torch.max_running == TrainingConfig().torch.max_running
    assert "torch {" in refusal("old", "torch.max_running=3")


def test_another_content_behind_the_same_setting_is_a_change(runs: Path, tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.txt"
    rubric.write_text("- be right\n")
    begun(runs, "judged", scoring="ruler", ruler_rubric=str(rubric))
    find_resumable("judged", None, [])
    rubric.write_text("- be brief\n")
    assert f"what ruler_rubric={rubric} names has another content" in refusal("judged")


def test_so_is_another_content_behind_a_setting_of_the_task(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = tmp_path / "own_rewards_to_resume.py"
    rewards.write_text("def own(result):\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    coding = CodingSettings(coding_reward="own_rewards_to_resume:own")
    recorded = recorded_settings("coding", coding.model_dump(mode="json"))
    begun(runs, "repairs", recorded=recorded, sources=reward_sources(coding.coding_reward))
    assert find_resumable("repairs", None, []).experiment.run == "r-repairs"
    rewards.write_text("def own(result):\n    return 0.5\n")
    assert "what coding_reward=own_rewards_to_resume:own names has another content" in refusal("repairs")


def test_a_run_of_mail_is_not_resumed_as_another_task(runs: Path) -> None:
    begun(runs, "mail")
    assert 'task "email-search" -> "workbench"' in refusal("mail", "task=workbench")


def test_a_run_of_other_code_continues_only_with_new_code(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "training_code", lambda: "today")
    begun(runs, "long").model_copy(update={"code": "then", "git_revision": "abc"}).save(runs / "r-long")
    noted = refusal("long")
    assert "began with other code (commit abc)" in noted and "--new-code" in noted
    assert noted.endswith("--set experiment=long-2 instead of --resume")
    found = find_resumable("long", None, [], new_code=True).experiment
    again = found.model_copy(
        update={"code": "today", "git_revision": "def", "created": datetime(2026, 11, 23, tzinfo=UTC)}
    )
    again.resuming(runs / "r-long").save(runs / "r-long")
    kept = find_resumable("long", None, []).experiment
    assert (kept.code, kept.git_revision, kept.created) == ("then", "abc", found.created), (
        "what it began with stays recorded"
    )
    assert [(start.code, start.git_revision) for start in kept.resumptions] == [("today", "def")]


def test_changed_code_is_another_run_and_an_unfinished_old_one_is_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "RUNS", runs)
    said: list[str] = []
    monkeypatch.setattr(train, "say", said.append)
    keys = []
    for code in ("then", "today"):
        monkeypatch.setattr(train, "training_code", lambda code=code: code)
        keys.append(train.run_key(TrainingConfig(), DATA, None))
    assert keys[0] != keys[1]
    old = begun(runs, "long").model_copy(
        update={"code": "then", "data": {"a": str(DATA.database), "b": str(DATA.scenarios)}}
    )
    for stopped in ("max_steps=2 reached", None):
        old.model_copy(update={"stopped": stopped}).save(runs / "r-long")
        train._say_if_begun_otherwise(TrainingConfig(experiment="long"), DATA, None, "r2")
    assert "run r-long of 2026-11-21" in said[0] and "is finished and began with other code" in said[0]
    assert "--resume" not in said[0] and "--resume r-long --new-code" in said[1]


def test_a_setting_that_the_unfinished_run_did_not_have_does_not_hide_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "RUNS", runs)
    said: list[str] = []
    monkeypatch.setattr(train, "say", said.append)
    versions = {"a": str(DATA.database), "b": str(DATA.scenarios)}
    old = begun(runs, "long").model_copy(update={"code": "then", "data": versions})
    del old.config["health_seconds"], old.config["torch"]["max_running"]
    old.save(runs / "r-long")
    train._say_if_begun_otherwise(TrainingConfig(experiment="long", health_seconds=7), DATA, None, "r2")
    assert not said
    train._say_if_begun_otherwise(TrainingConfig(experiment="long"), DATA, None, "r2")
    assert "--resume r-long --new-code" in said[0]
    old.model_copy(update={"config": {**old.config, "warm_up": 3}}).save(runs / "r-long")
    train._say_if_begun_otherwise(TrainingConfig(experiment="long"), DATA, None, "r2")
    assert len(said) == 1, "--resume would refuse a setting that is none any more"


def test_other_base_weights_are_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(runs, "long")
    files = SimpleNamespace(id="m", checksum="0" * 64, content=lambda: "1" * 64)
    monkeypatch.setattr(resume, "resolve_base_model", lambda *_, **__: files)
    resumable = find_resumable("long", None, [])
    resumable.require_same_base()
    files.checksum = "f" * 64
    with pytest.raises(BadInput, match="other files of m .weights.: .*--set experiment=long-2 instead of --resume"):
        resumable.require_same_base()


def test_a_run_that_is_in_the_artifact_store_only(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(runs, "here", max_steps=5)
    elsewhere = begun(tmp_path / "elsewhere", "there", max_steps=50)
    monkeypatch.setattr(resume, "experiments_elsewhere", lambda: [elsewhere, Experiment.load(runs / "r-here")])
    found = find_resumable("there", None, [])
    assert (found.folder, found.config.trainer.max_steps) == (None, 50)
    found.require_same_base()
    assert find_resumable("here", None, []).folder == runs / "r-here"
    assert refusal("there", "seed=1", "experiment=here").endswith("--set experiment=there-2 instead of --resume")


def test_known_runs_are_listed(runs: Path) -> None:
    assert "there is no run 'first'; no run has been recorded yet: --pipeline train records one" in refusal("first")
    begun(runs, "long")
    assert "there is no run 'first'; known runs: long (r-long)" in refusal("first")
