"""A group in pieces: advantages by turn, token and seat under the Cookbook's unchanged loop.

1. What the Cookbook makes of the pieces trains each sampled token once, with its advantage.
2. Its means of rewards and turns, and what the agent counts, stay what they were.
3. Each seat has its own baseline and its own metrics.
4. Without advantages of one's own nothing is cut; tests are never cut.
5. It goes where builders and their settings go: other processes, configurations, commands.
"""

import pickle
import random
from collections import Counter
from typing import Any

import pytest
import tinker
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

SEATS = ("player", "judge")
TURNS = 3


async def go_on(client: Any, said: list[dict[str, str]]) -> str:
    said.append({"role": "user", "content": "go on"})
    completion = await client.chat.completions.create(messages=said)
    said.append({"role": "assistant", "content": completion.choices[0].message.content})
    return said[-1]["content"]


async def two_speakers(client: Any, task: str) -> float:
    """Two conversations that alternate; each turn of the first earns the letters it said."""
    one = [{"role": "system", "content": "one"}]
    two = [{"role": "system", "content": "two"}]
    for _ in range(TURNS):
        client.reward(len(await go_on(client, one)))
        client.metric("asked", 1)
        await go_on(client, two)
    return 5.0


async def duel(client: Any, task: str) -> dict[str, float]:
    said: list[dict[str, str]] = []
    player, judge = client.seat("player"), client.seat("judge")
    for _ in range(TURNS):
        player.reward(len(await go_on(player, said)))
        await go_on(judge, [{"role": "system", "content": said[-1]["content"]}])
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


def counting() -> ScriptedPolicy:
    policy = ScriptedPolicy(lambda prompt: "x" * (len(policy.actions) % 7 + 1))
    return policy


async def played(agent: Any, **options: Any) -> TrajectoryGroup:
    builder = ChatAgentGroupBuilder(agent, "task", group_size=3, **options)
    return await do_group_rollout(builder, counting())


def data_of(group: TrajectoryGroup) -> list[tinker.Datum]:
    data, _ = assemble_training_data([group], compute_advantages([group]))
    return data


Trained = Counter[tuple[tuple[int, ...], int, float, float]]


def trained(data: list[tinker.Datum]) -> Trained:
    """Each token that is trained on: what stands before it, itself, its log-prob, its advantage."""
    found = Trained()
    for datum in data:
        inputs = {name: tensor.tolist() for name, tensor in datum.loss_fn_inputs.items()}
        before = datum.model_input.to_ints()
        for at, mask in enumerate(inputs["mask"]):
            if mask:
                rest = inputs["logprobs"][at], round(inputs["advantages"][at], 4)
                found[tuple(before[: at + 1]), inputs["target_tokens"][at], *rest] += 1
    return found


def without_advantages(data: list[tinker.Datum]) -> Counter[Any]:
    return Counter(key[:3] for key in trained(data).elements())


# -- 1. what is trained ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", [by_token, by_turn])
async def test_each_token_is_trained_on_once_with_its_advantage(how: Any) -> None:
    asked: list[Group] = []

    def advantages(group: Group) -> Any:
        asked.append(group)
        return how(group)

    whole = data_of(await played(two_speakers))
    cut = data_of(await played(two_speakers, advantages=advantages))

    assert without_advantages(cut) == without_advantages(whole)
    [group] = asked
    given = how(group)
    expected = Counter[float]()
    for episode, turns in zip(given, group.tokens, strict=True):
        for turn, count in zip(episode, turns, strict=False):
            expected.update(turn if isinstance(turn, list) else [round(float(turn), 4)] * count)
    assert Counter(key[3] for key in trained(cut).elements()) == expected


async def test_with_gamma_each_turn_has_its_own_return() -> None:
    group = await played(two_speakers, gamma=0.0)
    advantages = {(len(key[0]), key[3]) for key in trained(data_of(group))}

    assert 0.0 in {advantage for _, advantage in advantages}  # every turn of the second speaker
    assert len({advantage for _, advantage in advantages}) > 3


