"""Credit assignment: computing an advantage for every sampled token from a group's rewards, and
splitting groups into pieces so that the Cookbook's unmodified training loop uses the advantages."""

import pickle
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tests.kit import ask, assistant, policy_of, system, user
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

from evert import (
    AdvantagesError,
    AgentDatasetBuilder,
    ChatAgentGroupBuilder,
    Group,
    InvalidAgentError,
    ScriptedPolicy,
)
from evert.bridge.groups.advantages import padded, token_advantages
from evert.bridge.tokens.renderer import prompt_renderer

NAN = float("nan")


def turn(reward: float) -> Transition:
    action = TokensWithLogprobs([7, 7], [-1.0, -1.0])
    return Transition(tinker.ModelInput.from_ints([1, 2]), action, reward, False)


def group_of(*episodes: list[float], final: list[float] | None = None) -> Group:
    trajectories = [
        Trajectory([*map(turn, episode)], tinker.ModelInput.empty()) for episode in episodes
    ]
    order = [range(len(episode)) for episode in episodes]
    return Group("a task", trajectories, order, final or [0.0] * len(episodes))


def of_turns(group: Group, *how: Any) -> list[list[Any]]:
    """Return the advantage of each turn, after checking that it is the same for all its tokens."""
    advantages = token_advantages(group, *how)
    assert [[len(tokens) for tokens in episode] for episode in advantages] == group.tokens
    assert all(len(set(tokens)) == 1 for episode in advantages for tokens in episode)
    return [[pytest.approx(tokens[0]) for tokens in episode] for episode in advantages]


def test_rewards_and_returns_are_computed_per_episode_and_per_turn() -> None:
    group = group_of([1.0, 0.0, 2.0], [0.5], final=[0.0, 4.0])

    assert group.rewards.tolist() == [3.0, 4.5]
    np.testing.assert_equal(group.turn_rewards, [[1.0, 0.0, 2.0], [4.5, NAN, NAN]])
    np.testing.assert_equal(group.returns(1.0), [[3.0, 2.0, 2.0], [4.5, NAN, NAN]])
    np.testing.assert_equal(group.returns(0.5), [[1.5, 1.0, 2.0], [4.5, NAN, NAN]])
    np.testing.assert_equal(group.returns(0.0), group.turn_rewards)


def test_a_tokens_advantage_is_the_episodes_reward_or_turns_return_minus_the_mean() -> None:
    assert of_turns(group_of([1.0, 0.0, 2.0], [1.0])) == [[1.0, 1.0, 1.0], [-1.0]]
    group = group_of([1.0, 0.0, 2.0], [0.0, 1.0])
    assert of_turns(group, "group", 0.0) == [[0.5, -0.5, 0.0], [-0.5, 0.5]]
    assert of_turns(group, "group", 1.0) == [[1.0, 0.5, 0.0], [-1.0, -0.5]]
    for gamma in (None, 0.0, 0.9, 1.0):  # all episodes have equal rewards, so advantages are 0
        same = of_turns(group_of([0.5, 0.5], [0.5, 0.5]), "group", gamma)
        assert same == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    "given",
    [
        [3.0, -1],
        np.asarray([3.0, -1.0]),
        torch.tensor([3.0, -1.0]),
        [torch.tensor([3.0, 3.0]), (-1.0,)],
        [[3, 3], [-1]],
        np.asarray([[3.0, 3.0], [-1.0, NAN]]),
        [[[3.0, 3.0], 3.0], [[-1.0, -1.0]]],
        np.asarray([[[3.0, 3.0], [3.0, 3.0]], [[-1.0, -1.0], [NAN, NAN]]]),
    ],
    ids=["list", "array", "tensor", "rows", "turns", "padded turns", "tokens", "padded tokens"],
)
def test_a_function_can_return_advantages_per_episode_turn_or_token(given: Any) -> None:
    def advantages(group: Group) -> Any:
        assert (group.task, group.seat) == ("a task", "")
        assert group.turn_rewards[0].tolist() == [1.0, 5.0]
        return given

    assert of_turns(group_of([1.0, 5.0], [1.0]), advantages) == [[3.0, 3.0], [-1.0]]


def test_tokens_of_a_turn_can_have_different_advantages() -> None:
    advantages = token_advantages(group_of([1.0], [0.0]), lambda _: [[[1, 2]], [[3, 4]]])

    assert advantages == [[[1.0, 2.0]], [[3.0, 4.0]]]


