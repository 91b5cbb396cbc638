"""All settings of the trainer, with bounds. The fields that change most often come first."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from training.backends.torch.settings import TorchEngineSettings
from training.health_limits import HealthLimits

RewardSource = Literal["verifiable", "ruler", "custom"]

FROM_PRODUCTION = "production"
"""Value of `continue_from` for the version that is in production when a run begins."""


class TrainerSettings(BaseModel):
    """One training run."""

    model_config = ConfigDict(frozen=True)

    # set for nearly every run
    backend: Literal["torch", "local", "serverless"] = Field(
        default="torch",
        description="samples tokens and applies gradients: torch (CPU, CUDA), local (vLLM + Unsloth), serverless (W&B)",
    )
    serverless_url: str | None = Field(
        default=None, description="base URL of the training API (backend=serverless); null: W&B's own"
    )
    max_steps: int = Field(default=6, ge=0, le=100_000, description="GRPO steps; 0 stops after the warm start")
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="end after this number of passes over the train questions, if before max_steps; null: no limit",
    )
    groups_per_step: int = Field(default=24, ge=1, le=1024, description="scenarios (questions) per step")
    rollouts_per_group: int = Field(
        default=8, ge=2, le=256, description="rollouts per scenario, or replies that a decision compares"
    )
    decisions: tuple[str, ...] | None = Field(
        default=None,
        description="learn from single replies at these decisions of an episode instead of from whole episodes, for example "
        "query,open,answer; null: those that usually pay in this task, where it can (docs/training.md); []: whole episodes",
    )
    decision_reward: Literal["immediate", "continued"] = Field(
        default="immediate",
        description="reward of a reply at a decision: what it achieves at once, or that of the episode finished greedily",
    )
    open_share: float = Field(
        default=0.75,
        ge=0,
        le=1,
        description="with decisions: share of a step's questions that the policy last failed, or that look hard; 0: any",
    )
    probe_rollouts: int | None = Field(
        default=2,
        ge=2,
        description="play this number of rollouts of a question first, and the rest of its group only if one of them "
        "is not correct; null, or scoring other than verifiable: the whole group at once",
    )
    max_extra_groups: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="additional questions that a step may ask to replace groups without reward spread; 0: none",
    )
    min_reward_std: float = Field(
        default=0.1, ge=0, le=100, description="train only on groups whose rewards have a standard deviation above this"
    )
    learning_rate: float = Field(default=1e-4, gt=0, le=1, description="GRPO learning rate")
    learning_rate_schedule: Literal["constant", "cosine"] = Field(
        default="constant",
        description="after warm_up_steps: constant, or falling along a half cosine to a tenth at the last GRPO step, "
        "and lower in steps that learn from fewer than groups_per_step groups",
    )
    scale_rewards: Literal["group", "batch"] = Field(
        default="batch",
        description="divide advantages by the standard deviation of rewards in their group (GRPO), or in the batch",
    )
    warm_up_steps: int = Field(
        default=1, ge=1, le=1000, description="GRPO steps over which the learning rate rises to its full value"
    )

    turn_credit: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="weight of a turn-level advantage relative to rollouts in the same state (GiGPO); 0: none; null: 1 for whole "
        "episodes with backend=torch, else none",
    )

    # loss
    policy_loss: Literal["cispo", "ppo"] = Field(default="cispo", description="loss of the update, see art.loss")
    clip_low: float | None = Field(
        default=None,
        gt=0,
        le=10,
        description="clip the probability ratio at 1 - clip_low; null: ART's default for the loss",
    )
    clip_high: float | None = Field(
        default=None,
        gt=0,
        le=10,
        description="clip the probability ratio at 1 + clip_high; null: ART's default for the loss",
    )
    kl_penalty: float = Field(
        default=0.0, ge=0, le=10, description="coefficient of the KL penalty against the base model; 0: none"
    )
    advantage_balance: float = Field(
        default=1.0,
        ge=-1,
        le=1,
        description="above 0, positive advantages weigh more, at 1 only they are learnt from; below 0, negative ones",
    )

    # where the run starts from
    continue_from: str | None = Field(
        default=None,
        min_length=1,
        description="start from this run's adapter (name or key), a checkpoint (folder or artifact id) or production, "
        "without a warm start; null: from the base model",
    )

    # warm start
    demonstrations: int = Field(
        default=128, ge=0, le=1_000_000, description="expert episodes of the warm start; 0 skips it"
    )
    warm_start_learning_rate: float = Field(
        default=1e-3, gt=0, le=1, description="peak learning rate of the warm start"
    )

    # scoring
    scoring: Literal["verifiable", "ruler", "custom", "blend"] = Field(
        default="verifiable",
        description="rewards from the reference answer, an LLM judge (RULER), reward_function, or a weighted sum of "
        "them",
    )
    ruler_model: str = Field(default="openai/o4-mini", description="LiteLLM name of the RULER judge")
    ruler_api_base: str | None = Field(default=None, description="base URL of a self-hosted OpenAI-compatible judge")
    ruler_rubric: str | None = Field(
        default=None, description="text file with grading standards instead of RULER's own"
    )
    reward_function: str | None = Field(
        default=None,
        description="package.module:name of a function that takes an art.Trajectory and returns its reward",
    )
    blend_weights: dict[RewardSource, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default={"verifiable": 0.5, "ruler": 0.5}, description="weight of each source in a blended reward"
    )
    extra_litellm_params: dict[str, Any] = Field(
        default_factory=dict,
        description="more arguments of litellm.completion, such as temperature or reasoning_effort",
    )

    # sampling
    temperature: float = Field(default=1.5, gt=0, le=2, description="sampling temperature of rollouts")
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="sample rollouts only from the most likely tokens that together have this probability; 1: from all",
    )
    min_p: float = Field(
        default=0.074,
        ge=0,
        lt=1,
        description="sample rollouts only from tokens with at least this multiple of the most likely token's probability, after "
        "the temperature; 0: from all",
    )
    max_concurrent: int = Field(
        default=24,
        ge=1,
        le=1024,
        description="maximum number of concurrent rollouts; validation has the same number of slots in addition",
    )
    max_steps_off_policy: int = Field(
        default=0,
        ge=0,
        le=100,
        description="number of steps gathered ahead of the optimizer; also the maximum off-policy lag; 0: on-policy",
    )
    health_seconds: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="seconds between checks of processes, memory, disk and the policy's server; 0: never",
    )

    health: HealthLimits = Field(
        default_factory=HealthLimits, description="limits of the health monitor that depend on the machine"
    )
    log_sample_rate: float = Field(
        default=1.0, ge=0, le=1, description="share of a step's rollouts whose transcripts are kept in the run's folder"
    )

    # validation, and when to stop before max_steps
    validate_every: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="steps between validations on held-out train questions; 0 never validates",
    )
    validation_questions: int = Field(
        default=48, ge=1, le=100_000, description="train questions held out for validation, if validate_every is not 0"
    )
    validation_metric: Literal["accuracy", "reward", "win_rate"] = Field(
        default="accuracy",
        description="metric for the best checkpoint, stop_plateau_steps and stop_target. win_rate needs no reference answers: "
        "the RULER judge compares each rollout, in both orders, with that of the policy before the first GRPO step (the warm "
        "start, if there is one)",
    )
    stop_plateau_steps: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="stop after this number of steps without a better validation; null: never",
    )
    stop_target: float | None = Field(
        default=None, allow_inf_nan=False, description="stop when the validation metric reaches this; null: never"
    )
    stop_margin: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="stop when the validation metric is this much above that of the policy before the first GRPO "
        "step; null: never",
    )
    stop_seconds: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="start no further step after this training time in seconds; null: no limit",
    )
    stop_cost: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="start no further step after the judge has cost this amount in US dollars; null: no limit",
    )
    gpu_price: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="US dollars per hour of one GPU, for plan and history; null: unknown",
    )
    stop_tokens: int | None = Field(
        default=None, ge=1, description="start no further step after this number of sampled tokens; null: no limit"
    )

    # adapter
    lora_rank: int = Field(default=16, ge=1, le=256, description="rank of the LoRA adapter")
    lora_layers: int | None = Field(
        default=None, ge=1, description="adapt only the top layers (torch backend); null adapts all"
    )
    max_context: int = Field(default=2048, ge=128, le=1_000_000, description="tokens per episode, prompt included")

    torch: TorchEngineSettings = Field(
        default_factory=TorchEngineSettings,
        description="speed and memory of backend=torch: training/backends/torch/settings.py",
    )

    experiment: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][\w.-]{0,63}$",
        description="name of the run, of at most 64 letters, digits, '.', '_' and '-'; null: its key",
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="order of scenarios, sampling, adapter initialisation")

    @model_validator(mode="after")
    def _require_consistent(self) -> Self:
        if self.probe_rollouts is not None and self.probe_rollouts > self.rollouts_per_group:
            raise ValueError(
                f"probe_rollouts={self.probe_rollouts} is more than rollouts_per_group={self.rollouts_per_group}: set it lower, or to "
                "null to play whole groups at once"
            )
        if self.decisions and not self.is_verifiable:
            raise ValueError(
                f"decisions={list(self.decisions)}: scoring={self.scoring} compares whole episodes; set decisions=[], or "
                "scoring=verifiable"
            )
        if self.backend == "torch" and self.torch.kv_cache_tokens < self.max_context:
            raise ValueError(
                f"max_context={self.max_context} is more than torch.kv_cache_tokens={self.torch.kv_cache_tokens}: no cache could hold "
                "such a conversation; lower the one or raise the other"
            )
        return self

    @property
    def warm_start_demonstrations(self) -> int:
        """Number of demonstrations that the run learns from before its first step."""
        return 0 if self.continue_from else self.demonstrations

    @property
    def is_verifiable(self) -> bool:
        """Whether rewards come from reference answers alone."""
        return set(self.reward_weights) == {"verifiable"}

    @property
    def first_rollouts(self) -> int:
        """Rollouts of a question that are played first; other rewards than the verifiable one may differ among correct ones."""
        return (self.is_verifiable and self.probe_rollouts) or self.rollouts_per_group

    @property
    def validates(self) -> bool:
        """Whether the run validates. Without GRPO steps there is only one checkpoint to choose."""
        return bool(self.validate_every and self.max_steps)

    @property
    def measures_wins(self) -> bool:
        """Whether validations compare rollouts with those of the initial policy."""
        return self.validates and self.validation_metric == "win_rate"

    @property
    def asks_judge(self) -> bool:
        """Whether the RULER judge is asked at all."""
        return "ruler" in self.reward_weights or self.measures_wins

    @property
    def reward_weights(self) -> dict[RewardSource, float]:
        """Source of rewards -> its weight in their sum."""
        return {**self.blend_weights} if self.scoring == "blend" else {self.scoring: 1.0}
