"""verifiers in both directions (``evert.verifiers``), tested with a scripted model."""

import asyncio
import os
from typing import Any

import chat_agent
import pytest
import verifiers.v1 as vf
from game import TASKS
from openai import OpenAI
from openai_sdk import model
from tests.more_trainers.conftest import served_chat
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory
from verifiers_sums import ENVIRONMENT
from verifiers_sums import TASKS as SUMS
from verifiers_sums import agent as sums

from evert import AgentError, ChatAgentEnv, Outcome, ScriptedPolicy
from evert.bridge.episode.agent import Agent
from evert.verifiers import VerifiersAgent

LOCAL = {"runtime": {"type": "subprocess"}}


def answer(prompt: str) -> str:
    """Give the right answer on the second attempt."""
    return "I say 5" if "sure" in prompt else "Hm"


async def by_verifiers(config: Any, number: int, say: Any) -> vf.Episode:
    """Play an episode with verifiers alone. Its model is served at an endpoint."""
    env = vf.load_environment(vf.resolve_env_config(config))
    task = [*env.taskset][number]
    with served_chat(say) as url:
        client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
        async with env.serving():
            return await env.run_episode(task, vf.ModelContext(model="policy", client=client))


async def by_evert(agent: Agent, task: Any, say: Any, **options: Any) -> Trajectory:
    return await do_single_rollout(ScriptedPolicy(say), ChatAgentEnv(agent, task, **options))


@pytest.mark.parametrize("number", [0, 1])
async def test_a_verifiers_environment_as_an_agent_gives_the_same_rollout(number: int) -> None:
    assert (sums.tasks(), sums.tasks(limit=2)) == ([*SUMS], [0, 1])
    [trace] = (await by_verifiers(ENVIRONMENT, number, answer)).traces
    policy = ScriptedPolicy(answer)
    played = await do_single_rollout(policy, ChatAgentEnv(sums, number))

    assert [turn.reward for turn in played.transitions] == [0.0, trace.reward]
    assert trace.reward == 2.0 * (number == 1)
    assert len(played.transitions) == trace.num_turns == 2
    said = [message.content for message in trace.messages]
    assert all(text in policy.prompts[1] for text in said[:3])
    last = played.transitions[-1].metrics
    assert (last["reward/right"], last["length"]) == (trace.reward / 2, trace.metrics["length"])
    assert last["lineages"] == 1
    assert not [name for name in os.environ if name.startswith("EVERT_KEY_")]


async def test_a_limit_of_verifiers_truncates_the_episode() -> None:
    agent = VerifiersAgent({**ENVIRONMENT, "agent": {**LOCAL, "max_turns": 1}})
    [turn] = (await by_evert(agent, 1, answer)).transitions

    assert turn.metrics["stop/truncated"] == turn.metrics["env_stop/max_turns"] == 1.0


async def noting(client: Any, task: dict[str, int]) -> Outcome:
    """Make concurrent calls, and log a reward and a metric."""
    messages = [{"role": "user", "content": "find between 1 and 100"}]
    both = [client.chat.completions.create(messages=messages) for _ in range(2)]
    said = [reply.choices[0].message.content for reply in await asyncio.gather(*both)]
    client.reward(0.25)
    client.metric("asked", 2.0)
    return Outcome(float(said == ["50", "50"]), {"right": 1.0}, truncated=True)


def own_client(task: dict[str, int]) -> float:
    """A blocking agent with its own client."""
    client = OpenAI(api_key="none", base_url="http://127.0.0.1:9", max_retries=0)
    messages: Any = [{"role": "user", "content": "find between 1 and 100"}]
    completion = client.chat.completions.create(model="gpt-4o", messages=messages)
    return float(completion.choices[0].message.content == "50")


async def failing(client: Any, task: Any) -> float:
    raise ValueError("as told")


def as_environment(name: str, **more: Any) -> dict[str, Any]:
    harness = {"id": "verifiers-harness", "agent": name, **more}
    return {
        "taskset": {"id": "verifiers-harness", "tasks": "game:TASKS"},
        "agent": {**LOCAL, "harness": harness},
    }


HERE = "tests.more_trainers.test_verifiers"


async def test_the_outcome_of_an_agent_is_in_verifiers_trace() -> None:
    [trace] = (await by_verifiers(as_environment(f"{HERE}:noting"), 0, model)).traces

    assert (trace.ok, trace.reward) == (True, 1.25)
    assert trace.metrics == {"asked": 2.0, "right": 1.0}
    assert (trace.num_turns, trace.stop_condition) == (2, "truncated")


async def test_a_blocking_agent_with_its_own_client_plays_in_verifiers() -> None:
    config = as_environment(f"{HERE}:own_client", policy_names="gpt-4o")
    [trace] = (await by_verifiers(config, 0, model)).traces

    assert (trace.reward, trace.num_turns) == (1.0, 1)


async def test_an_agent_that_fails_fails_the_rollout_with_its_error() -> None:
    episode = await by_verifiers(as_environment(f"{HERE}:failing"), 0, model)

    assert not episode.ok
    assert "as told" in episode.traces[0].last_error.message


async def test_an_agent_wrapped_for_verifiers_and_back_plays_the_same() -> None:
    back = VerifiersAgent(as_environment("chat_agent:agent"))
    once, twice = [
        [(turn.ob.to_ints(), turn.reward) for turn in played.transitions]
        for played in (
            await by_evert(chat_agent.agent, TASKS[20], model),
            await by_evert(back, 20, model),
        )
    ]

    assert once == twice


@pytest.mark.parametrize(
    ("config", "task", "message"),
    [
        (ENVIRONMENT, 7, "Sums has no task 7; expected a vf.Task or an index from"),
        (as_environment(f"{HERE}:failing"), 0, "The verifiers episode of .* failed: .*as told"),
        ({"taskset": {"id": "not-there"}}, 0, "'not-there' not found"),
    ],
)
async def test_failures_in_verifiers_are_agent_errors(config: Any, task: Any, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        await by_evert(VerifiersAgent(config), task, answer)


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_cancelled_verifiers_agent_leaves_nothing_behind(turns: int) -> None:
    env, before = ChatAgentEnv(sums, 1), asyncio.all_tasks()
    observation, stop = await env.initial_observation()
    for _ in range(turns):
        reply = await ScriptedPolicy(answer)(observation, stop)
        await env.step(reply.tokens)
    await env.close()
    await asyncio.sleep(0.1)

    assert asyncio.all_tasks() <= before
    assert not [name for name in os.environ if name.startswith("EVERT_KEY_")]
