"""AgentDojo under evert: the same words earn what they earn under the package's own runner."""

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
from tests.tasksets.conftest import Said, as_text, scripted_openai
from tinker_cookbook.rl.data_processing import trajectory_to_data

from evert import ChatAgentEnv
from evert.bridge.import_paths import resolve
from evert.envs.games import GameError
from evert.envs.tasksets import task_game
from evert.envs.tasksets.agentdojo import OFFLINE, VERSION, AgentDojo

SUITES = get_suites(VERSION)
WAYS: list[list[str]] = [["user"], [], ["injection", "user"], ["injection"]]
"""Whose calls are made, in order."""


@pytest.fixture(autouse=True)
def logged(tmp_path: Path) -> Iterator[None]:
    """The package's runner writes a file for each message."""
    with OutputLogger(str(tmp_path)):
        yield


def script(suite: Any, task: str, roles: Sequence[str]) -> list[Said]:
    """The calls with which the benchmark itself would do a user's task, or an injection's."""
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
    """Utility and security by the package's own runner."""
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
    # The package begins again where the fifteenth round of tools ends without a word.
    assert len(trajectory_to_data(trajectory, 1.0)) == (1 if len(said) < 17 else 2)
    metrics = trajectory.transitions[-1].metrics
    utility, security = bool(metrics["utility"]), bool(metrics.get("attacked", True))
    assert reward(trajectory) == (utility and not (security and agent.attack))
    return utility, security


@pytest.mark.parametrize("name", SUITES)
async def test_every_users_task_earns_what_the_packages_own_runner_gives(name: str) -> None:
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


@pytest.mark.parametrize("attack", ["important_instructions", "tool_knowledge", "dos"])
@pytest.mark.parametrize("name", SUITES)
async def test_pairs_with_an_injection_do_too(name: str, attack: str) -> None:
    agent, suite = AgentDojo(name, attack), SUITES[name]
    tasks = [*agent.train_tasks[::11], *agent.test_tasks[:2]]
    plays = [(task, script(suite, task, WAYS[n % len(WAYS)])) for n, task in enumerate(tasks)]
    theirs = [
        await asyncio.to_thread(by_agentdojo, suite, task, said, attack) for task, said in plays
    ]
    ours = await asyncio.gather(*(by_evert(agent, task, said) for task, said in plays))
    assert ours == theirs
    assert {security for _, security in ours} == {True, False}
