"""``ChatAgentGroupBuilder``: several episodes of one agent on one task.

A builder is data: it pickles, it may be asked for envs again when a rollout is retried, and its
``cleanup`` closes every env it ever made, whatever state it is in.
"""

import asyncio
import functools
import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, Trajectory

from evert.bridge.agent import NO_TASK, Agent, agent_name, inspect_agent, reward_of
from evert.bridge.env import ChatAgentEnv, EnvOptions
from evert.bridge.errors import InvalidAgentError, InvalidDatasetError
from evert.bridge.seats import check_seats, seat_envs

logger = logging.getLogger(__name__)

GroupReward = Callable[[list[Trajectory]], Sequence[float]]
"""All trajectories of a group -> one further reward each, added to what they earned."""


def load_agent(agent: Agent | str) -> Agent:
    """The agent that ``agent`` names: an import path ``package.module:function``, or itself.

    Raises:
        InvalidAgentError: Nothing is found there.
    """
    if not isinstance(agent, str):
        return agent
    module_name, _, name = agent.partition(":")
    if not module_name or not name:
        raise InvalidAgentError(f"An agent is named like 'package.module:function', got {agent!r}.")
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidAgentError(
            f"No agent at {agent!r}: {error}. Expected an importable 'package.module:function'."
        ) from error
    return found  # type: ignore[no-any-return]


def require_import_path(agent: Agent, role: str = "agent") -> None:
    """Check that another process could find ``agent`` by name.

    Raises:
        InvalidAgentError: It is a lambda, or was defined inside a function.
    """
    inner = agent
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    if "<lambda>" in name or "<locals>" in name:
        raise InvalidAgentError(
            f"The {role} {agent_name(agent)} has no import path: group builders are pickled for "
            "rollouts in other processes, and a lambda or an inner function cannot be found there. "
            "Define it at the top level of a module (functools.partial may bind arguments)."
        )


class ChatAgentGroupBuilder(EnvGroupBuilder):
    """Builds ``group_size`` environments of one agent and task.

    Args:
        agent: The agent, at the top level of a module; or its path 'package.module:function'.
        task: Handed to the agent; picklable. Left out: the agent takes the client only.
        group_size: Number of episodes, at least 1.
        seats: Names of the agent's trained roles, where it has several: each episode then gives one
            Env a seat, side by side (``seats.py``). Empty: one policy.
        group_reward: Further rewards that compare the trajectories; at module level too.
        tags: Names under which the Cookbook aggregates metrics.
        **options: Of ``ChatAgentEnv``.

    Raises:
        InvalidAgentError: The agent is none, takes other arguments, or has no import path.
        InvalidDatasetError: ``group_size`` is below 1, or the seats have no different names.
    """

    def __init__(
        self,
        agent: Agent | str,
        task: object = NO_TASK,
        group_size: int = 1,
        *,
        seats: Sequence[str] = (),
        group_reward: GroupReward | None = None,
        tags: Sequence[str] = (),
        **options: Unpack[EnvOptions],
    ) -> None:
        self.agent = load_agent(agent)
        inspect_agent(self.agent, task)
        require_import_path(self.agent)
        if group_reward is not None:
            require_import_path(group_reward, "group reward")
        if group_size < 1:
            raise InvalidDatasetError(f"group_size must be at least 1, got {group_size}.")
        self.task = task
        self.group_size = group_size
        if seats:
            check_seats(seats)
        self.seats = tuple(seats)
        self.group_reward = group_reward
        self.tags = list(tags)
        self.options = options
        self._envs: list[ChatAgentEnv] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_envs": []}  # running episodes stay in their process

    async def make_envs(self) -> Sequence[Env]:
        """New environments; a retry may ask again, and ``cleanup`` closes them all."""
        envs: list[ChatAgentEnv] = []
        for _ in range(self.group_size):
            if self.seats:
                envs += seat_envs(self.agent, self.seats, self.task, **self.options)
            else:
                envs.append(ChatAgentEnv(self.agent, self.task, **self.options))
        self._envs += envs
        return envs

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """The group's further rewards; puts each trajectory's transitions in lineage order."""
        for trajectory, env in zip(trajectory_group, env_group, strict=True):
            if isinstance(env, ChatAgentEnv):
                sort_by_lineage(trajectory, env.turn_lineages)
        if self.group_reward is None:
            return [(0.0, {}) for _ in trajectory_group]
        name = agent_name(self.group_reward)
        rewards = list(self.group_reward(trajectory_group))
        if len(rewards) != len(trajectory_group):
            raise InvalidAgentError(
                f"The group reward {name} returned {len(rewards)} rewards for "
                f"{len(trajectory_group)} trajectories; expected one each, in order."
            )
        return [(reward_of(reward, f"A reward of {name}"), {}) for reward in rewards]

    async def cleanup(self) -> None:
        """Close every environment made so far; never raises."""
        envs, self._envs = self._envs, []
        results = await asyncio.gather(*(env.close() for env in envs), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                logger.error("Closing an environment failed: %r", result)

    def logging_tags(self) -> list[str]:
        """Names under which the Cookbook aggregates this group's metrics."""
        return self.tags


def sort_by_lineage(trajectory: Trajectory, turn_lineages: Sequence[int]) -> None:
    """Put transitions that continue each other side by side, in place.

    ``trajectory_to_data`` merges neighbours only: the turns of two sub-agents that alternate would
    become one datum a turn. The sort is stable, so each conversation keeps its order.

    Args:
        trajectory: Its transitions are the first ``len(transitions)`` turns.
        turn_lineages: Lineage of each turn.
    """
    turns = trajectory.transitions
    if len(turns) > len(turn_lineages):
        return  # the one made-up transition of an episode without a turn
    order = sorted(range(len(turns)), key=lambda turn: turn_lineages[turn])
    turns[:] = [turns[turn] for turn in order]
