"""Rewards that compare the episodes of a group: what such a function is given, and may return."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.types import Env, Metrics, Trajectory

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.seats import SeatEnv
from evert.bridge.episode.agent import Outcome, agent_name, reward_of, with_notes_read
from evert.bridge.errors import InvalidAgentError, repr_of
from evert.bridge.records.sequences import transcript
from evert.bridge.tokens.bases import default_renderer


class PlayedGroup(list[Trajectory]):
    """The trajectories of a group, as they were played: a list, and what is known of them.

    Those of episodes that were left out, since their agent failed, are not in it.

    Attributes:
        task: The group's; ``NO_TASK`` where the agent takes none.
        seats: The seat of each trajectory; None where the agent has no seats.
        episodes: The number of the episode that each trajectory is of, from 0: with seats, several
            are of one.
        renderer: Of the policy; its tokenizer reads the tokens.
    """

    def __init__(self, trajectories: Iterable[Trajectory], task: object, envs: Sequence[Env]):
        super().__init__(trajectories)
        ours = [env for env in envs if isinstance(env, ChatAgentEnv)]
        runs = {env: env.table if isinstance(env, SeatEnv) else env for env in envs}
        numbers = {run: number for number, run in enumerate(dict.fromkeys(runs.values()))}
        self.task = task
        self.seats = [env.seat if isinstance(env, SeatEnv) else None for env in envs]
        self.episodes = [numbers[runs[env]] for env in envs]
        self.renderer: Renderer = ours[0].renderer if ours else default_renderer()

    @cached_property
    def metrics(self) -> list[Metrics]:
        """The metrics of each trajectory by name: of those noted several times the last value."""
        return [
            {name: value for turn in each.transitions for name, value in turn.metrics.items()}
            for each in self
        ]

    @cached_property
    def transcripts(self) -> list[str]:
        """Each trajectory as a text: what the policy was told at each call, and what it said."""
        return [transcript(each, self.renderer.tokenizer) for each in self]


GroupReward: TypeAlias = Callable[
    [PlayedGroup], Sequence[float | Outcome] | Awaitable[Sequence[float | Outcome]]
]
"""A group -> one further reward each, added to what they earned; or an ``Outcome`` with metrics."""


async def further_rewards(group_reward: GroupReward, group: PlayedGroup) -> list[Outcome]:
    """What a group reward gives each trajectory: one finite reward each, or an error."""
    name, count = agent_name(group_reward), len(group)
    returned = group_reward(group)
    if inspect.isawaitable(returned):
        returned = await returned
    if not isinstance(returned, Iterable):
        raise InvalidAgentError(
            f"The group reward {name} returned {repr_of(returned)}; expected one reward for "
            f"each of {count} trajectories, in order."
        )
    rewards = list(returned)
    if len(rewards) != count:
        raise InvalidAgentError(
            f"The group reward {name} returned {len(rewards)} rewards for {count} trajectories; "
            "expected one each, in order."
        )
    return [_outcome(reward, name) for reward in rewards]


def _outcome(given: float | Outcome, name: str) -> Outcome:
    outcome = given if isinstance(given, Outcome) else Outcome(given)
    outcome = with_notes_read(outcome, f"of {name}")
    return replace(outcome, reward=reward_of(outcome.reward, f"A reward of {name}"))
