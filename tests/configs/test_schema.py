"""Configuration files and overrides: accepted values, and the error for each mistake."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.config import SECTIONS, Config, is_setting
from configs.description import describe
from configs.gone import FIXED, GONE, RENAMED, gone
from configs.loading import explicit_values, load_config, require_source
from configs.prompt import with_prompt
from configs.schema import ConfigError, EvaluationConfig, TrainingConfig
from training.errors import BadInput

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.name)
def test_every_file_of_the_project_is_valid(file: Path) -> None:
    values = explicit_values(file, [])
    config = load_config(file, [])
    assert values, "an empty file says nothing"
    for section in values.keys() & SECTIONS.keys():
        for key, value in values[section].items():
            if not isinstance(value, dict):
                loaded = getattr(getattr(config, section), key)
                assert (list(loaded) if isinstance(loaded, tuple) else loaded) == value


@pytest.mark.parametrize("name", ["training_cpu", "data_prep", "evaluation", "deployment"])
def test_files_of_the_default_profile_repeat_the_defaults(name: str) -> None:
    assert load_config(CONFIGS / f"{name}.yaml", []) == Config()


@pytest.mark.parametrize("name", ["training_local.yaml", "training_k8s.yaml", "enron_local.yaml", "enron_laptop.yaml"])
def test_profiles_of_real_mail_keep_enough_questions_to_train_on(name: str) -> None:
    """Validation once left two of fifty, and every step asked those two."""
    config = load_config(CONFIGS / name, [])
    data, training = config.data, config.for_training()
    assert data.train_limit is not None and data.test_limit is not None
    left = data.train_limit - training.validation_questions
    assert left >= max(training.demonstrations, 10 * training.groups_per_step)
    assert data.test_limit >= (config.evaluation.eval_limit or 0)


def test_a_paid_judge_of_answers_has_a_cost_to_limit() -> None:
    assert load_config(None, ["judge=llm", "stop_cost=5"]).for_training().stop_cost == 5


def test_gpu_profile_has_the_published_parameters() -> None:
    config = load_config(CONFIGS / "training_local.yaml", []).trainer
    assert config.base_model == "Qwen/Qwen2.5-7B-Instruct"
    assert (config.groups_per_step, config.rollouts_per_group, config.max_steps) == (2, 4, 20)
    assert config.learning_rate == 1e-5
    assert (config.scoring, config.ruler_model) == ("ruler", "openai/o4-mini")


def test_overrides_win_over_the_file_and_are_typed() -> None:
    config = load_config(CONFIGS / "training_cpu.yaml", ["max_steps=3", "learning_rate=1e-5", "lora_layers=null"])
    assert (config.trainer.max_steps, config.trainer.learning_rate, config.trainer.lora_layers) == (3, 1e-5, None)
    assert config.for_training().max_steps == 3


def test_parts_of_a_setting_come_from_file_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "trainer: {torch: {threads: 2, kv_cache_tokens: 4096}, health: {disk_bytes: 1}}\n"
        "agent: {verifiable_weights: {few_turns: 0.5}}\n"
    )
    overrides = ["torch.threads=3", "verifiable_weights.partial=0", "epochs=3", "log_sample_rate=0.1", "clip_high=0.28"]
    training = load_config(file, overrides).for_training()
    assert (training.torch.threads, training.torch.kv_cache_tokens, training.torch.max_running) == (3, 4096, 48)
    assert (training.verifiable_weights.few_turns, training.verifiable_weights.partial) == (0.5, 0.0)
    assert (training.health.disk_bytes, training.epochs, training.log_sample_rate, training.clip_high) == (
        1,
        3,
        0.1,
        0.28,
    )
    begun_with = training.model_dump(mode="json")
    assert load_config(None, ["torch.threads=3"], base=begun_with).for_training() == training
    assert TrainingConfig.model_validate(training.model_dump(mode="json")) == training


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learning_rat=1", ["unknown key 'learning_rat'", "'trainer.learning_rate'"]),
        ("learning_rate=7", ["trainer.learning_rate=7", "<= 1", "> 0"]),
        ("max_steps=-1", ["max_steps", ">= 0"]),
        ("max_steps=many", ["max_steps", "integer"]),
        ("decisions=query", ["trainer.decisions='query': expected a list, such as [a, b]"]),
        ("torch=5", ["trainer.torch=5: expected its parts"]),
        ("task=nope", ["task='nope': not valid; it is the task to train: email-search, coding"]),
        ("experiment=a/b", ["'a/b': not valid; it is the name of the run, of at most 64 letters"]),
        ("max_steps_off_policy=-1", ["max_steps_off_policy", ">= 0"]),
        ("max_steps_off_policy=0.5", ["max_steps_off_policy", "integer"]),
        ("backend=vllm", ["backend", "torch"]),
        ("scale_rewards=true", ["scale_rewards=True", "'group' or 'batch'"]),
        ("learning_rate_schedule=linear", ["learning_rate_schedule", "'constant' or 'cosine'"]),
        ("validate_every=-1", ["validate_every", ">= 0"]),
        ("validation_metric=f1", ["validation_metric", "accuracy"]),
        ("stop_seconds=0", ["stop_seconds", "> 0"]),
        ("max_steps", ["key=value"]),
        ("data_seed=2024-13-45", ["data_seed", "is not a YAML value"]),
        ("train_questions=somewhere", ["train_questions", "synthetic"]),
        ("unlabelled_questions=true", ["unlabelled_questions", "no effect on the questions of the synthetic company"]),
        ("train_limit=50", ["data.train_limit: has", "no effect on the questions of the synthetic company"]),
        ("max_messages=2", ["max_messages", "no effect on the questions of the synthetic company"]),
        ("min_realism=0.5", ["min_realism", "no effect on the questions of the synthetic company"]),
        ("questions_per_inboxes=3", ["unknown key", "'questions.questions_per_inbox'"]),
        ("max_cost=0", ["max_cost", "> 0"]),
        ("verifiable_weights.few_turn=1", ["verifiable_weights.few_turn", "unknown key"]),
        ("verifiable_weights.few_turns=11", ["verifiable_weights.few_turns=11", "less than or equal to 10"]),
        ("verifiable_weights={no_answer: 0.0}", ["silence pays more than an honest answer"]),
        (
            "verifiable_weights.partial=0.4",
            ["agent.verifiable_weights.partial=0.4 is too large", "a wrong answer can earn 1.2", "lower partial"],
        ),
        (
            "verifiable_weights.overlap=0.7",
            ["overlap=0.7 is too large", "can earn 1.5", "earns 1.4", "lower overlap or partial"],
        ),
        ("max_context=30000", ["trainer.max_context=30000", "more than torch.kv_cache_tokens=20480"]),
        ("stop_cost=5", ["trainer.stop_cost=5 limits the cost of a judge", "scoring=verifiable has none"]),
        ("min_reward_std=1.4", ["min_reward_std=1.4", "at most 1.35", "no question would be learnt from"]),
        (
            "passage_chars=2000",
            ["agent.passage_chars=2000", "take about 1783 tokens", "of max_context=1500", "or raise max_context"],
        ),
        ("passage_chars=2001", ["passage_chars", "2000"]),
        ("probe_rollouts=9", ["trainer.probe_rollouts=9", "more than rollouts_per_group=8", "null"]),
        ("torch.threads=0", ["trainer.torch.threads=0", "allowed: >= 1"]),
        ("health.child_processes=0", ["health.child_processes=0", "allowed: >= 1"]),
        ("policy_loss=grpo", ["policy_loss", "cispo"]),
        ("max_steps.a=1", ["max_steps", "integer"]),
        ("agent.learning_rate=1", ["'learning_rate' is no key of section 'agent'", "belongs in section 'trainer'"]),
        ("trainer.learning_rat=1", ["unknown key 'learning_rat' in section 'trainer'", "'trainer.learning_rate'"]),
        (
            "extra_litellm_params={}",
            ["several sections have a key", "write trainer.extra_litellm_params or questions.extra_litellm_params"],
        ),
        ("data.extends=a", ["'extends'", "section 'data'"]),
        ("trainer=3", ["section 'trainer' must hold"]),
        ("questions.extra_litellm_params={api_key: hidden}", ["questions.extra_litellm_params", "api_key", ".env"]),
    ],
)
def test_a_mistake_is_named_in_one_line(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override, *(["max_context=1500"] if "passage" in override else [])])
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_invalid_configuration_files(tmp_path: Path) -> None:
    for content in ("- a list", "a: [", "text"):
        file = tmp_path / "config.yaml"
        file.write_text(content)
        with pytest.raises(ConfigError, match="config"):
            load_config(file, [])
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "absent.yaml", [])
    with pytest.raises(ConfigError, match="is not a file"):
        load_config(tmp_path, [])


SECTIONED = """\
data: {emails: somewhere, train_questions: there}
agent:
  max_tokens: 64
  verifiable_weights: {few_turns: 0.5}
