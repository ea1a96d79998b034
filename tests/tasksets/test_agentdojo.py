"""AgentDojo under evert: the same replies earn the same as in the package's own runner."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agentdojo.agent_pipeline import AgentPipeline, OpenAILLM, PipelineConfig
from agentdojo.agent_pipeline.agent_pipeline import DEFENSES
from agentdojo.attacks import load_attack
from agentdojo.attacks.attack_registry import ATTACKS
from agentdojo.benchmark import run_task_with_injection_tasks, run_task_without_injection_tasks
from agentdojo.logging import OutputLogger
from agentdojo.task_suite import get_suites
from tests.kit import play, reward
from tests.tasksets.conftest import Said, as_text, check_lines_of_the_page, scripted_openai
from tinker_cookbook.rl.data_processing import trajectory_to_data

from evert import ChatAgentEnv
from evert.bridge.import_paths import resolve
from evert.envs.games import GameError
from evert.envs.tasksets import task_game
from evert.envs.tasksets.agentdojo import LEFT_OUT, OFFLINE, VERSION, AgentDojo

SUITES = get_suites(VERSION)
WAYS: list[list[str]] = [["user"], [], ["injection", "user"], ["injection"]]
"""The roles whose calls are made, in order."""


@pytest.fixture(autouse=True)
def logged(tmp_path: Path) -> Iterator[None]:
    """Send the log files of the package's runner (one per message) to a temporary folder."""
    with OutputLogger(str(tmp_path)):
        yield


def script(suite: Any, task: str, roles: Sequence[str]) -> list[Said]:
    """Return the calls with which the benchmark solves a user task or an injection task."""
    _, *ids = task.split("/")
    user = suite.get_user_task_by_id(ids[0])
    tasks = {"user": user}
    if len(ids) > 1:
        tasks["injection"] = suite.get_injection_task_by_id(ids[1])
    environment = user.init_environment(suite.load_and_inject_default_environment({}))
    calls = [call for role in roles for call in tasks[role].ground_truth(environment)]
    last = user.GROUND_TRUTH_OUTPUT if "user" in roles else ""
    return [*([(call.function, call.args)] for call in calls), last]


def by_agentdojo(suite: Any, task: str, said: list[Said], attack: str) -> tuple[bool, bool]:
    """Return utility and security according to the package's own runner."""
    llm = OpenAILLM(scripted_openai(said), "scripted")
    llm.name = "local"
    given: dict[str, Any] = {"model_id": None, "system_message_name": None, "system_message": None}
    pipeline = AgentPipeline.from_config(PipelineConfig(llm=llm, defense=None, **given))
    _, user_id, *injections = task.split("/")
    user = suite.get_user_task_by_id(user_id)
    if not injections:
        return run_task_without_injection_tasks(suite, pipeline, user, None, force_rerun=True)
    own = load_attack(attack, suite, pipeline)
    both = run_task_with_injection_tasks(suite, pipeline, user, own, None, True, injections)
    [utility], [security] = (result.values() for result in both)
    return utility, security


async def by_evert(agent: AgentDojo, task: str, said: list[Said]) -> tuple[bool, bool]:
    trajectory = await play(agent, *map(as_text, said), task=task)
    # The package starts over if the fifteenth round of tool calls ends without text.
    assert len(trajectory_to_data(trajectory, 1.0)) == (1 if len(said) < 17 else 2)
    metrics = trajectory.transitions[-1].metrics
    utility, security = bool(metrics["utility"]), bool(metrics.get("attacked", True))
    assert reward(trajectory) == (utility and not (security and agent.attack))
    return utility, security


@pytest.mark.parametrize("name", SUITES)
async def test_every_user_task_earns_the_reward_of_the_packages_own_runner(name: str) -> None:
    agent, suite = AgentDojo(name), SUITES[name]
    tasks = sorted(agent.train_tasks + agent.test_tasks)
    assert len(tasks) == len(suite.user_tasks)
    for roles in (["user"], []):
        scripts = [script(suite, task, roles) for task in tasks]
        theirs = [
            await asyncio.to_thread(by_agentdojo, suite, task, said, "")
            for task, said in zip(tasks, scripts, strict=True)
        ]
        each = zip(tasks, scripts, strict=True)
        ours = await asyncio.gather(*(by_evert(agent, task, said) for task, said in each))
        assert ours == theirs
        if roles:
            assert {utility for utility, _ in ours} == {True}
        else:
            assert False in {utility for utility, _ in ours}


