"""``ParallelRollouts``: a rollout strategy that samples an agent's overlapping calls in parallel.

It wraps another rollout strategy, so it works with an unmodified ``rl.train.main``:

    rollout_error_tolerance=ParallelRollouts(inner=FailFast(), max_calls=64)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.rl.rollout_runner import RolloutHooks, run_rollout
from tinker_cookbook.rl.rollout_strategy import FailFast, RolloutResult, RolloutStrategy
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, Trajectory

from evert.bridge.env.endings import put_note
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.policy_queue import PolicyQueue

MAX_CALLS = 64
"""Default for the maximum number of calls per episode to sample at the same time."""


@dataclass(frozen=True)
class ParallelRollouts(RolloutStrategy):
    """Wraps a rollout strategy and samples an agent's overlapping calls in parallel.

    The wrapped strategy decides which failures to tolerate and what to retry. If an agent's calls
    never overlap, its rollouts are the same as without this class. Rewards, metrics and logs
    recorded by the agent are attributed to the call that was last answered in the same task or
    thread. Envs from other libraries are played as usual.

    Args:
        inner: The strategy to wrap.
        max_calls: Maximum number of calls per episode to sample at the same time (at least 1).

    Raises:
        TypeError: ``inner`` is not a strategy.
        ValueError: ``max_calls`` is not an integer of at least 1.
    """

    inner: RolloutStrategy = field(default_factory=FailFast)
    max_calls: int = MAX_CALLS

    def __post_init__(self) -> None:
        if not isinstance(self.inner, RolloutStrategy):
            raise TypeError(
                f"inner is {self.inner!r}; expected one of the Cookbook's rollout strategies, such "
                "as FailFast() or RetryOnFailure()."
            )
        if type(self.max_calls) is not int or self.max_calls < 1:
            raise ValueError(f"max_calls is {self.max_calls!r}; expected an integer of at least 1.")

    @property
    def catches_group_errors(self) -> bool:
        """Whether the wrapped strategy catches errors that affect a whole group."""
        return self.inner.catches_group_errors

    async def execute(
        self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter
    ) -> RolloutResult:
        """Play a group.

        Raises:
            Exception: Whatever the wrapped strategy raises.
        """
        queue = PolicyQueue(policy, self.max_calls)
        try:
            result = await self.inner.execute(_QueueGroup(env_group_builder, queue), queue)
        finally:
            queue.cancel()  # rollouts may have ended without waiting for their samples
        for trajectory, env in zip(result.trajectories, result.envs, strict=True):
            _put_late_notes(trajectory, env)
        return result


async def do_parallel_rollout(
    policy: TokenCompleter,
    env: Env,
    max_calls: int = MAX_CALLS,
    hooks: RolloutHooks | None = None,
) -> Trajectory:
    """Play one Env like ``do_single_rollout``, but sample overlapping calls in parallel.

    Args:
        policy: The policy.
        env: An unused Env. Envs from other libraries are played as usual.
        max_calls: Maximum number of calls to sample at the same time.
        hooks: Cookbook rollout hooks (optional).

    Returns:
        The trajectory, with transitions in the order in which their replies were delivered.

    Raises:
        Exception: Same as ``do_single_rollout``.
    """
    queue = policy if isinstance(policy, PolicyQueue) else PolicyQueue(policy, max_calls)
    _use(env, queue)
    try:
        trajectory = await run_rollout(queue, env, hooks=hooks)
    finally:
        queue.cancel()
    _put_late_notes(trajectory, env)
    return trajectory


def _use(env: Env, queue: PolicyQueue) -> None:
    if isinstance(env, ChatAgentEnv):
        env.open_calls.use(queue, overlap=env.open_calls.overlap)


def _put_late_notes(trajectory: Trajectory, env: Env) -> None:
    if not isinstance(env, ChatAgentEnv):
        return
    before = env.turns - len(env.turn_lineages)  # turns replayed by a ``BranchEnv``
    for note in env.open_calls.take_late_notes():
        turn = -1 if note.turn is None else note.turn - before
        if 0 <= turn < len(trajectory.transitions):
            transition = trajectory.transitions[turn]
            transition.reward += put_note(note, transition.metrics, transition.logs)


class _QueueGroup(EnvGroupBuilder):
    def __init__(self, builder: EnvGroupBuilder, queue: PolicyQueue) -> None:
        self._builder = builder
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    async def make_envs(self) -> Sequence[Env]:
        envs = await self._builder.make_envs()
        for env in envs:
            _use(env, self._queue)
        return envs

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        return await self._builder.compute_group_rewards(trajectory_group, env_group)

    async def cleanup(self) -> None:
        await self._builder.cleanup()

    def logging_tags(self) -> list[str]:
        return self._builder.logging_tags()
