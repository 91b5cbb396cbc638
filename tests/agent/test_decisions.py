"""Decisions of an episode: which one is due, what a reply earns there, and what its trajectory trains."""

from __future__ import annotations

import asyncio
from typing import Any

import art
import pytest
from openai.types.chat.chat_completion import Choice

from agent.judges import Judge
from agent.judges.exact import ExactJudge
from agent.reward_weights import RewardWeights
from agent.settings import AgentSettings
from agent.task import EmailSearchTask
from environment.email_db import MailDatabase
from environment.models import Scenario
from tests.fakes.judge import PaidJudge
from tests.fakes.language_model import call_text
from tests.fakes.policy import ScriptedPolicy
from training.task import DECISION

FIRST = ("search_inbox_tool", {"keywords": ["Heron"]})
BOTH = ("search_inbox_tool", {"keywords": ["Heron Dana Voss"]})
NOTHING = ("search_inbox_tool", {"keywords": ["canteen"]})
SECOND = ("search_inbox_tool", {"keywords": ["Dana Voss"]})
ANSWER = ("return_final_answer_tool", {"answer": "555-0173", "source_ids": [1, 2]})
WRONG = ("return_final_answer_tool", {"answer": "12", "source_ids": [1, 2]})
GUESS = ("return_final_answer_tool", {"answer": "555-0173", "source_ids": []})
MALFORMED = "<tool_call>\n{broken\n</tool_call>"
BEST = RewardWeights().best


def read(number: int) -> tuple[str, dict[str, Any]]:
    return "read_email_tool", {"email_id": number}


def decide(
    scripted: ScriptedPolicy,
    database: MailDatabase,
    scenario: Scenario,
    decisions: tuple[str, ...] = EmailSearchTask.decisions,
    *,
    replies: int = 3,
    probes: int | None = None,
    continued: bool = False,
    passage_chars: int = 0,
    weights: RewardWeights | None = None,
    judge: Judge | None = None,
) -> list[art.TrajectoryGroup]:
    settings = AgentSettings(passage_chars=passage_chars)
    task = EmailSearchTask(database, [scenario], judge or ExactJudge(), settings, weights=weights)
    deciding = task.decide(scripted.policy, scenario, decisions, replies, probes or replies, continued=continued)
    return asyncio.run(deciding)


