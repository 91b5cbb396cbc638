"""The coding task against a real sandbox service: oracle, bad policies, failures of the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.coding import task as task_module
from tasks.coding.built_in import built_in_scenarios
from tasks.coding.checking import require_checked
from tasks.coding.errors import SandboxUnavailable
from tasks.coding.patterns import HELD_OUT, NAMES, PATTERNS
from tasks.coding.repl import SHORTENED, CodingRun, PolicyActor, ScriptedActor, cell_of, finishes, play
from tasks.coding.rewards import Result, all_tests, partial_tests, reward_function
from tasks.coding.sandbox_client import SandboxClient, require_sandbox
from tasks.coding.sandbox_service import sandbox_service
from tasks.coding.scenarios import CodingScenario
from tasks.coding.settings import CodingSettings
from tasks.coding.task import CodingTask
from tests.fakes.policy import ScriptedPolicy
from tests.sandbox.docker_daemon import require_bubblewrap
from training.errors import BadInput
from training.policy_client import policy_client
from training.task import Policy

pytestmark = pytest.mark.service

SCENARIOS = built_in_scenarios(train=30, test=20, seed=1)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    require_bubblewrap()
    with sandbox_service(None, capacity=8) as url:
        yield url


def test_the_address_of_a_service_may_end_with_a_slash(url: str) -> None:
    with sandbox_service(f"{url}/", capacity=1) as found:
        assert found == url


def played(url: str, cells: list[str], scenario: CodingScenario, **settings: object) -> CodingRun:
    """One episode of known cells."""

    async def run() -> CodingRun:
        async with SandboxClient(url, patience=1) as sandbox:
            chosen = CodingSettings(**settings)
            return await play(ScriptedActor(cells), scenario, chosen, sandbox, max_tokens=64, system_prompt=None)

    return asyncio.run(run())


def episode(url: str, cells: list[str], **settings: object) -> CodingRun:
    return played(url, cells, SCENARIOS[0], **settings)


@pytest.mark.parametrize(("times", "outcome"), [(1, "finished"), (2, "workspace_lost")])
def test_a_cell_that_ends_its_workspace_each_time_repairs_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch, times: int, outcome: str
) -> None:
    execute, ended = SandboxClient.execute, list[str]()

    async def ending(self: SandboxClient, workspace: str, code: str) -> dict[str, Any]:
        if "finish()" in code and "def finish" not in code and len(ended) < times:
            ended.append(workspace)
            await self.destroy(workspace)  # as if its container had run out of memory
        return await execute(self, workspace, code)

    monkeypatch.setattr(SandboxClient, "execute", ending)
    run = episode(url, SCENARIOS[0].oracle_cells())
    assert (run.outcome, run.correct) == (outcome, times == 1) and len(ended) == times
    assert require_sandbox(url)


def test_cells_that_are_replayed_find_the_functions_of_the_prelude_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, ended = SandboxClient.execute, list[str]()

    async def ending(self: SandboxClient, workspace: str, code: str) -> dict[str, Any]:
        if code == "finish()" and not ended:
            ended.append(workspace)
            await self.destroy(workspace)
        return await execute(self, workspace, code)

    monkeypatch.setattr(SandboxClient, "execute", ending)
    run = episode(url, ["import os\nos._exit(3)", *SCENARIOS[0].oracle_cells()])
    assert run.outcome == "finished" and run.correct and ended


def test_the_built_in_bugs_are_the_same_every_time_and_hold_names_and_families_out() -> None:
    assert built_in_scenarios(train=30, test=20, seed=1) == SCENARIOS
    assert built_in_scenarios(train=30, test=20, seed=2) != SCENARIOS
    for placeholder in NAMES["train"]:
        assert not set(NAMES["train"][placeholder]) & set(NAMES["test"][placeholder])
    unseen = {pattern.kind for pattern in HELD_OUT}
    assert not unseen & {pattern.kind for pattern in PATTERNS}
    of_test = built_in_scenarios(train=0, test=100, seed=1)
    assert {scenario.kind for scenario in of_test if scenario.held_out_family} == unseen
    assert len({scenario.files["target.py"] for scenario in SCENARIOS}) == len(SCENARIOS)


def test_demonstrations_that_fail_first_show_what_the_agent_would_see(url: str) -> None:
    task = CodingTask(SCENARIOS, CodingSettings(), "http://127.0.0.1:9", max_tokens=64)
    known = {scenario.id: scenario for scenario in SCENARIOS}
    shown = task.demonstrations(task.train_scenarios(), len(SCENARIOS))
    retried = [example for example in shown if len(example.messages_and_choices) == 7]
    assert 0.1 < len(retried) / len(shown) < 0.6
    for example in retried[:3]:
        turns = [dict(turn) for turn in example.messages_and_choices]
        cells = [turn["content"] for turn in turns if turn["role"] == "assistant"]
        played_back = played(url, cells, known[str(example.metadata["scenario_id"])])
        assert played_back.correct
        assert [turn["content"] for turn in played_back.record] == [turn["content"] for turn in turns]


def test_every_bug_fails_before_and_passes_after_its_reference_patch(url: str) -> None:
    asyncio.run(require_checked(SCENARIOS, url))
    repaired = SCENARIOS[0].model_copy(update={"files": SCENARIOS[0].reference_patch()["changed"]})
    with pytest.raises(BadInput, match="its tests pass before the repair"):
        asyncio.run(require_checked([SCENARIOS[1], repaired], url))


def test_a_sandbox_that_fails_during_the_check_is_one_line() -> None:
    with pytest.raises(
        BadInput, match=r"^the check of the bugs .*127\.0\.0\.1:9: ConnectError.* with a larger capacity"
    ):
        asyncio.run(require_checked(SCENARIOS, "http://127.0.0.1:9", patience=0.1))


def test_oracle_repairs_and_do_nothing_does_not(url: str) -> None:
    done = episode(url, SCENARIOS[0].oracle_cells())
    assert done.correct and done.outcome == "finished" and done.steps == 2
    assert done.record[3]["content"] == "the example passes"  # as the demonstrations say
    assert done.transcript()[-1] == {
        "role": "tests",
        "content": f"{len(done.passed)} of {len(done.passed)} hidden checks pass",
    }
    idle = episode(url, [])
    assert not idle.correct and idle.patch["changed"] == {}


def test_output_is_told_and_the_oldest_is_shortened_when_the_context_is_full(url: str) -> None:
    cells = ["print('x' * 1500)", "1 / 0", "import os; os._exit(3)", "'still here'", *SCENARIOS[0].oracle_cells()]
    run = episode(url, cells, max_repl_steps=6, max_context_tokens=800)
    recorded = [turn["content"] for turn in run.record if turn["role"] == "user"][1:]
    assert recorded[0] == SHORTENED and run.shortened >= 1
    assert "ZeroDivisionError" in recorded[1] and "exited with code 3" in recorded[2] and "still here" in recorded[3]
    assert run.correct


def test_too_many_steps_and_a_full_context_end_an_episode(url: str) -> None:
    assert episode(url, ["1"] * 9, max_repl_steps=2).outcome == "max_repl_steps"
    assert episode(url, ["'é' * 30000", "1"], max_context_tokens=200).outcome == "context"


def test_an_episode_that_a_full_context_ends_is_recorded_as_it_was_sampled(url: str) -> None:
    cells = ["print('x' * 150)", f"1  # {'long ' * 400}", "print('y' * 150)"]
    run = episode(url, cells, max_repl_steps=6, max_context_tokens=900)
    recorded = [turn["content"] for turn in run.record if turn["role"] == "user"][1:]
    assert run.outcome == "context" and run.steps == 3 and run.shortened == 0
    assert recorded == ["x" * 150, "1"]


def test_a_cell_that_is_too_long_is_a_mistake_of_the_policy(url: str) -> None:
    run = episode(url, ["#" + 100_000 * "=", *SCENARIOS[0].oracle_cells()], max_context_tokens=1_000_000)
    assert run.correct and "(the cell was not run: it is too long or no text)" in run.record[3]["content"]


def test_a_lost_sandbox_is_an_error_and_no_wrong_repair() -> None:
    with pytest.raises(SandboxUnavailable):
        episode("http://127.0.0.1:9", ["1"])


def test_rollouts_are_sampled_as_the_settings_say(slow_policy: ScriptedPolicy) -> None:
    policy = slow_policy.policy.model_copy(update={"temperature": 1.5, "top_p": 0.9, "min_p": 0.1})
    slow_policy.replies = ["1"]

    async def one_reply() -> None:
        await PolicyActor(policy, policy_client(policy), 60).reply([{"role": "user", "content": "?"}])

    asyncio.run(one_reply())
    [sent] = slow_policy.requests
    assert (sent["temperature"], sent["top_p"], sent["min_p"]) == (1.5, 0.9, 0.1)


def test_a_policys_server_on_this_machine_is_asked_without_a_proxy(
    dead_proxy: None, slow_policy: ScriptedPolicy
) -> None:
    slow_policy.replies, slow_policy.seconds_per_reply = ["1"], 0
    elsewhere = Policy(base_url="http://policy.example.com/v1", model="m")

    async def one_reply() -> str:
        assert policy_client(elsewhere)._client.trust_env
        actor = PolicyActor(slow_policy.policy, policy_client(slow_policy.policy), 60)
        return (await actor.reply([{"role": "user", "content": "?"}])).text

    assert asyncio.run(one_reply()) == "1"


def test_a_slow_episode_is_no_error_as_long_as_the_policys_server_works(
    url: str, slow_policy: ScriptedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = CodingTask(SCENARIOS, CodingSettings(), url, max_tokens=64)
    monkeypatch.setattr(task_module, "REPLY_TIMEOUT", 0.1)

    async def run() -> CodingRun:
        assert policy_client(slow_policy.policy).timeout is None
        return await task.run(slow_policy.policy, SCENARIOS[0])

    slow_policy.replies, slow_policy.tokens_between_looks = SCENARIOS[0].oracle_cells(), 7
    assert asyncio.run(run()).correct


@pytest.mark.parametrize("between_looks", [0, None], ids=["counters that stand still", "no counters"])
def test_a_policys_server_that_does_nothing_is_an_error(
    url: str, slow_policy: ScriptedPolicy, between_looks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = CodingTask(SCENARIOS, CodingSettings(), url, max_tokens=64)
    monkeypatch.setattr(task_module, "REPLY_TIMEOUT", 0.1)
    slow_policy.replies, slow_policy.tokens_between_looks = ["1"], between_looks
    with pytest.raises(TimeoutError, match=r"made no progress for 0\.1 s"):
        asyncio.run(task.run(slow_policy.policy, SCENARIOS[0]))


def test_a_cell_that_got_no_processor_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(self: SandboxClient, method: str, path: str, body: object, **_: object) -> dict:
        if path.endswith("/cells"):
            return {"starved": True, "ended": "wall time limit of 10 s"}
        return await ask(self, method, path, body)

    ask = SandboxClient._ask
    monkeypatch.setattr(SandboxClient, "_ask", busy)
    with pytest.raises(SandboxUnavailable, match="too busy: wall time limit of 10 s"):
        episode(url, ["1"])


def test_cells_and_finish() -> None:
    assert cell_of("Let me see.\n```python\nfix(1, 'x')\n```\nDone.") == "fix(1, 'x')"
    thought = "<think>\n```python\nerase()\n```\n"
    assert cell_of(f"\n{thought}</think>\n\n```python\nfix(1, 'x')\n```") == "fix(1, 'x')"
    assert cell_of(thought) == "", "an unfinished thought"
    assert finishes("x = 1\nfinish()") and not finishes("'finish()'") and not finishes("finish(")


def test_rewards() -> None:
    half = Result(passed=2, checks=4, steps=3, finished=True, step_cost=0.1)
    full = half.model_copy(update={"passed": 4})
    assert (all_tests(half), partial_tests(half)) == (0.0, 0.25), "cells are free where nothing is repaired"
    early = half.model_copy(update={"steps": 1})
    assert partial_tests(early) == partial_tests(half), "giving up early does not pay"
    assert all_tests(full) == partial_tests(full) == pytest.approx(0.8)
    with pytest.raises(BadInput, match="coding_reward=nowhere"):
        reward_function("nowhere")


OWN_REWARDS = """
def steps(result):
    return result.steps

