"""The learn loop with a scripted model: rollouts, iterations, and what a kill leaves."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.outreach import loop as loop_module
from tasks.outreach.email import Email, check_email, verifiable_reward
from tasks.outreach.events import EventStore, RecordedFeedback
from tasks.outreach.feedback import MEAN_REPLY_RATE, SimulatedProspects
from tasks.outreach.loop import LearnLoop
from tasks.outreach.node_scores import NodeScores, SentEmail
from tasks.outreach.off_policy import logged_choices
from tasks.outreach.results import BASELINE, EMAILS, FINAL, STATE, VALIDATION
from tasks.outreach.settings import OutreachSettings
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios
from tasks.outreach.task import OutreachTask
from tasks.outreach.tools import CONTEXT, FINALIZE, PROPOSE, OutreachTools
from tasks.outreach.webhook import Outbox
from tasks.outreach.written import WrittenEmail
from tests.fakes.outreach_model import OutreachModel, called, without_backend
from tests.fakes.policy import ScriptedPolicy
from tests.tasks.outreach.good_email import good
from tests.tasks.outreach.killed_loop import RULES
from tests.training.toy_run import CountingBackend, Killed, RecordedProgress
from training.loop.validation import Validator
from training.record.history import UNTOUCHED
from training.record.progress import NoProgress, Progress

pytestmark = pytest.mark.service

GRAPH, SCENARIOS = synthetic_graph(0), synthetic_scenarios(0, 12, 4)


@pytest.fixture
def model() -> Iterator[OutreachModel]:
    with OutreachModel() as server:
        yield server


def open_task(**settings: Any) -> OutreachTask:
    rules = OutreachSettings(**settings)
    simulation = SimulatedProspects(GRAPH, SCENARIOS, 0)
    return OutreachTask(GRAPH, SCENARIOS, simulation, rules, NodeScores.fresh(GRAPH))


def test_a_slow_rollout_is_no_error_as_long_as_the_policys_server_works(
    slow_policy: ScriptedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_policy.replies, slow_policy.tokens_between_looks = ["Hello!"], 7
    monkeypatch.setattr("tasks.outreach.task.REPLY_TIMEOUT", 0.1)
    task = open_task()
    trajectory = asyncio.run(task.rollout(slow_policy.policy, SCENARIOS[0]))
    assert trajectory.metadata["outcome"] == "malformed_call" and trajectory.metrics["turns"] == 1


def test_a_policys_server_that_does_nothing_is_an_error(
    slow_policy: ScriptedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.outreach.task.REPLY_TIMEOUT", 0.1)
    slow_policy.replies, slow_policy.tokens_between_looks = ["Hello!"], 0
    with pytest.raises(TimeoutError, match=r"made no progress for 0\.1 s"):
        asyncio.run(open_task().rollout(slow_policy.policy, SCENARIOS[0]))


def open_loop(
    folder: Path, task: OutreachTask | None = None, url: str | None = None, progress: Progress | None = None
) -> LearnLoop:
    store = EventStore(folder / "feedback.sqlite")
    outbox = Outbox(folder / "run" / "webhook", url)
    return LearnLoop(folder / "run", task or open_task(), store, outbox, progress or NoProgress(), RULES.max_steps)


def run(loop: LearnLoop, **changes: Any) -> Any:
    rules = RULES.model_copy(update=changes)
    return asyncio.run(loop.run(base_model="none", settings=rules, max_tokens=96))


def test_a_rollout_is_an_email_with_its_feedback(model: OutreachModel, tmp_path: Path) -> None:
    task = open_task()
    rollout = asyncio.run(task.rollout(model.policy, SCENARIOS[0]))
    [fact] = json.loads(rollout.metadata["facts"])
    expected = task.feedback.reply_probability(SCENARIOS[0].prospect, [fact], 1.0)
    assert rollout.metrics["expected_reply_rate"] == pytest.approx(expected)
    assert rollout.reward == 1.0 and rollout.metrics["turns"] == 3
    assert rollout.metadata["first_fact"] in json.loads(rollout.metadata["options"])
    email = WrittenEmail.of(rollout)
    assert email.sends == 200 and email.options_of == SCENARIOS[0].seeds[0]
    [choice] = logged_choices([email], task, task.scores, explore=False)
    assert choice.rates is not None and set(choice.rates) == {f.id for f in GRAPH.facts_of(SCENARIOS[0].seeds[0])}
    assert choice.rates[fact] == pytest.approx(expected) and len(set(choice.rates.values())) > 1
    assert logged_choices([email.model_copy(update={"first_fact": None})], task, task.scores, explore=False) == []
    task.feedback = RecordedFeedback(EventStore(tmp_path / "feedback.sqlite"))
    [without_truth] = logged_choices([email], task, task.scores, explore=False)
    assert without_truth.rates is None
    assert f"Hi {SCENARIOS[0].prospect.first_name}" in rollout.metadata["body"]


def test_rollouts_are_sampled_as_the_settings_say(model: OutreachModel) -> None:
    policy = model.policy.model_copy(update={"temperature": 1.5, "top_p": 0.9, "min_p": 0.1})
    asyncio.run(open_task().rollout(policy, SCENARIOS[0]))
    assert {(sent["temperature"], sent["top_p"], sent["min_p"]) for sent in model.requests} == {(1.5, 0.9, 0.1)}


def test_a_policys_server_on_this_machine_is_asked_without_a_proxy(dead_proxy: None, model: OutreachModel) -> None:
    assert asyncio.run(open_task().rollout(model.policy, SCENARIOS[0])).metadata["outcome"] == "finished"


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ({"role": "assistant", "content": "I would rather not."}, "malformed_call"),
        (called("get_connected_nodes", {"node_id": "x"}), "max_turns"),
        (
            called("finalize_email", {"subject": "Half \ud83d", "body": "of a character", "citations": []}),
            "malformed_call",
        ),
    ],
)
def test_a_rollout_without_an_email_gets_no_reply(model: OutreachModel, reply: dict[str, Any], outcome: str) -> None:
    model.answer = lambda request: reply  # type: ignore[method-assign]
    rollout = asyncio.run(open_task().rollout(model.policy, SCENARIOS[0]))
    assert rollout.metadata["outcome"] == outcome and rollout.metadata["body"] is None
    assert WrittenEmail.of(rollout).sends == 0
    assert (rollout.metrics["reply_rate"], rollout.metrics["expected_reply_rate"], rollout.reward) == (
        0,
        0,
        0,
    )


def test_two_repeated_calls_are_suspicious_and_one_is_not(model: OutreachModel) -> None:
    model.answer = lambda request: called("get_connected_nodes", {"node_id": "p1"})  # type: ignore[method-assign]
    for turns, suspicious in ((2, False), (3, True)):
        rollout = asyncio.run(open_task(max_turns=turns).rollout(model.policy, SCENARIOS[0]))
        assert (rollout.metrics["turns"], rollout.metrics["suspect_repeated_calls"]) == (turns, suspicious)


def test_the_tools_never_raise_and_say_what_a_draft_lacks() -> None:
    tools = OutreachTools(GRAPH, NodeScores.fresh(GRAPH, 1.0), SCENARIOS[0], 6, "seed")
    for name, arguments in (
        ("no_tool", {}),
        (CONTEXT, {}),
        (CONTEXT, {"node_id": "f99"}),
        (FINALIZE, {"subject": "x"}),
    ):
        result = tools.call(name, arguments)
        assert result.invalid and result.text and result.email is None
    assert tools.call(CONTEXT, {"node_id": "p1"}).text.startswith("p1 is a product, not a fact")
    drafted = tools.call(PROPOSE, {"subject": "Hi", "body": "Buy now.", "citations": ["f1"]}).text
    assert "greet" in drafted and "state and cite a fact" in drafted and "end with a question" in drafted


def test_a_draft_may_repeat_the_goal_as_the_final_email_may() -> None:
    scenario = SCENARIOS[0].model_copy(update={"goal": "a call of 15 minutes"})
    tools = OutreachTools(GRAPH, NodeScores.fresh(GRAPH, 1.0), scenario, 6, "seed")
    fact = GRAPH.facts[0]
    tools.call(CONTEXT, {"node_id": fact.id})
    body = f"Hi {scenario.prospect.first_name}, {fact.text} [{fact.id}] Would a call of 15 minutes help?"
    draft = {"subject": fact.name, "body": body, "citations": [fact.id]}
    assert tools.call(PROPOSE, draft).text == "Nothing is missing. Finalize it."
    invented = tools.call(PROPOSE, {**draft, "body": body.replace("15", "17")}).text
    assert invented == "a number is in no fact"


def test_demonstrations_show_the_format_with_facts_at_random() -> None:
    shown = open_task().demonstrations(SCENARIOS[:12], 60)
    last = [json.loads(t.messages_and_choices[-1]["content"].split("\n")[1])["arguments"] for t in shown]
    cited = Counter(fact for arguments in last for fact in arguments["citations"])
    assert len(cited) > 12 and max(cited.values()) < 15
    assert {len(arguments["citations"]) for arguments in last} == {1, 2}


@pytest.mark.parametrize(
    "goal", ["a short call", "a call of half an hour with our team about the rounds that you plan by hand"]
)
def test_every_demonstration_earns_the_whole_verifiable_reward(goal: str) -> None:
    scenarios = {scenario.id: scenario.model_copy(update={"goal": goal}) for scenario in SCENARIOS}
    task = open_task()
    for shown in task.demonstrations(list(scenarios.values()), 200):
        scenario = scenarios[shown.metadata["scenario_id"]]
        arguments = json.loads(shown.messages_and_choices[-1]["content"].split("\n")[1])["arguments"]
        tools = OutreachTools(GRAPH, task.scores, scenario, 6, "seed")
        read = [GRAPH.node(fact) for fact in arguments["citations"]]
        found = check_email(Email(**arguments), scenario.prospect, read, tools.names, task.rubric)
        assert (verifiable_reward(found), found.quality) == (1.0, 1.0), arguments


def test_without_demonstrations_iteration_0_is_the_untouched_model(
    model: OutreachModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "run_training", without_backend(model.url))
    loop = open_loop(tmp_path)
    assert run(loop, demonstrations=0).history[0].phase == UNTOUCHED
    assert [metrics.iteration for metrics in loop.metrics()] == [0, 1, 2, 3]
    baseline = json.loads((loop.folder / BASELINE).read_text())
    assert len(baseline) == 2 and baseline == [email.model_dump(mode="json") for email in loop.emails(0, VALIDATION)]


def test_a_loop_that_does_not_validate_compares_its_first_iteration_with_its_last(
    model: OutreachModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "run_training", without_backend(model.url))
    loop = open_loop(tmp_path)
    run(loop, demonstrations=0, validate_every=0)
    compared = loop.compared_emails(3)
    assert (compared.first, compared.before, compared.after) == (1, loop.emails(1), loop.emails(3))
    assert len(json.loads((loop.folder / BASELINE).read_text())) == 8


def test_a_run_leaves_a_folder_per_iteration(
    model: OutreachModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "run_training", without_backend(model.url))
    console = RecordedProgress()
    loop = open_loop(tmp_path, progress=console)
    run(loop)
    assert console.reasons == ["max_steps=3 reached; the policy of the last iteration is kept"]
    assert [metrics.iteration for metrics in loop.metrics()] == [0, 1, 2, 3]
    assert [len(loop.emails(iteration, EMAILS)) for iteration in range(4)] == [0, 8, 8, 8]
    before = NodeScores.fresh(GRAPH, 0.97)
    for iteration in (1, 2, 3):
        emails = loop.emails(iteration)
        sent = [SentEmail(scenario=email.scenario, facts=email.facts, reward=email.reward) for email in emails]
        before = before.updated(sent)
        assert loop.scores_after(iteration) == before
    metrics = loop.metrics()[1]
    assert metrics.reward_min <= metrics.reward_median <= metrics.reward_max
    assert json.loads((loop.folder / STATE).read_text())["state"] == "finished"
    baseline, final = (json.loads((loop.folder / name).read_text()) for name in (BASELINE, FINAL))
    assert [email["scenario"] for email in baseline] == [email["scenario"] for email in final] and len(baseline) == 2


class Replying(Progress):
    """After iteration 1, every e-mail about one fact gets a reply."""

    def __init__(self, store: EventStore, folder: Path) -> None:
        self.store, self.folder, self.liked = store, folder, ""

    def rollouts(self, groups: Any, *, split: str, step: int) -> None:
        if split == "train" and step == 1:
            emails = json.loads((self.folder / "iterations" / "0001" / EMAILS).read_text())
            self.liked = emails[0]["facts"][0]
            for email in emails:
                self.store.record(email["message_id"], "replied" if self.liked in email["facts"] else "opened")


def test_recorded_feedback_counts_from_the_next_iteration_on(
    model: OutreachModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "run_training", without_backend(model.url))
    task, store = open_task(feedback="recorded"), EventStore(tmp_path / "feedback.sqlite")
    task.feedback = RecordedFeedback(store)
    replying = Replying(store, tmp_path / "run")
    loop = open_loop(tmp_path, task, progress=replying)
    run(loop)
    rates: dict[int, dict[str, float]] = {
        iteration: {email.facts[0]: email.reply_rate for email in loop.emails(iteration)} for iteration in (1, 2, 3)
    }
    assert all(rate == pytest.approx(MEAN_REPLY_RATE) for rate in rates[1].values())
    later = [(fact, rate) for iteration in (2, 3) for fact, rate in rates[iteration].items()]
    assert all((rate > MEAN_REPLY_RATE) == (fact == replying.liked) for fact, rate in later if fact in rates[1])
    assert any(fact in rates[1] for fact, _ in later)
    assert task.feedback.send(SCENARIOS[0], good(replying.liked), 200, "next").reply_rate > MEAN_REPLY_RATE
    assert all(metrics.expected_reply_rate is None for metrics in loop.metrics())


class DiesOnStep(Progress):
    def step(self, row: Any) -> None:
        if row.step == 2:
            raise Killed


@pytest.mark.parametrize(
    "where", ["rollout", "state", "scores", "messages", "update", "validation", "webhook", "after"]
)
def test_a_kill_anywhere_repeats_no_finished_iteration(
    model: OutreachModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("LEARN_LOOP_WEBHOOK_SECRET", "secret")
    backend: Any = without_backend(model.url)
    task, progress = open_task(), NoProgress()

    def die_in_iteration_2(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if (tmp_path / "run" / "iterations" / "0001" / "metrics.json").exists():
                raise Killed
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as dying:
        if where == "rollout":
            dying.setattr(task, "rollout", die_in_iteration_2(task.rollout))
        elif where == "update":
            dying.setattr(CountingBackend, "train", die_in_iteration_2(CountingBackend.train))
        elif where == "messages":
            dying.setattr(EventStore, "add_messages", die_in_iteration_2(EventStore.add_messages))
        elif where == "webhook":
            dying.setattr(Outbox, "put", die_in_iteration_2(Outbox.put))
        elif where in ("state", "scores"):
            name = {"state": "write_json", "scores": "write_text"}[where]
            dying.setattr(loop_module, name, die_in_iteration_2(getattr(loop_module, name)))
        elif where == "validation":
            dying.setattr(Validator, "validate", die_in_iteration_2(Validator.validate))
        else:
            progress = DiesOnStep()
        dying.setattr(loop_module, "run_training", backend)
        with pytest.raises(Killed):
            run(open_loop(tmp_path, task, "http://127.0.0.1:1/", progress))
    first = open_loop(tmp_path)
    kept = [email.message_id for email in first.emails(1)]
    monkeypatch.setattr(loop_module, "run_training", backend)
    monkeypatch.setattr(loop_module, "_GOODBYE_SECONDS", 0)
    again = open_loop(tmp_path, url="http://127.0.0.1:1/")
    run(again)
    assert [metrics.iteration for metrics in again.metrics()] == [0, 1, 2, 3]
    assert [email.message_id for email in again.emails(1)] == kept
    notices = sorted(file.stem for file in (again.folder / "webhook").glob("*.json"))
    assert notices == [f"run-{iteration:04d}" for iteration in range(4)]
    with again._store._connected() as connection:
        counts = connection.execute("SELECT iteration, count(*) FROM messages GROUP BY iteration").fetchall()
    assert counts == [(1, 8), (2, 8), (3, 8)]
