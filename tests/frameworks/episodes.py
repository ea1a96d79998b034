"""Helpers shared by the tests of all examples."""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import walk_stack
from typing import Any

import pytest
import tinker
from tinker_cookbook.completers import StopCondition, TokensWithLogprobs
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentDatasetBuilder, ChatAgentEnv, EnvClosedError, ScriptedPolicy, embedded_engine
from evert.bridge.tokens.bases import BASE_MODEL, BASE_RENDERER


def reward(trajectory: Trajectory) -> float:
    """Return the total reward of an episode."""
    return sum(transition.reward for transition in trajectory.transitions)


def by_rank(trajectories: list[Trajectory]) -> list[float]:
    """Return a different reward for each trajectory, so that there is always something to learn."""
    return [float(rank) for rank in range(len(trajectories))]


def train_one_step(agent: str, tasks: Sequence[Any], folder: Path) -> None:
    """Assert that one step of ``rl.train.main``, with two episodes per task, trains the model."""
    builder = AgentDatasetBuilder(
        agent=agent,
        train_tasks=tasks,
        batch_size=2,
        group_size=2,
        group_reward=by_rank,
        limits=RolloutLimits(max_turns=3),
        # The tiny base model has not learned to play, so frameworks may raise on its output.
        env_options={"on_agent_error": 0.0},
    )
    sizes: dict[str, Any] = {"max_tokens": 24, "max_steps": 1, "eval_every": 0, "save_every": 0}
    config = rl_train.Config(
        recipe_name="test",
        learning_rate=1e-3,
        dataset_builder=builder,
        model_name=BASE_MODEL,
        renderer_name=BASE_RENDERER,
        temperature=3.0,  # identical replies with opposite advantages would give no gradient
        log_path=str(folder / "log"),
        **sizes,
    )
    with embedded_engine(folder / "store", device="cpu", threads=1):
        asyncio.run(rl_train.main(config))
    lines = (folder / "log" / "metrics.jsonl").read_text().splitlines()
    [row] = [row for row in map(json.loads, lines) if "optim/grad_norm" in row]
    assert row["env/all/total_episodes"] == 4
    assert row["env/all/total_ac_tokens"] > 0
    assert row["optim/grad_norm"] > 0


def threads_in_a_model_call() -> list[int]:
    """Return the threads that are waiting for a reply from the policy."""
    stacks = {thread: walk_stack(frame) for thread, frame in sys._current_frames().items()}
    names = {t: {frame.f_code.co_name for frame, _ in stack} for t, stack in stacks.items()}
    return [thread for thread in names if "call_blocking" in names[thread]]


def tasks_besides_this() -> list[str]:
    """Return the other tasks on the loop, except the one that LiteLLM keeps on every loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return [name for name in map(str, others) if "LoggingWorker._worker_loop" not in name]


async def give_up_at_the_second_call(env: ChatAgentEnv, policy: ScriptedPolicy) -> None:
    """Close an Env whose agent is waiting for its second reply; assert that nothing lingers."""
    prompt, stop = await env.initial_observation()
    result = await env.step((await policy(prompt, stop)).tokens)
    assert not result.episode_done

    async with asyncio.timeout(1):
        await env.close()

    assert not env.is_running
    with pytest.raises(EnvClosedError):
        await env.step([0])
    for _ in range(500):  # tasks cancelled by the framework need a moment
        if not tasks_besides_this() and not threads_in_a_model_call():
            break
        await asyncio.sleep(0.01)
    assert tasks_besides_this() == []
    assert threads_in_a_model_call() == []


class Lockstep:
    """Holds back every reply until all running episodes are waiting for one."""

    def __init__(self, running: int) -> None:
        self.running = running
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait until all other episodes are waiting, too."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self._release()
        await mine

    def leave(self) -> None:
        """Record that an episode has ended."""
        self.running -= 1
        self._release()

    def _release(self) -> None:
        if len(self._waiting) == self.running:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one.set_result(None)


class InStep(ScriptedPolicy):
    """The script of one episode, in lockstep with the other episodes."""

    def __init__(self, model: Callable[[str], str], others: Lockstep) -> None:
        super().__init__(model)
        self._others = others

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, **options: Any
    ) -> TokensWithLogprobs:
        await self._others.wait()
        return await super().__call__(model_input, stop, **options)


async def play_in_lockstep(
    agent: Callable[..., Any], model: Callable[[str], str], tasks: Sequence[Any]
) -> list[tuple[Trajectory, ScriptedPolicy]]:
    """Play one episode per task concurrently; return trajectories and policies in task order."""
    others = Lockstep(len(tasks))

    async def play(task: Any) -> tuple[Trajectory, ScriptedPolicy]:
        policy = InStep(model, others)
        try:
            return await do_single_rollout(policy, ChatAgentEnv(agent, task)), policy
        finally:
            others.leave()

    async with asyncio.timeout(120):
        return await asyncio.gather(*map(play, tasks))
