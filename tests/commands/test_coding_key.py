"""The key of a coding run: what is another run, and what is the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.tasks import identity_of, run_key
from configs.schema import TrainingConfig
from tasks.coding.built_in import built_in_scenarios
from tasks.coding.plugin import PLUGIN
from tasks.coding.rewards import reward_sources
from tasks.coding.settings import CodingSettings

pytestmark = pytest.mark.service


def key(training: TrainingConfig, coding: CodingSettings, base: str | None, nonce: str = "") -> str:
    return run_key(PLUGIN, training, coding, identity_of(PLUGIN, coding, PLUGIN.scenarios(coding)), base, nonce)


def test_another_rubric_or_reward_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    rubric, rewards = tmp_path / "rubric.txt", tmp_path / "own_coding_rewards.py"
    rubric.write_text("- repair\n")
    rewards.write_text("def own(result):\n    return 1.0\n")
    training = TrainingConfig(ruler_rubric=str(rubric))
    coding = CodingSettings(coding_reward="own_coding_rewards:own")
    keys = [key(training, coding, None)]
    assert key(training, coding, None) == keys[0]
    for file in (rubric, rewards):
        file.write_text(file.read_text() + "\n# another content\n")
        keys.append(key(training, coding, None))
    assert len(set(keys)) == 3
    assert list(reward_sources("own_coding_rewards:own")) == ["coding_reward"] and reward_sources("all_tests") == {}


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_corrected_bug_of_the_same_id_is_trained_and_evaluated_anew(split: str) -> None:
    coding, bugs = CodingSettings(bugs="folder"), built_in_scenarios(train=2, test=2, seed=1)
    number = next(number for number, bug in enumerate(bugs) if bug.split == split)
    corrected = [*bugs]
    corrected[number] = bugs[number].model_copy(update={"problem": "said better"})
    trained, evaluated = PLUGIN.identity(coding, bugs), PLUGIN.evaluation_identity(coding, bugs)
    assert (PLUGIN.identity(coding, corrected) != trained) == (split == "train")
    assert PLUGIN.evaluation_identity(coding, corrected) != evaluated


def test_where_a_run_is_and_how_it_is_called_is_no_part_of_it() -> None:
    training, coding = TrainingConfig(), CodingSettings()
    elsewhere = coding.model_copy(update={"sandbox_url": "http://sandbox", "model_name": "m", "coding_test_size": 5})
    assert key(training, coding, None) == key(training, elsewhere, None) != key(training, coding, None, "again")