async def later(result):
    return 0.5

def mistaken(result):
    return {}["x"]

def nothing(result):
    pass

def nan(result):
    return float("nan")
"""


def test_an_own_reward_that_cannot_be_used_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_coding_functions.py").write_text(OWN_REWARDS)
    monkeypatch.syspath_prepend(tmp_path)

    async def three_steps(self: CodingTask, policy: Policy, scenario: CodingScenario) -> CodingRun:
        patch = {"changed": {}, "deleted": []}
        counts = {"steps": 3, "shortened": 0, "sampled_tokens": 0, "context_tokens": 0, "seconds": 0}
        return CodingRun(outcome="finished", cells=[], patch=patch, passed=[False], **counts)

    def reward(name: str) -> float:
        own = CodingSettings(coding_reward=f"own_coding_functions:{name}")
        task = CodingTask(SCENARIOS, own, "http://127.0.0.1:9", max_tokens=64)
        return asyncio.run(task.rollout(Policy(base_url="http://127.0.0.1:9", model="m"), SCENARIOS[0])).reward

    monkeypatch.setattr(CodingTask, "run", three_steps)
    assert (reward("steps"), reward("later")) == (3.0, 0.5)
    for name, problem in (
        ("mistaken", r"mistaken raised KeyError: 'x' \(.*own_coding_functions\.py, line 9\)"),
        ("nothing", "nothing returned None, which is not a finite number"),
        ("nan", "nan returned nan, which is not a finite number"),
    ):
        with pytest.raises(BadInput, match=f"^coding_reward: {problem}$"):
            reward(name)


def test_a_context_smaller_than_the_prompt_is_refused() -> None:
    with pytest.raises(BadInput, match="max_context_tokens=128 is too small"):
        CodingTask(SCENARIOS, CodingSettings(max_context_tokens=128), "http://127.0.0.1:9", max_tokens=64)


def test_demonstrations_are_reference_patches() -> None:
    task = CodingTask(SCENARIOS, CodingSettings(), "http://127.0.0.1:9", max_tokens=64)
    for example in task.demonstrations(task.train_scenarios(), 20):
        said = [turn["content"] for turn in example.messages_and_choices if turn["role"] == "assistant"]
        assert all(cell.startswith("fix(") for cell in said[:-1]) and said[-1] == "finish()"
