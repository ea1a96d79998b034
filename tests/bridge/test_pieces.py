"""A group in pieces: advantages by turn, token and seat under the Cookbook's unchanged loop.

What the Cookbook makes of the pieces trains each sampled token once, with its advantage, and its
means of rewards and turns stay what they were. Without advantages of one's own nothing is cut.
"""

import pickle
import random
from collections import Counter
from typing import Any

import pytest
import tinker
from tests.kit import ask, assistant, policy_of, system, user
from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import TrajectoryGroup

from evert import (
    AdvantagesError,
    AgentDatasetBuilder,
    ChatAgentGroupBuilder,
    Group,
    InvalidAgentError,
    ScriptedPolicy,
)
from evert.bridge.groups.advantages import padded
from evert.bridge.tokens.renderer import prompt_renderer

SEATS = ("player", "judge")
TURNS = 3


async def go_on(client: Any, said: list[dict[str, Any]]) -> int:
    """How many letters were said."""
    said.append(user("go on"))
    said.append(assistant(await ask(client, *said)))
    return len(said[-1]["content"])


async def two_speakers(client: Any, task: str) -> float:
    """Two conversations that alternate; each turn of the first earns the letters it said."""
    one, two = [system("one")], [system("two")]
    for _ in range(TURNS):
        client.reward(await go_on(client, one))
        client.metric("asked", 1)
        await go_on(client, two)
    return 5.0


async def duel(client: Any, task: str) -> dict[str, float]:
    said: list[dict[str, Any]] = []
    player, judge = client.seat("player"), client.seat("judge")
    for _ in range(TURNS):
        player.reward(await go_on(player, said))
        await go_on(judge, [system(said[-1]["content"])])
    player.metric("seen", 1)
    judge.metric("seen", 3)
    return {"player": 0.0, "judge": 0.5}


def by_token(group: Group) -> Any:
    """Something else for nearly every token, the same each time it is asked."""
    draw = random.Random(0)
    return [
        [[draw.choice([-1.0, 0.0, 0.25, 2.0]) for _ in range(count)] for count in episode]
        for episode in group.tokens
    ]


def by_turn(group: Group) -> Any:
    return group.turn_rewards


def as_ever(group: Group) -> Any:
    return [0.0] * len(group.rewards)


async def played(agent: Any, **options: Any) -> TrajectoryGroup:
    builder = ChatAgentGroupBuilder(agent, "task", group_size=3, **options)
    policy: ScriptedPolicy = policy_of(lambda prompt: "x" * (len(policy.actions) % 7 + 1))
    return await do_group_rollout(builder, policy)


def trained(group: TrajectoryGroup) -> Counter[tuple[tuple[int, ...], int, float, float]]:
    """Each token that is trained on: what stands before it, itself, its log-prob, its advantage."""
    data: list[tinker.Datum]
    data, _ = assemble_training_data([group], compute_advantages([group]))
    found = Counter[tuple[tuple[int, ...], int, float, float]]()
    for datum in data:
        inputs = {name: tensor.tolist() for name, tensor in datum.loss_fn_inputs.items()}
        before = datum.model_input.to_ints()
        for at, mask in enumerate(inputs["mask"]):
            if mask:
                rest = inputs["logprobs"][at], round(inputs["advantages"][at], 4)
                found[tuple(before[: at + 1]), inputs["target_tokens"][at], *rest] += 1
    return found


@pytest.mark.parametrize("how", [by_token, by_turn])
async def test_each_token_is_trained_on_once_with_its_advantage(how: Any) -> None:
    asked: list[Group] = []

    def advantages(group: Group) -> Any:
        asked.append(group)
        return how(group)

    whole = trained(await played(two_speakers))
    cut = trained(await played(two_speakers, advantages=advantages))

    assert Counter(key[:3] for key in cut.elements()) == Counter(
        key[:3] for key in whole.elements()
    )
    [group] = asked
    expected = Counter[float]()
    for episode, turns in zip(how(group), group.tokens, strict=True):
        for turn, count in zip(episode, turns, strict=False):
            expected.update(turn if isinstance(turn, list) else [round(float(turn), 4)] * count)
    assert Counter(key[3] for key in cut.elements()) == expected

    by_gamma = {key[3] for key in trained(await played(two_speakers, gamma=0.0))}
    assert 0.0 in by_gamma  # every turn of the second speaker
    assert len(by_gamma) > 3


async def test_means_of_rewards_and_turns_stay_what_they_were() -> None:
    whole = compute_trajectory_metrics([await played(two_speakers)], [[]])
    for options in ({"advantages": by_token}, {"gamma": 1.0}):
        cut = compute_trajectory_metrics([await played(two_speakers, **options)], [[]])
        for name in ("reward/total", "turns_per_episode", "asked", "lineages", "total_ac_tokens"):
            assert cut[f"env/all/{name}"] == pytest.approx(whole[f"env/all/{name}"]), name


@pytest.mark.parametrize("options", [{}, {"gamma": 0.9}], ids=["whole", "in pieces"])
async def test_a_judge_of_constant_reward_has_no_advantage_and_a_curve_of_its_own(
    options: Any,
) -> None:
    group = await played(duel, seats=SEATS, **options)
    metrics = compute_trajectory_metrics([group], [[]])
    player = [key for key in trained(group).elements() if key[3] != 0]

    assert metrics["env/all/seat/judge/reward"] == 0.5 != metrics["env/all/seat/player/reward"]
    assert metrics["env/all/seat/judge/seen"] == 3.0
    assert metrics["env/all/seat/player/seen"] == 1.0
    assert player
    assert all("go on" in prompt_renderer(None).decode([*before]) for before, *_ in player)


@pytest.mark.parametrize("options", [{}, {"advantages": as_ever}])
async def test_a_group_whose_advantages_are_none_or_all_the_same_stays_whole(options: Any) -> None:
    group = await played(two_speakers, **options)

    assert [len(each.transitions) for each in group.trajectories_G] == [2 * TURNS] * 3
    if options:  # as the Cookbook finds groups to leave out
        assert len(set(group.get_total_rewards())) == 1


async def test_a_dataset_finds_the_function_by_its_import_path_and_cuts_no_tests() -> None:
    async def built(**options: Any) -> tuple[Any, Any]:
        tasks: Any = {"train_tasks": ["a"], "test_tasks": ["b"], "batch_size": 1}
        train, test = await AgentDatasetBuilder(agent=two_speakers, **tasks, **options)()
        assert test is not None
        return train.get_batch(0)[0], test.get_batch(0)[0]

    training, testing = await built(gamma=0.9)
    assert (training.gamma, testing.gamma) == (0.9, None)
    training, _ = await built(advantages="evert.bridge.groups.advantages:padded")
    assert training.advantages is padded
    with pytest.raises(AdvantagesError, match="Got 'turn' for the advantages"):
        await built(advantages="turn")


def test_a_builder_checks_its_credit_and_pickles_it() -> None:
    there = ChatAgentGroupBuilder(two_speakers, "task", 2, advantages=by_turn)
    assert pickle.loads(pickle.dumps(there)).advantages is by_turn

    builder = ChatAgentGroupBuilder(two_speakers, "task", 2, advantages=lambda group: group.rewards)
    with pytest.raises(InvalidAgentError, match="The function that gives advantages .*<lambda> ha"):
        pickle.dumps(builder)
    wrong: list[Any] = [{"gamma": 2.0}, {"advantages": "turn"}]
    for options in wrong:
        with pytest.raises(AdvantagesError):
            ChatAgentGroupBuilder(two_speakers, "task", 2, **options)
