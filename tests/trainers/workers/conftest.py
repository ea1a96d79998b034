"""A pool shared by most tests, groups to play in it, and a model that only says yes.

The objects sent to workers are created inside functions. They are therefore pickled by value, and
workers do not need to import a test module.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.rl.rollout_strategy import RolloutStrategy
from tinker_cookbook.rl.rollouts import (
    do_group_rollout_and_filter_constant_reward,
    set_rollout_executor,
)
from tinker_cookbook.rl.types import TrajectoryGroup

from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.trainers.workers.pool import PoolRollouts


@pytest.fixture(scope="package")
def pool() -> Iterator[PoolRollouts]:
    """Start a pool of two workers that play up to four groups each."""
    with PoolRollouts(workers=2, groups_per_worker=4) as running:
        yield running


def yes_client() -> Any:
    """Return a sampling client with a scripted model. It is pickled by value."""

    class YesClient:
        async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
            import numpy as np
            import tinker

            from evert import ScriptedPolicy

            limit = sampling_params.max_tokens
            action = await ScriptedPolicy(["Yes."])(prompt, [], max_tokens=limit)
            sequence = tinker.SampledSequence(
                stop_reason="stop",
                sequence_id="",
                tokens_np=np.array(action.tokens),
                logprobs_np=np.array(action.maybe_logprobs),
            )
            return tinker.SampleResponse(sequences=[sequence])

        sample = sample_async  # awaited by the Cookbook since 0.6

    return YesClient()


def after_a_call(then: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return an agent that calls the model and then applies the function to its task."""

    async def agent(client: Any, task: Any = None) -> Any:
        await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return then(task)

    return agent


def says_task() -> Callable[..., Any]:
    return after_a_call(lambda task: float(task))


def lengths(dying: Path | None = None) -> Callable[..., Any]:
    """Return an agent that earns the length of its reply, modulo 7. For each task with a file in
    ``dying``, the agent kills its worker once."""

    def die_once(task: float) -> None:
        import os
        import signal

        for flag in () if dying is None else dying.glob(f"{task}"):
            flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    async def agent(client: Any, task: float) -> float:
        completion = await client.chat.completions.create(
            messages=[{"role": "user", "content": f"Say {task}."}]
        )
        die_once(task)
        return float(len(completion.choices[0].message.content) % 7)

    return agent


async def play(
    executor: Executor | None,
    agent: Any,
    task: object = 1.0,
    *,
    client: Any = None,
    size: int = 2,
    strategy: RolloutStrategy | None = None,
    builder: ChatAgentGroupBuilder | None = None,
    **options: Any,
) -> TrajectoryGroup | None:
    """Play a group as the Cookbook's loop does, in the executor or in this process."""
    made = builder or ChatAgentGroupBuilder(agent, task, size, **options)
    if executor is not None:
        set_rollout_executor(executor)
    try:
        group: TrajectoryGroup | None = await do_group_rollout_and_filter_constant_reward(
            client or yes_client(), made, 50, 1.0, False, False, strategy
        )
    finally:
        set_rollout_executor(None)
    return group


def rewards(group: TrajectoryGroup | None) -> list[float]:
    assert group is not None
    return group.get_total_rewards()
