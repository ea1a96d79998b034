"""The examples in ``docs/trainers.md`` run with a scripted model."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chat_agent
import httpx
import pytest
import tinker
from game import TASK, TASKS
from openai_sdk import model
from tests.more_trainers.conftest import EXAMPLES, served
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy, sequences


def test_verifiers_plays_the_agent_and_records_its_turns_and_reward(
    endpoint: str, tmp_path: Path
) -> None:
    command = Path(sys.executable).with_name("vf-eval")
    options = [
        "verifiers-harness",
        "--env.agent.harness.id", "verifiers-harness",
        "--env.agent.harness.agent", "chat_agent:agent",
        "--env.taskset.tasks", "game:TASKS", "--env.agent.runtime.type", "subprocess",
        "--client.base-url", endpoint, "--client.api-key-var", "MY_KEY", "-m", "policy", "-n", "3",
        "--no-push", "--no-rich", "-o", str(tmp_path),
    ]  # fmt: skip
    paths = [*EXAMPLES, os.environ.get("PYTHONPATH", "")]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([command, *options], env=own, check=True, cwd=tmp_path)

    [path] = tmp_path.rglob("traces.jsonl")
    lines = path.read_text().splitlines()
    [traces] = zip(*(json.loads(line)["traces"] for line in lines), strict=True)
    assert [trace["rewards"] for trace in traces] == [{"agent": {"score": 1.0, "weight": 1.0}}] * 3
    said = [[node["sampled"] for node in trace["nodes"]].count(True) for trace in traces]
    assert sorted(said) == sorted(bisections(task) for task in TASKS[:3])


def bisections(task: dict[str, int]) -> int:
    """Return how many replies the scripted model needs."""
    env = ChatAgentEnv(chat_agent.agent, task)
    return len(asyncio.run(do_single_rollout(ScriptedPolicy(model), env)).transitions)


async def test_areals_class_plays_at_its_endpoint_and_returns_the_reward(endpoint: str) -> None:
    from areal_agent import AgentWorkflow

    async with httpx.AsyncClient() as shared:
        given = {"base_url": endpoint, "api_key": "of this session", "http_client": shared}
        reward = await AgentWorkflow().run({"task": TASK}, **given, more="of a later version")

    assert reward == 1.0


class Status(Enum):
    PENDING, COMPLETED, ABORTED = "pending", "completed", "aborted"


@dataclass
class Sample:
    """The fields of slime's ``Sample`` that the example reads and writes."""

    metadata: dict[str, Any]
    status: Status = Status.PENDING
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    reward: float | None = None
    Status = Status


def router(body: dict[str, Any]) -> dict[str, Any]:
    """Respond like SGLang, with a scripted model."""
    prompt = tinker.ModelInput.from_ints(body["input_ids"])
    stop = body["sampling_params"]["stop_token_ids"]
    reply = asyncio.run(ScriptedPolicy(model)(prompt, stop))
    pairs = [[-0.5, token, None] for token in reply.tokens]
    return {"meta_info": {"output_token_logprobs": pairs, "finish_reason": {"type": "stop"}}}


async def generated(answer: Any, task: Any) -> Sample:
    from slime_generate import generate

    with served(answer) as port:
        args = SimpleNamespace(
            sglang_router_ip="127.0.0.1", sglang_router_port=port, hf_checkpoint="evert-tiny"
        )
        played: Sample = await generate(args, Sample({"task": task}), {"max_new_tokens": 16})
    return played


async def test_slimes_sample_has_the_sampled_tokens_masks_and_reward() -> None:
    policy = ScriptedPolicy(model)
    trajectory = await do_single_rollout(policy, ChatAgentEnv(chat_agent.agent, TASK))
    [expected] = sequences(trajectory)
    sample = await generated(router, TASK)

    assert sample.tokens == expected.prompt_ids + expected.response_ids
    assert sample.loss_mask == expected.response_mask
    assert sample.response_length == len(expected.response_ids)
    assert sample.rollout_log_probs == [-0.5 * sampled for sampled in expected.response_mask]
    assert (sample.reward, sample.status) == (1.0, Status.COMPLETED)


async def test_a_sample_that_slime_stops_is_aborted_together_with_its_agent() -> None:
    stopped = {"meta_info": {"finish_reason": {"type": "abort"}}}

    assert (await generated(lambda body: stopped, TASK)).status is Status.ABORTED


def test_skyrl_gym_plays_the_agent_one_reply_at_a_time() -> None:
    import skyrl_gym
    import skyrl_gym_env  # registers the environment

    env = skyrl_gym.make("evert_agent", env_config={}, extras={"task": TASK})
    conversation, _ = env.init([])
    rewards, done = [], False
    while not done:
        said = model(" ".join(message["content"] for message in conversation))
        step = env.step(said)
        conversation += [{"role": "assistant", "content": said}, *step["observations"]]
        rewards.append(step["reward"])
        done = step["done"]
    env.close()

    assert isinstance(env, skyrl_gym_env.AgentTextEnv)
    assert rewards == [0.0] * (bisections(TASK) - 1) + [1.0]
    assert [message["role"] for message in conversation[:3]] == ["user", "assistant", "user"]


def test_an_agent_that_rewrites_its_conversation_is_refused_by_skyrl_gym(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import skyrl_gym_env

    async def forgetful(client: Any, task: Any) -> float:
        for said in ("one", "two"):
            await client.chat.completions.create(messages=[{"role": "user", "content": said}])
        return 1.0

    monkeypatch.setattr(skyrl_gym_env, "agent", forgetful)
    env = skyrl_gym_env.AgentTextEnv(extras={"task": TASK})
    env.init([])
    with pytest.raises(NotImplementedError, match="train with a generator"):
        env.step("a reply")
    env.close()