trainer:
  max_steps: 9
  torch: {threads: 2, max_running: 7}
evaluation: {eval_limit: 5, judge: exact}
outreach:
"""


def test_every_spelling_of_an_override_is_the_same_setting(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(SECTIONED)
    mixed = ["trainer.max_steps=3", "trainer.torch.threads=3", "agent={max_turns: 4}", "evaluation.eval_limit=6"]
    plain = ["max_steps=3", "torch.threads=3", "max_turns=4", "eval_limit=6"]
    assert explicit_values(file, mixed) == explicit_values(file, plain)
    config = load_config(file, plain)
    torch = config.trainer.torch
    assert (config.trainer.max_steps, config.agent.max_turns, torch.threads, torch.max_running) == (3, 4, 3, 7)


def test_a_file_states_what_differs_from_the_one_it_extends(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(SECTIONED + "settings: {docker: {user: a, parent: b}}\n")
    (tmp_path / "second.yaml").write_text(
        "extends: first.yaml\ntrainer: {torch: {threads: 3}, blend_weights: {ruler: 1.0}}\nsettings: {docker: {user: c}}\n"
    )
    (tmp_path / "third.yaml").write_text("extends: second.yaml\nevaluation: {eval_limit: null}\n")
    config = load_config(tmp_path / "third.yaml", ["max_tokens=32"])
    assert (config.trainer.max_steps, config.trainer.torch.threads, config.trainer.torch.max_running) == (9, 3, 7)
    assert config.trainer.blend_weights == {"ruler": 1.0}, "weights are one value"
    assert (config.evaluation.eval_limit, config.agent.max_tokens) == (None, 32)
    assert config.settings == {"docker": {"user": "c", "parent": "b"}}


@pytest.mark.parametrize(
    ("extends", "said"),
    [
        ("config.yaml", "a file cannot extend itself (config.yaml -> config.yaml)"),
        ("other.yaml", "a file cannot extend itself (config.yaml -> other.yaml -> config.yaml)"),
        ("absent.yaml", "there is no file"),
        ("../config.yaml", "is not the name of a file in the same folder"),
        ("[other.yaml]", "is not the name of a file in the same folder"),
    ],
)
def test_a_file_that_cannot_be_extended(extends: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"extends: {extends}\n")
    (tmp_path / "other.yaml").write_text("extends: config.yaml\n")
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "config.yaml", [])
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_no_section_is_named_like_a_key() -> None:
    assert Config.model_fields.keys() - SECTIONS.keys() == {"task", "task_settings", "settings", "step_settings"}
    for kind in SECTIONS.values():
        assert not Config.model_fields.keys() & kind.model_fields.keys()


def test_a_learn_loop_refuses_limits_of_other_tasks() -> None:
    with pytest.raises(ConfigError, match="^agent.max_turns=1: .*allowed: >= 2 and <= 50"):
        load_config(None, ["max_turns=1"]).for_learn_loop()
    assert load_config(None, ["max_turns=1"]).for_training().max_turns == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trainr: {max_steps: 3}", ["unknown section or key 'trainr'", "'trainer'"]),
        ("agent: {learning_rate: 1}", ["'learning_rate' is no key of section 'agent'", "belongs in section 'trainer'"]),
        ("trainer: {task: coding}", ["'task' is no key of section 'trainer'", "belongs at the top"]),
        ("trainer: {learning_rat: 1}", ["unknown key 'learning_rat' in section 'trainer'", "'trainer.learning_rate'"]),
        ("trainer: 3", ["section 'trainer' must hold `key: value` lines, not 3"]),
        ("max_steps: 3\ntrainer: {max_steps: 4}", ["config.yaml: max_steps belongs in the section trainer:"]),
        ("extra_litellm_params: {}", ["extra_litellm_params belongs in the section trainer: or questions:"]),
        ("trainer: {torch: {threads: 0}}", ["trainer.torch.threads=0", "greater than or equal to 1"]),
    ],
)
def test_a_mistake_in_a_section_is_named_in_one_line(text: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, [])
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_pipeline_needs_mail_with_questions_and_another_mail_without() -> None:
    own, synthetic = load_config(None, ["emails=somewhere"]), Config()
    with_questions = load_config(None, ["emails=somewhere", "train_questions=somewhere"])
    for config, questions in ((synthetic, True), (with_questions, True), (own, False), (with_questions, False)):
        require_source(config, questions=questions)
    with pytest.raises(ConfigError, match="train_questions: needed .*--pipeline scenarios"):
        require_source(own, questions=True)
    with pytest.raises(ConfigError, match="emails: the synthetic company brings its own"):
        require_source(synthetic, questions=False)


PROMPTS = """
def long():
    return "Read twice.\\nAnswer once."
