"""Group rewards: functions that compare the episodes in a group."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.types import Env, Metrics, Trajectory

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.seats import SeatEnv
from evert.bridge.episode.agent import Outcome, agent_name, reward_of, with_checked_notes
from evert.bridge.errors import InvalidAgentError, repr_of
from evert.bridge.records.sequences import transcript
from evert.bridge.tokens.bases import default_renderer


class PlayedGroup(list[Trajectory]):
    """A group's trajectories, with turns in the order of play, and information about them.

    Failed episodes are left out.

    Attributes:
        task: The task of the group, or ``NO_TASK`` if the agent does not take a task.
        seats: The seat of each trajectory (None if the agent has no seats).
        episodes: The episode number of each trajectory, starting at 0. All seats in an episode have
            the same number.
        renderer: The policy's renderer. Use its tokenizer to decode tokens.
    """

    def __init__(self, trajectories: Iterable[Trajectory], task: object, envs: Sequence[Env]):
        super().__init__(trajectories)
        evert_envs = [env for env in envs if isinstance(env, ChatAgentEnv)]
        runs = {env: env.table if isinstance(env, SeatEnv) else env for env in envs}
        numbers = {run: number for number, run in enumerate(dict.fromkeys(runs.values()))}
        self.task = task
        self.seats = [env.seat if isinstance(env, SeatEnv) else None for env in envs]
        self.episodes = [numbers[runs[env]] for env in envs]
        self.renderer: Renderer = evert_envs[0].renderer if evert_envs else default_renderer()

    @cached_property
    def metrics(self) -> list[Metrics]:
        """The metrics of each trajectory. If several turns set a metric, the last value is used."""
        return [
            {name: value for turn in trajectory.transitions for name, value in turn.metrics.items()}
            for trajectory in self
        ]

    @cached_property
    def transcripts(self) -> list[str]:
        """Each trajectory as text: for each turn, the new part of the prompt, then the reply."""
        return [transcript(trajectory, self.renderer.tokenizer) for trajectory in self]


GroupReward: TypeAlias = Callable[
    [PlayedGroup], Sequence[float | Outcome] | Awaitable[Sequence[float | Outcome]]
]
"""Takes a group and returns an additional reward or an ``Outcome`` for each trajectory."""


async def further_rewards(group_reward: GroupReward, group: PlayedGroup) -> list[Outcome]:
    """Call a group reward, and return an ``Outcome`` with a finite reward for each trajectory.

    Raises:
        InvalidAgentError: The group reward did not return one reward per trajectory.
        RewardError: A reward or metric is not a finite number.
    """
    name, count = agent_name(group_reward), len(group)
    returned = group_reward(group)
    if inspect.isawaitable(returned):
        returned = await returned
    if not isinstance(returned, Iterable):
        raise InvalidAgentError(
            f"The group reward {name} returned {repr_of(returned)}; expected one reward for "
            f"each of the {count} trajectories, in order."
        )
    rewards = list(returned)
    if len(rewards) != count:
        raise InvalidAgentError(
            f"The group reward {name} returned {len(rewards)} rewards for {count} trajectories; "
            "expected one reward per trajectory, in order."
        )
    return [_outcome(reward, name) for reward in rewards]


def _outcome(value: float | Outcome, name: str) -> Outcome:
    outcome = value if isinstance(value, Outcome) else Outcome(value)
    outcome = with_checked_notes(outcome, f"of {name}")
    return replace(outcome, reward=reward_of(outcome.reward, f"A reward of {name}"))
