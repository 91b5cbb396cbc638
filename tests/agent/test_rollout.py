"""Episodes with a scripted policy: their record, their end and their reward."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest
from openai.types.chat.chat_completion import Choice

from agent import rollout
from agent.demonstrations import demonstration
from agent.judges.exact import ExactJudge
from agent.rollout import AgentRun, answer_question
from agent.settings import AgentSettings
from agent.task import EmailSearchTask
from environment.email_db import MailDatabase
from environment.models import Scenario
from environment.scenarios import open_scenario
from tests.fakes.judge import PaidJudge
from tests.fakes.language_model import call_text
from tests.fakes.policy import OWNER, ScriptedPolicy
from training.guard.standstill import PolicyServerProgress

SEARCH = ("search_inbox_tool", {"keywords": ["Heron"]})
SEARCH_BOTH = ("search_inbox_tool", {"keywords": ["Heron Dana Voss"]})
READ = ("read_email_tool", {"email_id": 1})
ANSWER = ("return_final_answer_tool", {"answer": "555-0173", "source_ids": [1, 2]})


def run(scripted: ScriptedPolicy, database: MailDatabase, **limits: float) -> AgentRun:
    mailbox = database.mailbox(OWNER, datetime(2001, 2, 1))
    settings = AgentSettings(**limits)
    return asyncio.run(answer_question(scripted.policy, mailbox, "Who leads Heron?", settings))


def test_an_episode_records_what_was_sampled_and_what_was_seen(
    scripted: ScriptedPolicy, database: MailDatabase
) -> None:
    scripted.replies = [SEARCH_BOTH, READ, ANSWER]
    episode = run(scripted, database)
    assert episode.outcome == "answered" and episode.turns == 3
    assert episode.answer is not None
    assert episode.answer.source_ids == ("<1@example.com>", "<2@example.com>")
    roles = [turn.message.role if isinstance(turn, Choice) else turn["role"] for turn in episode.record]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    replies = [turn for turn in episode.record if isinstance(turn, Choice)]
    for choice, (name, arguments) in zip(replies, [SEARCH_BOTH, READ, ANSWER], strict=True):
        assert choice.message.content == call_text(name, arguments)
        assert not choice.message.tool_calls
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert [token.token for token in choice.logprobs.content][:2] == ["token_id:0", "token_id:1"]
    assert "Dana Voss" in episode.record[5]["content"]
    assert episode.sampled_tokens == sum(len(call_text(*call)) + 1 for call in (SEARCH_BOTH, READ, ANSWER))


def test_policy_and_demonstrations_get_the_users_prompt(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scripted.replies = [ANSWER, ANSWER]
    assert run(scripted, database).record[0]["content"] != "Search first."
    settings = AgentSettings(system_prompt="Search first.")
    task = EmailSearchTask(database, [two_mail_question], ExactJudge(), settings)
    trajectory = asyncio.run(task.rollout(scripted.policy, two_mail_question))
    expected = {"role": "system", "content": "Search first."}
    assert scripted.requests[1]["messages"][0] == expected == trajectory.messages_and_choices[0]
    [demonstrated] = task.demonstrations([two_mail_question], 1)
    assert demonstrated.messages_and_choices[0] == expected


def test_one_episode_is_one_conversation_for_the_server(scripted: ScriptedPolicy, database: MailDatabase) -> None:
    scripted.replies = [SEARCH, ANSWER, SEARCH, ANSWER]
    run(scripted, database)
    run(scripted, database)
    keys = [request["prompt_cache_key"] for request in scripted.requests]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert all(request["logprobs"] is True for request in scripted.requests)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ("Dana Voss leads it.", "no_tool_call"),
        ('<tool_call>\n{"name": "search_inbox_tool", "arguments": {"keywords": ["Her', "malformed_call"),
    ],
)
def test_a_reply_without_a_tool_call_ends_the_episode(
    scripted: ScriptedPolicy, database: MailDatabase, reply: str, outcome: str
) -> None:
    scripted.replies = [SEARCH, reply]
    episode = run(scripted, database)
    assert (episode.outcome, episode.answer, episode.turns) == (outcome, None, 2)
    assert episode.record[-1].message.content == reply


def test_the_turn_limit_ends_the_episode(scripted: ScriptedPolicy, database: MailDatabase) -> None:
    scripted.replies = [SEARCH] * 5
    episode = run(scripted, database, max_turns=3)
    assert (episode.outcome, episode.turns) == ("max_turns", 3)
    assert len(scripted.replies) == 2


def test_an_unknown_tool_is_an_observation_not_an_error(scripted: ScriptedPolicy, database: MailDatabase) -> None:
    scripted.replies = [("delete_everything", {}), ANSWER]
    episode = run(scripted, database)
    assert episode.outcome == "answered"
    assert episode.calls[0].invalid and "No such tool" in episode.calls[0].observation


def test_a_slow_episode_is_no_error_as_long_as_the_server_works(
    scripted: ScriptedPolicy, database: MailDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.replies = [SEARCH, ANSWER]
    scripted.seconds_per_reply, scripted.tokens_between_looks = 1.0, 7
    monkeypatch.setattr(rollout, "REPLY_TIMEOUT", 0.1)
    episode = run(scripted, database)
    assert episode.outcome == "answered" and episode.seconds > 2 and scripted.tokens > 7


def test_every_reply_counts_as_progress_of_the_server(
    scripted: ScriptedPolicy, database: MailDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: list[int] = []
    monkeypatch.setattr(PolicyServerProgress, "moved", lambda self: replies.append(len(scripted.requests)))
    scripted.replies = [SEARCH, READ, ANSWER]
    run(scripted, database)
    assert replies == [1, 2, 3]


@pytest.mark.parametrize("between_looks", [0, None], ids=["counters that stand still", "no counters"])
def test_a_server_that_does_nothing_ends_the_episode(
    scripted: ScriptedPolicy, database: MailDatabase, between_looks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.replies = [SEARCH] * 5
    scripted.seconds_per_reply, scripted.tokens_between_looks = 3.0, between_looks
    monkeypatch.setattr(rollout, "REPLY_TIMEOUT", 0.1)
    with pytest.raises(TimeoutError, match=r"made no progress for 0\.1 s"):
        run(scripted, database)


def test_the_oracle_follows_the_bridge_from_mail_to_mail(database: MailDatabase, two_mail_question: Scenario) -> None:
    task = EmailSearchTask(database, [two_mail_question], ExactJudge(), AgentSettings())
    episode = task.oracle(two_mail_question)
    assert episode.answer is not None and episode.answer.source_ids == two_mail_question.message_ids
    searches = [call.arguments["keywords"] for call in episode.calls if call.name == "search_inbox_tool"]
    assert any("Dana Voss" in keywords[0] for keywords in searches[1:]) or len(searches) == 1
    reads = [email_id for call in episode.calls if call.name == "read_email_tool" for email_id in call.email_ids]
    assert reads == open_scenario(two_mail_question, database).gold_ids
    example = demonstration(episode, two_mail_question, task.settings)
    assert example.messages_and_choices[-1]["role"] == "assistant"
    assert example.additional_histories == []


def test_rewards_order_episodes_by_their_achievement(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    task = EmailSearchTask(database, [two_mail_question], ExactJudge(), AgentSettings())
    wrong = ("return_final_answer_tool", {"answer": "555-9999", "source_ids": [3]})
    no_sources = ("return_final_answer_tool", {"answer": "555-0173", "source_ids": []})
    scripts = {
        "malformed": ["<tool_call>{"],
        "wrong": [wrong],
        "gave up after reading": [SEARCH_BOTH, READ, *[SEARCH_BOTH] * 4],
        "wrong after reading": [SEARCH_BOTH, READ, wrong],
        "right without sources": [SEARCH_BOTH, READ, no_sources],
        "right without reading": [SEARCH_BOTH, ANSWER],
        "right": [SEARCH_BOTH, READ, ANSWER],
    }
    rewards = {}
    for name, replies in scripts.items():
        scripted.replies = list(replies)
        trajectory = asyncio.run(task.rollout(scripted.policy, two_mail_question))
        rewards[name] = trajectory.reward
        assert trajectory.additional_histories == []
        assert trajectory.metrics["correct"] == name.startswith("right")
        assert trajectory.metadata["question"] == two_mail_question.question
        unread = name in ("wrong", "right without reading")
        assert trajectory.metrics["suspect_unread_answer"] is unread
        assert trajectory.metrics["suspect_repeated_calls"] is (name == "gave up after reading")
    assert list(rewards.values()) == sorted(rewards.values()), rewards
    assert len(set(rewards.values())) == len(rewards), rewards


@pytest.mark.parametrize("value", ["555-0173", "555-9999"])
def test_citing_a_mail_pays_only_if_it_was_read(
    value: str, scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    task = EmailSearchTask(database, [two_mail_question], ExactJudge(), AgentSettings())

    def cited(*sources: int) -> float:
        scripted.replies = [
            SEARCH_BOTH,
            READ,
            ("return_final_answer_tool", {"answer": value, "source_ids": [*sources]}),
        ]
        return asyncio.run(task.rollout(scripted.policy, two_mail_question)).reward

    assert cited(1) > cited()
    assert cited(1, 2) == cited(1)


def test_a_rollout_says_what_its_verdict_cost(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scripted.replies = [SEARCH, READ, ANSWER] * 2
    costs = []
    for judge in (PaidJudge(), ExactJudge()):
        task = EmailSearchTask(database, [two_mail_question], judge, AgentSettings())
        costs.append(asyncio.run(task.rollout(scripted.policy, two_mail_question)).metrics.get("verdict_cost"))
    assert costs == [0.5, None]