def empty():
    return ""
def number():
    return 7
def wordy(question):
    return "Search."
"""


def test_a_prompt_function_is_asked_once_and_its_text_is_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_prompts.py").write_text(PROMPTS)
    monkeypatch.syspath_prepend(tmp_path)
    config = with_prompt(load_config(None, ["prompt_function=own_prompts:long", "max_steps=3"]))
    assert (config.agent.system_prompt, config.agent.prompt_function, config.trainer.max_steps) == (
        "Read twice.\nAnswer once.",
        "own_prompts:long",
        3,
    )
    assert with_prompt(Config()) == Config() and Config().agent.system_prompt is None
    for overrides, kind, named in (
        (
            ["prompt_function=own_prompts:empty"],
            ConfigError,
            "prompt_function=own_prompts:empty: .* at least 1 character",
        ),
        (["prompt_function=own_prompts:number"], ConfigError, "valid string"),
        (
            ["prompt_function=own_prompts:wordy"],
            ConfigError,
            "own_prompts:wordy: it failed .TypeError: .*missing 1 required",
        ),
        (["prompt_function=own_prompts:long", "system_prompt=Search."], ConfigError, "set one of them"),
        (["prompt_function=own_prompts:absent"], BadInput, "own_prompts has no function absent"),
        (["prompt_function=own_prompts"], BadInput, "expected package.module:name"),
        (["prompt_function=absent_prompts:long"], BadInput, "absent_prompts cannot be imported"),
    ):
        with pytest.raises(kind, match=named):
            with_prompt(load_config(None, overrides))


def test_answers_do_not_depend_on_the_gate() -> None:
    gate = {
        "accepted_alerts": ("length_drift",),
        "promotion_floor": 0.5,
        "min_gain": 0.1,
        "promotion_significance": 1.0,
    }
    assert EvaluationConfig(**gate).without_gate() == EvaluationConfig()
    assert EvaluationConfig(eval_limit=5, **gate).without_gate() == EvaluationConfig(eval_limit=5)


def test_fixed_values_are_of_settings_that_are_gone() -> None:
    assert FIXED.keys() <= GONE.keys()


@pytest.mark.parametrize("path", [*GONE, *RENAMED])
def test_a_setting_of_earlier_versions_says_what_to_do_instead(path: str, tmp_path: Path) -> None:
    names, said = path.split("."), gone(path)
    assert said and said.startswith(f"{path} is not a setting any more: ")
    file = tmp_path / "config.yaml"
    nested: Any = 5
    for name in reversed(names):
        nested = {name: nested}
    file.write_text(yaml.safe_dump(nested))
    spellings = [path, *([] if is_setting(short := path.partition(".")[2]) else [short])]
    for at, overrides in ((file, []), *((None, [f"{name}=5"]) for name in spellings)):
        with pytest.raises(ConfigError) as caught:
            load_config(at, overrides)
        assert str(caught.value).endswith(said)
    with pytest.raises(ConfigError, match=re.escape(said)):
        describe(path)
    for named in re.findall(rf"\b(?:{'|'.join(SECTIONS)})(?:\.\w+)+", said.partition(": ")[2]):
        assert describe(named), "the advice names a setting"