async def test_a_turn_stays_as_it_is_where_its_tokens_have_one_advantage() -> None:
    group = await played(two_speakers, gamma=1.0)
    turns = [turn for each in group.trajectories_G for turn in each.transitions]

    assert len(turns) == 3 * 2 * TURNS
    assert sum("asked" in turn.metrics for turn in turns) == 3 * TURNS


# -- 2. metrics ------------------------------------------------------------------------------------


async def test_means_of_rewards_and_turns_stay_what_they_were() -> None:
    whole = compute_trajectory_metrics([await played(two_speakers)], [[]])
    cut = compute_trajectory_metrics([await played(two_speakers, advantages=by_token)], [[]])

    for name in ("reward/total", "turns_per_episode", "asked", "lineages", "total_ac_tokens"):
        assert cut[f"env/all/{name}"] == pytest.approx(whole[f"env/all/{name}"]), name


# -- 3. seats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"gamma": 0.9}], ids=["whole", "in pieces"])
async def test_a_judge_of_constant_reward_has_no_advantage_and_a_curve_of_its_own(
    options: Any,
) -> None:
    group = await played(duel, seats=SEATS, **options)
    metrics = compute_trajectory_metrics([group], [[]])
    player = [key for key in trained(data_of(group)).elements() if key[3] != 0]

    assert metrics["env/all/seat/judge/reward"] == 0.5 != metrics["env/all/seat/player/reward"]
    assert metrics["env/all/seat/judge/seen"] == 3.0
    assert metrics["env/all/seat/player/seen"] == 1.0
    assert player
    assert all("go on" in decoded(before) for before, *_ in player)


def decoded(tokens: tuple[int, ...]) -> str:
    renderer: Any = ScriptedPolicy([])._renderer
    return str(renderer.decode(list(tokens)))


# -- 4. where nothing is cut -----------------------------------------------------------------------


async def test_without_advantages_of_ones_own_trajectories_are_whole() -> None:
    group = await played(two_speakers)

    assert [len(each.transitions) for each in group.trajectories_G] == [2 * TURNS] * 3


async def test_a_group_whose_advantages_are_all_the_same_stays_whole() -> None:
    group = await played(two_speakers, advantages=lambda group: [0.0] * len(group.rewards))

    assert [len(each.transitions) for each in group.trajectories_G] == [2 * TURNS] * 3
    assert len(set(group.get_total_rewards())) == 1  # as the Cookbook finds groups to leave out


async def test_tests_are_not_cut() -> None:
    builder = AgentDatasetBuilder(
        agent=two_speakers, train_tasks=["a"], test_tasks=["b"], gamma=0.9, batch_size=1
    )
    train, test = await builder()
    assert test is not None
    [training], [testing] = train.get_batch(0), test.get_batch(0)

    assert (training.gamma, testing.gamma) == (0.9, None)  # type: ignore[attr-defined]


# -- 5. builders and settings ----------------------------------------------------------------------


def test_a_function_that_goes_to_another_process_needs_an_import_path() -> None:
    there = pickle.loads(
        pickle.dumps(ChatAgentGroupBuilder(two_speakers, "task", 2, advantages=by_turn))
    )
    assert there.advantages is by_turn

    builder = ChatAgentGroupBuilder(two_speakers, "task", 2, advantages=lambda group: group.rewards)
    with pytest.raises(
        InvalidAgentError, match="The function that gives advantages .*<lambda> has"
    ):
        pickle.dumps(builder)


async def test_a_dataset_finds_the_function_by_its_import_path() -> None:
    def builder(advantages: Any) -> AgentDatasetBuilder:
        return AgentDatasetBuilder(agent=two_speakers, train_tasks=["a"], advantages=advantages)

    train, _ = await builder("evert.bridge.groups.advantages:padded")()
    from evert.bridge.groups.advantages import padded

    assert train.get_batch(0)[0].advantages is padded  # type: ignore[attr-defined]
    with pytest.raises(AdvantagesError, match="Got 'turn' for the advantages"):
        await builder("turn")()


@pytest.mark.parametrize("options", [{"gamma": 2.0}, {"advantages": "turn"}])
def test_what_is_no_credit_is_refused_when_a_builder_is_made(options: Any) -> None:
    with pytest.raises(AdvantagesError):
        ChatAgentGroupBuilder(two_speakers, "task", 2, **options)
