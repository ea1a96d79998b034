"""Rewards that compare the episodes of a group.

1. A group reward gets the trajectories, a list as ever, with task, seats, metrics and transcripts.
2. It may be async; while it waits, other groups go on.
3. It returns a number or an ``Outcome`` each, whose metrics are the trajectory's.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Trajectory

from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.episode.agent import NO_TASK, Outcome
from evert.bridge.errors import InvalidAgentError, RewardError
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.bridge.groups.rewards import GroupReward, PlayedGroup
from evert.bridge.tokens.bases import default_renderer
from evert.envs.identity import identity_agent

SEATS = ("player", "judge")


def says_seven() -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt: "I am 7")


async def ask(client: Any, text: str) -> str:
    completion = await client.chat.completions.create(messages=[{"role": "user", "content": text}])
    return completion.choices[0].message.content or ""


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


async def seen(agent: Any = identity_agent, task: Any = 7, size: int = 2, **options: Any) -> Any:
    reward = Seen()
    builder = ChatAgentGroupBuilder(agent, task, size, group_reward=reward, **options)
    await do_group_rollout(builder, says_seven())
    [group] = reward.groups
    return group


# -- what it is given ----------------------------------------------------------------------------


async def test_it_is_given_the_trajectories_and_the_task() -> None:
    group = await seen()

    assert [type(each) for each in group] == [Trajectory, Trajectory]
    assert group.task == 7
    assert (group.seats, group.episodes) == ([None, None], [0, 1])
    assert group.renderer is default_renderer()


async def test_an_agent_without_a_task_has_none() -> None:
    async def agent(client: Any) -> float:
        await ask(client, "?")
        return 1.0

    assert (await seen(agent, NO_TASK)).task is NO_TASK


async def test_the_seats_of_an_episode_are_named_and_belong_together() -> None:
    group = await seen(seated, seats=SEATS)

    assert group.seats == ["player", "judge", "player", "judge"]
    assert group.episodes == [0, 0, 1, 1]
    assert "You are judge." in group.transcripts[1]


async def test_metrics_are_the_latest_of_each_name_and_the_report_is_among_them() -> None:
    async def agent(client: Any) -> float:
        for number in range(2):
            await ask(client, "?")
            client.metric("calls", number + 1)
        return 1.0

    group = await seen(agent, NO_TASK)
    assert [each["calls"] for each in group.metrics] == [2, 2]
    assert group.metrics[0]["stop/completed"] == 1.0
    assert group.metrics[0]["lineages"] == 2

    async def endless(client: Any) -> float:
        while True:
            await ask(client, "?")

    cut = await seen(endless, NO_TASK, limits=RolloutLimits(max_turns=2))
    assert cut.metrics[0]["lineages"] == 2, "also where the episode was stopped"


async def test_a_transcript_says_what_was_told_and_said_once() -> None:
    async def agent(client: Any) -> float:
        messages: list[Any] = [{"role": "user", "content": "First."}]
        for _ in range(2):
            completion = await client.chat.completions.create(messages=messages)
            messages += [completion.choices[0].message, {"role": "user", "content": "Second."}]
        return 1.0

    group = await seen(agent, NO_TASK)
    text = group.transcripts[0]

    assert [text.count(part) for part in ("First.", "Second.", "I am 7")] == [1, 1, 2]
    assert text.index("First.") < text.index("I am 7") < text.index("Second.")
    assert "<|" not in text


async def test_what_alternating_conversations_were_told_is_not_said_again() -> None:
    async def agent(client: Any) -> float:
        histories: list[list[Any]] = [[{"role": "user", "content": f"I am {x}."}] for x in "AB"]
        for _ in range(2):
            for messages in histories:
                completion = await client.chat.completions.create(messages=messages)
                messages += [completion.choices[0].message, {"role": "user", "content": "More."}]
        return 1.0

    [text, _] = (await seen(agent, NO_TASK)).transcripts

    assert [text.count(part) for part in ("I am A.", "I am B.", "More.")] == [1, 1, 2]


# -- what it may be ------------------------------------------------------------------------------


async def test_it_may_be_async_and_other_groups_go_on_meanwhile() -> None:
    both = asyncio.Barrier(2)

    async def waits_for_both(group: PlayedGroup) -> list[float]:
        await both.wait()
        return [float(len(group)) for _ in group]

    builders = [
        ChatAgentGroupBuilder(identity_agent, task, 2, group_reward=waits_for_both)
        for task in (7, 8)
    ]
    played = await asyncio.wait_for(
        asyncio.gather(*(do_group_rollout(each, says_seven()) for each in builders)), 30
    )

    assert [group.get_total_rewards() for group in played] == [[3.0, 3.0], [2.0, 2.0]]


async def rewarded(reward: GroupReward, **options: Any) -> Any:
    builder = ChatAgentGroupBuilder(identity_agent, 7, 2, group_reward=reward)
    return await do_group_rollout(builder, says_seven())


async def test_an_outcome_brings_metrics_of_its_trajectory() -> None:
    group = await rewarded(lambda group: [Outcome(0.5, {"rank": 1}), 0.25])

    assert group.get_total_rewards() == [1.5, 1.25]
    assert group.metrics_G == [{"rank": 1.0}, {}]


async def test_its_metrics_stand_beside_the_seats_rewards() -> None:
    def judged(group: PlayedGroup) -> Sequence[Outcome]:
        return [Outcome(float(seat == "player"), {"judged": 1.0}) for seat in group.seats]

    builder = ChatAgentGroupBuilder(seated, 7, 2, seats=SEATS, group_reward=judged)
    group = await do_group_rollout(builder, says_seven())

    player, judge = group.metrics_G[:2]
    assert (player["judged"], player["seat/player/reward"]) == (1.0, 1.0)
    assert (judge["judged"], judge["seat/judge/reward"]) == (1.0, 0.0)


async def nothing(group: PlayedGroup) -> Any:
    return None


@pytest.mark.parametrize(
    ("reward", "error", "said"),
    [
        (nothing, InvalidAgentError, "nothing returned None; expected one reward for each of 2"),
        (lambda group: [Outcome(), 1.0], RewardError, r"A reward of .* is None"),
        (
            lambda group: [Outcome(1.0, {"x": float("nan")}), 1.0],
            RewardError,
            r"The metric 'x' of .* is nan",
        ),
    ],
    ids=["async without rewards", "an outcome without a reward", "a metric that is no number"],
)
async def test_what_is_no_reward_is_an_error(reward: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        await rewarded(reward)