def test_each_state_has_the_decision_of_its_right_move_and_the_best_reply_leads_on(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scripted.replies = [NOTHING, FIRST, MALFORMED, *(read(9), read(1), FIRST), *(NOTHING, SECOND, GUESS)]
    scripted.replies += [*(read(2), read(1), NOTHING), *(WRONG, ANSWER, read(1))]
    groups = decide(scripted, database, two_mail_question)
    assert [group.trajectories[0].metadata[DECISION] for group in groups] == [
        "query",
        "open",
        "query",
        "open",
        "answer",
    ]
    right = [[bool(t.metrics["correct"]) for t in group.trajectories] for group in groups]
    assert right == [[False, True, False], [False, True, False], [False, True, True], [True, False, False],
                     [False, True, False]]  # fmt: skip
    for group in groups:
        rewards = [trajectory.reward for trajectory in group.trajectories]
        best = group.trajectories[rewards.index(max(rewards))]
        assert best.metrics["correct"] and max(rewards) <= BEST + 0.1
    # An answer without the mails that prove it earns less than finding them.
    first_query, second_query = groups[0], groups[2]
    assert [t.reward for t in first_query.trajectories[:2]] == pytest.approx([0.3 * BEST, BEST])
    assert second_query.trajectories[1].reward > second_query.trajectories[2].reward


def test_only_the_last_reply_of_a_branch_is_a_choice_and_all_share_what_precedes_it(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scripted.replies = [FIRST, NOTHING, read(1), NOTHING, MALFORMED, MALFORMED]
    _, opened, _ = decide(scripted, database, two_mail_question, ("query", "open"), replies=2)
    for trajectory in opened.trajectories:
        *before, last = trajectory.messages_and_choices
        assert isinstance(last, Choice) and not any(isinstance(turn, Choice) for turn in before)
        assert before == opened.trajectories[0].messages_and_choices[:-1]
        assert [turn["role"] for turn in before] == ["system", "user", "assistant", "tool"]
        assert before[2]["content"] == call_text(*FIRST)
        assert trajectory.additional_histories == []
    # The server gets the same plain messages, under a new name for each request.
    sent = scripted.requests[1]["messages"]
    assert [message["content"] for message in sent] == [turn["content"] for turn in before]
    assert not any(message.get("tool_calls") for message in sent)
    assert [request["n"] for request in scripted.requests] == [2, 2, 2]
    assert len({request["prompt_cache_key"] for request in scripted.requests}) == 3


def test_identical_replies_are_finished_once_and_earn_the_reward_of_the_finished_episode(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scripted.replies = [BOTH, BOTH, BOTH, read(1), read(2), ANSWER]
    [group] = decide(scripted, database, two_mail_question, ("query",), continued=True)
    assert len(scripted.requests) == 4 and [request.get("n") for request in scripted.requests[1:]] == [1, 1, 1]
    assert all(request["temperature"] == 0 for request in scripted.requests[1:])
    whole = 1.6 + 0.1 * (1 - 4 / 6)
    assert [t.reward for t in group.trajectories] == pytest.approx([whole] * 3)
    assert all(
        len([turn for turn in t.messages_and_choices if isinstance(turn, Choice)]) == 1 for t in group.trajectories
    )


def test_where_no_decision_is_wanted_the_policy_replies_greedily_and_the_episode_ends_with_the_last_one_wanted(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scripted.replies = [BOTH, read(1), read(2), ANSWER, WRONG, GUESS]
    [group] = decide(scripted, database, two_mail_question, ("answer",))
    assert [request["n"] for request in scripted.requests] == [1, 1, 1, 3]
    assert [request["temperature"] for request in scripted.requests] == [0.0, 0.0, 0.0, 1.0]
    correct, wrong, unproven = [trajectory.reward for trajectory in group.trajectories]
    assert correct > unproven > wrong
    scripted.replies = [BOTH, BOTH, BOTH]
    decide(scripted, database, two_mail_question, ("query",))
    assert not scripted.replies, "all gold mails were shown, so no further query can be due"


@pytest.mark.parametrize("padding", [read(1), ("read_email_tool", {"email_id": "1"}), FIRST, BOTH])
def test_nothing_is_earned_by_finding_or_opening_what_is_known(
    padding: tuple[str, dict[str, Any]], scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scripted.replies = [BOTH, read(1), read(2), padding, WRONG, NOTHING]
    [group] = decide(scripted, database, two_mail_question, ("answer",))
    padded, wrong, searched = [trajectory.reward for trajectory in group.trajectories]
    assert padded == searched == RewardWeights().no_answer < wrong


def test_a_verdict_on_equal_replies_is_paid_once(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scripted.replies = [BOTH, read(1), read(2), ANSWER, ANSWER, WRONG]
    [group] = decide(scripted, database, two_mail_question, ("answer",), judge=PaidJudge())
    assert [t.metrics.get("verdict_cost") for t in group.trajectories] == [0.5, None, 0.5]


def test_opening_every_hit_in_one_reply_earns_less_than_opening_the_right_one(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    mails = [read(1), read(2), read(3)]
    all_three = ("search_inbox_tool", {"keywords": ["Dana Voss leads Heron canteen"]})
    scripted.replies = [all_three, read(1), read(3), mails, MALFORMED, MALFORMED, MALFORMED]
    group, _ = decide(scripted, database, two_mail_question, ("open",))
    rewards = [trajectory.reward for trajectory in group.trajectories]
    assert rewards[2] < max(rewards[:2]) == BEST


@pytest.mark.parametrize("passage_chars", [0, 350])
def test_a_mail_may_be_cited_unopened_where_the_search_shows_its_passage(
    passage_chars: int, scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    one_mail = two_mail_question.model_copy(update={"message_ids": two_mail_question.message_ids[1:]})
    at_once = ("return_final_answer_tool", {"answer": "555-0173", "source_ids": [2]})
    other = ("return_final_answer_tool", {"answer": "555-0173", "source_ids": [1]})
    misread = ("return_final_answer_tool", {"answer": "12", "source_ids": [2]})
    scripted.replies = [("search_inbox_tool", {"keywords": ["Dana Heron"]}), at_once, other, misread, read(1), read(2)]
    [group] = decide(scripted, database, one_mail, ("open",), replies=5, passage_chars=passage_chars)
    assert group.trajectories[0].metadata[DECISION] == "open"
    cited, elsewhere, wrong, opened_other, opened = [trajectory.reward for trajectory in group.trajectories]
    assert (cited > elsewhere) is bool(passage_chars) and opened == BEST
    assert cited > opened_other and opened > wrong and opened > opened_other
    assert [bool(t.metrics["correct"]) for t in group.trajectories] == [True, True, False, False, True]


def test_a_policy_that_finds_nothing_is_asked_for_one_query_more_than_there_are_mails(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    one_mail = two_mail_question.model_copy(update={"message_ids": two_mail_question.message_ids[1:]})
    scripted.replies = [NOTHING] * 30
    groups = decide(scripted, database, one_mail)
    assert [group.trajectories[0].metadata[DECISION] for group in groups] == ["query", "query"]


def test_the_other_replies_are_sampled_only_if_a_probe_is_not_right(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scripted.replies = [BOTH, BOTH, *(read(1), NOTHING), *(read(2), read(1), BOTH), *([MALFORMED] * 5)]
    groups = decide(scripted, database, two_mail_question, ("query", "open"), replies=5, probes=2)
    assert [len(group.trajectories) for group in groups] == [2, 5, 5]
    assert [request["n"] for request in scripted.requests] == [2, 2, 3, 2, 3]


@pytest.mark.parametrize(
    ("question", "place", "open_at"),
    [
        ("Who leads Heron?", 1, {}),
        ("Who is Dana Voss?", 2, {"query,open,answer", "open", "open,answer"}),
        ("When is the canteen closed?", None, {"query,open,answer"}),
    ],
)
def test_a_question_is_open_where_its_decisions_can_differ(
    question: str, place: int | None, open_at: set[str], database: MailDatabase, two_mail_question: Scenario
) -> None:
    gold = "<1@example.com>"
    scenario = two_mail_question.model_copy(update={"question": question, "message_ids": (gold,)})
    found = [hit.message_id for hit in database.mailbox(scenario.inbox_address, scenario.query_date).search([question])]
    assert (found.index(gold) + 1 if gold in found else None) == place
    task = EmailSearchTask(database, [scenario], ExactJudge(), AgentSettings())
    named = ("query,open,answer", "open", "open,answer")
    assert {names for names in named if task.is_open(scenario, names.split(","))} == set(open_at)


@pytest.mark.parametrize("weight", [0.0, 0.6])
def test_answers_of_several_facts_are_graded_where_the_reward_has_a_weight_for_facts(
    weight: float, scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    scenario = two_mail_question.model_copy(update={"question": "Who, and when?", "answer": "Dana Voss at 5 pm"})
    weights = RewardWeights(facts=weight, overlap=0.0)
    said = ("Dana Voss at 5 pm", "Dana Voss", "Piet", "Dana Voss, Piet Harlow")
    answers = [("return_final_answer_tool", {"answer": text, "source_ids": [1, 2]}) for text in said]
    scripted.replies = [BOTH, read(1), read(2), *answers]
    [group] = decide(scripted, database, scenario, ("answer",), replies=4, weights=weights)
    whole, half, none, listed = [trajectory.reward for trajectory in group.trajectories]
    assert half - none == pytest.approx(weight / 2) and none == pytest.approx(listed)
    assert whole == pytest.approx(weights.best + 0.1 * (1 - 4 / 6)) and whole > half
    assert [t.metrics["facts"] for t in group.trajectories] == [1.0, 0.5, 0.0, 0.0]
