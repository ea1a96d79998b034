"""Rewards that compare the episodes of a group."""

import asyncio
import math
from typing import Any

import pytest
from tests.kit import ask, asks, assistant, policy_of, user
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentGroupBuilder, Outcome, PlayedGroup, RewardError
from evert.bridge.episode.agent import NO_TASK
from evert.bridge.groups.rewards import GroupReward
from evert.bridge.tokens.bases import default_renderer
from evert.envs.identity import identity_agent

SEATS = ("player", "judge")


async def seated(client: Any, task: object) -> float:
    for seat in SEATS:
        await ask(client.seat(seat), f"You are {seat}.")
    return 0.0


class Seen:
    """A group reward that keeps what it was given."""

    def __init__(self) -> None:
        self.groups: list[PlayedGroup] = []

    def __call__(self, group: PlayedGroup) -> list[float]:
        self.groups.append(group)
        assert len(group.transcripts) == len(group)  # as they were played: here, not later
        return [0.0 for _ in group]


async def rewarded(reward: GroupReward | None, agent: Any, task: Any, **options: Any) -> Any:
    builder = ChatAgentGroupBuilder(agent, task, 2, group_reward=reward, **options)
    return await do_group_rollout(builder, policy_of("I am 7", *["I am 7"] * 20))


async def seen(agent: Any = identity_agent, task: Any = 7, **options: Any) -> PlayedGroup:
    reward = Seen()
    await rewarded(reward, agent, task, **options)
    [group] = reward.groups
    return group


async def test_it_is_given_the_trajectories_their_task_and_their_seats() -> None:
    group = await seen()
    assert [type(each) for each in group] == [Trajectory, Trajectory]
    assert group.task == 7
    assert (group.seats, group.episodes) == ([None, None], [0, 1])
    assert group.renderer is default_renderer()
    assert (await seen(asks, NO_TASK)).task is NO_TASK
    group = await seen(seated, seats=SEATS)
    assert group.seats == ["player", "judge", "player", "judge"]
    assert group.episodes == [0, 0, 1, 1]
    assert "You are judge." in group.transcripts[1]


async def test_metrics_are_the_latest_of_each_name_and_the_report_is_among_them() -> None:
    async def agent(client: Any) -> float:
        for number in range(2):
            await ask(client)
            client.metric("calls", number + 1)
        return 1.0

    group = await seen(agent, NO_TASK)
    assert [each["calls"] for each in group.metrics] == [2, 2]
    assert group.metrics[0]["stop/completed"] == 1.0
    assert group.metrics[0]["lineages"] == 2

    async def endless(client: Any) -> float:
        while True:
            await ask(client)

    cut = await seen(endless, NO_TASK, limits=RolloutLimits(max_turns=2))
    assert cut.metrics[0]["lineages"] == 2, "also where the episode was stopped"


async def test_a_transcript_says_what_was_told_and_said_once() -> None:
    async def alternates(client: Any) -> float:
        histories = [[user(f"I am {name}.")] for name in "AB"]
        for _ in range(2):
            for messages in histories:
                messages += [assistant(await ask(client, *messages)), user("More.")]
        return 1.0

    [text, _] = (await seen(alternates, NO_TASK)).transcripts

    assert [text.count(part) for part in ("I am A.", "I am B.", "More.", "I am 7")] == [1, 1, 2, 4]
    assert text.index("I am A.") < text.index("I am 7") < text.index("More.")
    assert "<|" not in text


async def test_it_is_added_to_what_the_trajectories_earned_with_the_metrics_of_an_outcome() -> None:
    group = await rewarded(lambda group: [Outcome(0.5, {"rank": 1}), 0.25], identity_agent, 7)
    assert group.get_total_rewards() == [1.5, 1.25]
    assert group.metrics_G == [{"rank": 1.0}, {}]

    group = await rewarded(None, identity_agent, 7)
    assert (group.final_rewards_G, group.get_total_rewards()) == ([0.0, 0.0], [1.0, 1.0])


async def test_it_may_be_async_and_other_groups_go_on_meanwhile() -> None:
    both = asyncio.Barrier(2)

    async def waits_for_both(group: PlayedGroup) -> list[float]:
        await both.wait()
        return [float(len(group)) for _ in group]

    playing = asyncio.gather(*(rewarded(waits_for_both, identity_agent, task) for task in (7, 8)))
    groups = await asyncio.wait_for(playing, 30)

    assert [group.get_total_rewards() for group in groups] == [[3.0, 3.0], [2.0, 2.0]]


async def test_an_outcome_without_a_reward_or_with_a_metric_of_nan_is_an_error() -> None:
    """What else is none is in the table of ``tests/faults/groups.py``."""
    with pytest.raises(RewardError, match=r"A reward of .* is None"):
        await rewarded(lambda group: [Outcome(), 1.0], identity_agent, 7)
    with pytest.raises(RewardError, match=r"The metric 'x' of .* is nan"):
        await rewarded(lambda group: [Outcome(1.0, {"x": math.nan}), 1.0], identity_agent, 7)