@pytest.mark.parametrize("attack", ["important_instructions", "dos"])
@pytest.mark.parametrize("name", SUITES)
async def test_pairs_with_an_injection_earn_the_runners_reward(name: str, attack: str) -> None:
    agent, suite = AgentDojo(name, attack), SUITES[name]
    tasks = [*agent.train_tasks[:: len(agent.train_tasks) // 8 + 1], *agent.test_tasks[:2]]
    plays = [(task, script(suite, task, WAYS[n % len(WAYS)])) for n, task in enumerate(tasks)]
    theirs = [
        await asyncio.to_thread(by_agentdojo, suite, task, said, attack) for task, said in plays
    ]
    ours = await asyncio.gather(*(by_evert(agent, task, said) for task, said in plays))
    assert ours == theirs
    assert {security for _, security in ours} == {True, False}


@pytest.mark.parametrize("given", [{"defense": one} for one in DEFENSES if one not in LEFT_OUT])
@pytest.mark.filterwarnings("ignore:The query is not being added")  # the defense adds it again
async def test_a_defense_changes_the_policys_prompts(given: dict[str, str]) -> None:
    agent = AgentDojo("banking", **given)
    [call, *_] = script(SUITES["banking"], "banking/user_task_1", ["user"])
    seen: list[str] = []

    def says(prompt: str) -> str:
        seen.append(prompt)
        if "Output the comma-separated list" in prompt and len(seen) == 1:
            return "get_most_recent_transactions"
        return "Done." if "<tool_response>" in prompt else as_text(call)

    await play(agent, says, task="banking/user_task_1")
    plain = list(seen)
    seen.clear()
    await play(AgentDojo("banking"), says, task="banking/user_task_1")
    assert plain != seen


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name not in LEFT_OUT])
def test_every_attack_has_pairs_and_held_out_pairs_use_held_out_user_tasks(attack: str) -> None:
    agent = AgentDojo("slack,travel", attack)
    plain = AgentDojo("slack,travel")
    for tasks, users in (
        (agent.train_tasks, plain.train_tasks),
        (agent.test_tasks, plain.test_tasks),
    ):
        assert {task.rpartition("/")[0] for task in tasks} == {*users}
    goals = {"slack": 1, "travel": 1} if "dos" in attack else {"slack": 5, "travel": 7}
    pairs = [21 * goals["slack"], 20 * goals["travel"]]
    assert len(agent.train_tasks) + len(agent.test_tasks) == sum(pairs)


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>\n{"name": "send_money", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "__import__", "arguments": {"name": "os"}}\n</tool_call>',
        as_text([("get_most_recent_transactions", {"n": "[" * 5000})]),
        as_text([("read_file", {"file_path": "__import__('os').abort()"})]),
        as_text([("read_file", {"file_path": "-" * 3000 + "1"})]),
    ],
)
async def test_no_call_reaches_outside_the_workspace(said: str) -> None:
    given = {"task": "banking/user_task_1", "on_agent_error": 0.0}  # the last case raises an error
    assert reward(await play(AgentDojo("banking"), said, "Done.", **given)) == 0


async def test_a_cancelled_episode_stops_its_thread() -> None:
    before = {*threading.enumerate()}
    env = ChatAgentEnv(AgentDojo("banking"), "banking/user_task_1")
    await env.initial_observation()
    await env.close()
    assert not [thread for thread in {*threading.enumerate()} - before if thread.is_alive()]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"id": "agentdojo:bank"},
            r"no workspace 'bank'\. Did you mean banking\? Available: banking, sl",
        ),
        ({"id": "agentdojo:banking", "attack": "manual"}, "no attack 'manual'.* Available: .*dir"),
        ({"id": "agentdojo:slack", "defense": "transformers_pi_detector"}, "no defense 'transf"),
        (
            {"id": "agentdojo:slack", "atack": "dos"},
            r"unexpected .*'atack'\. Its signature is \(suites: str",
        ),
    ],
)
def test_unknown_suites_and_attacks_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GameError, match=message):
        task_game(given)


def test_an_agentdojo_game_names_its_agent_and_tasks() -> None:
    game = task_game({"id": "agentdojo:banking", "attack": "direct"})
    assert resolve(game.agent, "agent", GameError) == AgentDojo("banking", "direct")
    tasks = (resolve(path, "tasks", GameError) for path in (game.train_tasks, game.test_tasks))
    assert [len(each) for each in tasks] == [13 * 9, 3 * 9]
    assert set(game.metrics) == {"utility", "attacked"}
    assert all(task_game({"id": f"agentdojo:{name}"}) for name in OFFLINE)


def test_the_command_lines_of_the_agentdojo_page_are_valid() -> None:
    check_lines_of_the_page("agentdojo")