EXPECTED = r"expected \[G\] = \(2,\) \(per episode\), \[G, T\] = \(2, 3\) \(per turn\) or \[G, T"
SHAPES: list[tuple[Any, str]] = [
    (1.0, r"\(\)"),
    ([1.0, 2.0, 3.0], r"\(3,\)"),
    (np.zeros((2, 4)), r"\(2, 4\)"),
    ([[1.0], [1.0]], r"\(2, 1\)"),
    ([[1.0] * 3, [1.0] * 2], r"\(2, 2 to 3\)"),
    (np.zeros((2, 3, 5)), r"\(2, 3, 5\)"),
    (np.zeros((2, 3, 2, 1)), r"\(2, 3, 2, 1\)"),
]
WRONG: list[tuple[tuple[Any, ...], str]] = [
    *[((lambda _, g=g: g,), rf"got shape {shape}; {EXPECTED}") for g, shape in SHAPES],
    *[
        ((lambda _, g=g: [1.0, g],), r"got .*; expected finite numbers")
        for g in (NAN, float("inf"), None, "1", True)
    ],
    (("turn",), "advantages is 'turn'; expected \"group\""),
    *[(("group", gamma), "gamma is .*; expected a number from 0") for gamma in (-0.1, 1.1, "1")],
    ((lambda group: group.rewards, 0.9), 'gamma=0.9 only works with advantages="group"'),
]


@pytest.mark.parametrize(("how", "said"), WRONG, ids=range(len(WRONG)))
def test_the_error_for_invalid_advantages_states_what_is_expected(how: Any, said: str) -> None:
    with pytest.raises(AdvantagesError, match=said):
        token_advantages(group_of([1.0, 1.0, 1.0], [1.0]), *how)


SEATS = ("player", "judge")


# -- splitting groups into pieces ------------------------------------------------------------------


TURNS = 3


async def go_on(client: Any, messages: list[dict[str, Any]]) -> int:
    messages.append(user("go on"))
    messages.append(assistant(await ask(client, *messages)))
    return len(messages[-1]["content"])


async def two_speakers(client: Any, task: str) -> float:
    """Alternate between two conversations. Each reply in the first earns its length."""
    first, second = [system("one")], [system("two")]
    for _ in range(TURNS):
        client.reward(await go_on(client, first))
        client.metric("asked", 1)
        await go_on(client, second)
    return 5.0


async def duel(client: Any, task: str) -> dict[str, float]:
    messages: list[dict[str, Any]] = []
    player, judge = client.seat("player"), client.seat("judge")
    for _ in range(TURNS):
        player.reward(await go_on(player, messages))
        await go_on(judge, [system(messages[-1]["content"])])
    player.metric("seen", 1)
    judge.metric("seen", 3)
    return {"player": 0.0, "judge": 0.5}


def by_token(group: Group) -> Any:
    """Draw a separate advantage for each token, reproducibly."""
    draw = random.Random(0)
    return [
        [[draw.choice([-1.0, 0.0, 0.25, 2.0]) for _ in range(count)] for count in episode]
        for episode in group.tokens
    ]


def by_turn(group: Group) -> Any:
    return group.turn_rewards


def as_ever(group: Group) -> Any:
    return [0.0] * len(group.rewards)


async def play_three(agent: Any, **options: Any) -> TrajectoryGroup:
    builder = ChatAgentGroupBuilder(agent, "task", group_size=3, **options)
    policy: ScriptedPolicy = policy_of(lambda prompt: "x" * (len(policy.actions) % 7 + 1))
    return await do_group_rollout(builder, policy)


def token_counts(group: TrajectoryGroup) -> Counter[tuple[tuple[int, ...], int, float, float]]:
    """Count trained tokens by (preceding tokens, token, log-prob, advantage)."""
    data: list[tinker.Datum]
    data, _ = assemble_training_data([group], compute_advantages([group]))
    counts = Counter[tuple[tuple[int, ...], int, float, float]]()
    for datum in data:
        inputs = {name: tensor.tolist() for name, tensor in datum.loss_fn_inputs.items()}
        before = datum.model_input.to_ints()
        for at, mask in enumerate(inputs["mask"]):
            if mask:
                values = inputs["logprobs"][at], round(inputs["advantages"][at], 4)
                counts[tuple(before[: at + 1]), inputs["target_tokens"][at], *values] += 1
    return counts


