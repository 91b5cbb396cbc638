"""The protocol of a task, the only thing that the trainer knows about the world."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:  # takes ten seconds to import, which the deployed service does not need
    import art

SUSPECT = "suspect_"
"""Prefix of metrics by which a task flags signs of reward hacking in a rollout."""

CALL_SEQUENCE = "call_sequence"
"""Key of the metadata with the tool calls of a rollout in order, as one text. The trainer counts the distinct ones of a
group."""

VERDICT_COST = "verdict_cost"
"""Metric of a rollout: what its verdict cost in US dollars."""

DECISION = "decision"
"""Key of the metadata of a trajectory that ends with a single reply at a decision: the decision's name."""

UNLABELLED = "unlabelled"
"""Key of the metadata of rollouts on scenarios without a reference, which the task can neither reward nor call
correct."""


class RolloutError(RuntimeError):
    """A rollout failed for an external reason, such as a judge without a verdict."""


class Policy(BaseModel):
    """A model behind an OpenAI-compatible endpoint, and how to sample from it."""

    model_config = ConfigDict(frozen=True)

    base_url: str
    model: str
    api_key: str = "none"
    temperature: float = Field(default=1.0, ge=0)
    """0 means greedy decoding."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only from the most likely tokens that together have this probability (Holtzman et al. 2020)."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Sample only from tokens with at least this multiple of the most likely token's probability (Nguyen et al. 2025). Both
    probabilities are after the temperature, as in vLLM."""
    max_tokens: int = Field(default=96, ge=1)
    """Sampled tokens per turn."""
    thinks: bool | None = None
    """False: the request tells the server's chat template that the model must not think. None: its server sees to that."""
    must_call: bool = False
    """The server's grammar holds every reply to one tool call. Log-probabilities are then those of the restricted distribution,
    which an update cannot use: for evaluation only."""

    def request_arguments(self, **extra_body: Any) -> dict[str, Any]:
        """Return the fields of a chat completion request that say which model to sample from, and how.

        `extra_body` are more fields that OpenAI does not know. `min_p` is one too, so a server gets it only where it is set.
        """
        if self.min_p:
            extra_body["min_p"] = self.min_p
        if self.thinks is not None:
            extra_body["chat_template_kwargs"] = {"enable_thinking": self.thinks}
        return {
            "model": self.model,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            **({"extra_body": extra_body} if extra_body else {}),
        }


class Task(Protocol):
    """Scenarios of one kind and everything that turns them into scored trajectories."""

    name: str

    def train_scenarios(self) -> Sequence[Any]:
        """Return the scenarios to train on, in a fixed order."""
        ...

    def demonstrations(self, scenarios: Sequence[Any], limit: int) -> list[art.Trajectory]:
        """Return at most `limit` expert trajectories for these train scenarios, recorded like rollouts, for the warm start.

        Batches are consecutive trajectories in the returned order.
        """
        ...

    async def rollout(self, policy: Policy, scenario: Any) -> art.Trajectory:
        """Play one episode. Its `reward` is the verifiable reward, 0 if it is `UNLABELLED`. Raises on failure.

        Too many failures end the run, with one line if they are RolloutError, TimeoutError, OSError or errors of a provider.

        The trainer reads the metrics `correct` (absent for `UNLABELLED` rollouts), `turns`, `sampled_tokens`,
        `context_tokens` (of the whole conversation) and, if a paid judge gave the verdict, `VERDICT_COST`. Alerts watch the
        metrics that begin with `SUSPECT`, which are true or false. Reports show the metadata `scenario_id` and `question`. The
        metadata `CALL_SEQUENCE` is equal for rollouts with the same tool calls in the same order.
        """
        ...


@runtime_checkable
class TellsKinds(Protocol):
    """A task with kinds of scenarios.

    Each step asks all kinds, so a kind is what needs a decision of its own, such as to search again. Success rates of
    one kind should be similar, because results on one scenario are taken to predict those on others.
    """

    def kind(self, scenario: Any) -> str:
        """Return the kind of a scenario."""
        ...


@runtime_checkable
class HasDecisions(Protocol):
    """A task whose episodes have decisions: states in which several replies can be compared at once.

    The first decision is due in the first state of every episode.
    """

    decisions: Sequence[str]
    """Names of the decisions, in the order of an episode."""
    usual_decisions: Sequence[str]
    """Those of them that a run compares by default."""

    def is_open(self, scenario: Any, decisions: Collection[str]) -> bool:
        """Return whether replies at `decisions` are likely to differ in this scenario, without asking a policy."""
        ...

    async def decide(
        self, policy: Policy, scenario: Any, decisions: Collection[str], replies: int, probes: int, *, continued: bool
    ) -> list[art.TrajectoryGroup]:
        """Play one episode and return a group of `replies` trajectories for each of its states with one of `decisions`.

        `probes` of them are sampled first, and the others only if one of these is not right.

        The trajectories of a group differ in their last `Choice` only. Everything before it is plain messages, so that an
        update trains the last reply and computes the rest once. Rewards compare replies in the same state, at once or,
        with `continued`, after finishing the episode greedily. They must not contradict the rewards of `rollout`.

        Metadata and metrics are those of `rollout`, and the metadata `DECISION`. The metric `correct` says whether the reply
        was the right move. Raises on failure, as `rollout` does.
        """
        ...