@pytest.mark.parametrize("how", [by_token, by_turn])
async def test_each_token_is_trained_on_once_with_its_advantage(how: Any) -> None:
    groups: list[Group] = []

    def advantages(group: Group) -> Any:
        groups.append(group)
        return how(group)

    reference = token_counts(await play_three(two_speakers))
    cut = token_counts(await play_three(two_speakers, advantages=advantages))

    assert Counter(key[:3] for key in cut.elements()) == Counter(
        key[:3] for key in reference.elements()
    )
    [group] = groups
    expected = Counter[float]()
    for episode, turns in zip(how(group), group.tokens, strict=True):
        for turn, count in zip(episode, turns, strict=False):
            expected.update(turn if isinstance(turn, list) else [round(float(turn), 4)] * count)
    assert Counter(key[3] for key in cut.elements()) == expected

    by_gamma = {key[3] for key in token_counts(await play_three(two_speakers, gamma=0.0))}
    assert 0.0 in by_gamma  # the second conversation earns nothing
    assert len(by_gamma) > 3


@pytest.mark.parametrize("early", [True, False])
async def test_the_cookbooks_advantage_ignores_which_turn_was_rewarded(early: bool) -> None:
    async def two_turns(client: Any, task: str) -> float:
        earned = float(await ask(client, "Which?") == "yes")
        client.reward(earned if early else 0.0)
        await ask(client, "And?")
        return 0.0 if early else earned

    replies = iter(["yes", "no"])
    policy = policy_of(lambda prompt: next(replies) if "Which?" in prompt else "yes")
    group = await do_group_rollout(ChatAgentGroupBuilder(two_turns, 1, group_size=2), policy)
    advantages = Counter(key[3] for key in token_counts(group).elements())

    assert sorted(advantages) == [-0.5, 0.5]
    assert advantages.total() == sum(
        len(turn.ac.tokens)
        for trajectory in group.trajectories_G
        for turn in trajectory.transitions
    )


async def test_splitting_a_group_does_not_change_its_metrics() -> None:
    expected = compute_trajectory_metrics([await play_three(two_speakers)], [[]])
    for options in ({"advantages": by_token}, {"gamma": 1.0}):
        cut = compute_trajectory_metrics([await play_three(two_speakers, **options)], [[]])
        for name in ("reward/total", "turns_per_episode", "asked", "lineages", "total_ac_tokens"):
            assert cut[f"env/all/{name}"] == pytest.approx(expected[f"env/all/{name}"]), name


@pytest.mark.parametrize("options", [{}, {"gamma": 0.9}], ids=["whole", "in pieces"])
async def test_a_seat_with_constant_rewards_has_zero_advantages_but_its_own_metrics(
    options: Any,
) -> None:
    group = await play_three(duel, seats=SEATS, **options)
    metrics = compute_trajectory_metrics([group], [[]])
    player = [key for key in token_counts(group).elements() if key[3] != 0]

    assert metrics["env/all/seat/judge/reward"] == 0.5 != metrics["env/all/seat/player/reward"]
    assert metrics["env/all/seat/judge/seen"] == 3.0
    assert metrics["env/all/seat/player/seen"] == 1.0
    assert player
    assert all("go on" in prompt_renderer(None).decode([*before]) for before, *_ in player)


@pytest.mark.parametrize("options", [{}, {"advantages": as_ever}])
async def test_a_group_with_default_or_equal_advantages_is_not_split(options: Any) -> None:
    group = await play_three(two_speakers, **options)

    assert [len(trajectory.transitions) for trajectory in group.trajectories_G] == [2 * TURNS] * 3
    if options:  # the Cookbook uses this check to skip groups with constant rewards
        assert len(set(group.get_total_rewards())) == 1


async def test_a_dataset_imports_the_advantages_function_and_does_not_split_test_groups() -> None:
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


def test_a_builder_checks_and_pickles_its_advantages_function() -> None:
    there = ChatAgentGroupBuilder(two_speakers, "task", 2, advantages=by_turn)
    assert pickle.loads(pickle.dumps(there)).advantages is by_turn

    builder = ChatAgentGroupBuilder(two_speakers, "task", 2, advantages=lambda group: group.rewards)
    with pytest.raises(InvalidAgentError, match="The advantage function .*<lambda> ha"):
        pickle.dumps(builder)
    wrong: list[Any] = [{"gamma": 2.0}, {"advantages": "turn"}]
    for options in wrong:
        with pytest.raises(AdvantagesError):
            ChatAgentGroupBuilder(two_speakers, "task", 2, **options)
