"""Credit: from what the episodes of a task earned to an advantage for every sampled token.

1. A group's rewards are arrays by episode and by turn; what comparing it added is in the last turn.
2. "group" is the episode's reward less the mean; with gamma, a turn's return less that turn's mean.
3. Numbers go by episode, turn or token, ragged or padded, as lists, arrays or tensors.
4. What does not fit is an error with both shapes.
"""

from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import Trajectory, Transition

from evert import AdvantagesError, Group
from evert.bridge.groups.advantages import token_advantages

NAN = float("nan")


def turn(reward: float, tokens: int) -> Transition:
    action = TokensWithLogprobs([7] * tokens, [-1.0] * tokens)
    return Transition(tinker.ModelInput.from_ints([1, 2]), action, reward, False)


def group_of(*episodes: list[float], final: list[float] | None = None, tokens: int = 2) -> Group:
    turns = [[turn(reward, tokens) for reward in rewards] for rewards in episodes]
    trajectories = [Trajectory([*each], tinker.ModelInput.empty()) for each in turns]
    order = [range(len(each)) for each in turns]
    return Group("a task", trajectories, order, final or [0.0] * len(episodes))


def by_turn(group: Group, *how: Any) -> list[list[Any]]:
    """The advantages, checked to be those of every token of a turn."""
    found = token_advantages(group, *how)
    assert [[len(tokens) for tokens in episode] for episode in found] == group.tokens
    assert all(len(set(tokens)) == 1 for episode in found for tokens in episode)
    return [[pytest.approx(tokens[0]) for tokens in episode] for episode in found]


# -- 1. rewards ------------------------------------------------------------------------------------


def test_rewards_are_by_episode_and_by_turn() -> None:
    group = group_of([1.0, 0.0, 2.0], [0.5], final=[0.0, 4.0])

    assert group.rewards.tolist() == [3.0, 4.5]
    np.testing.assert_equal(group.turn_rewards, [[1.0, 0.0, 2.0], [4.5, NAN, NAN]])


def test_returns_are_what_a_turn_and_those_after_it_earned() -> None:
    group = group_of([1.0, 0.0, 2.0], [0.5], final=[0.0, 4.0])

    np.testing.assert_equal(group.returns(1.0), [[3.0, 2.0, 2.0], [4.5, NAN, NAN]])
    np.testing.assert_equal(group.returns(0.5), [[1.5, 1.0, 2.0], [4.5, NAN, NAN]])
    np.testing.assert_equal(group.returns(0.0), group.turn_rewards)


# -- 2. "group" ------------------------------------------------------------------------------------


def test_each_token_has_the_episodes_reward_less_the_mean() -> None:
    group = group_of([1.0, 0.0, 2.0], [1.0])

    assert by_turn(group) == [[1.0, 1.0, 1.0], [-1.0]]


def test_with_gamma_a_turn_is_compared_with_the_same_turn_of_the_group() -> None:
    group = group_of([1.0, 0.0, 2.0], [0.0, 1.0])

    assert by_turn(group, "group", 0.0) == [[0.5, -0.5, 0.0], [-0.5, 0.5]]
    assert by_turn(group, "group", 1.0) == [[1.0, 0.5, 0.0], [-1.0, -0.5]]


def test_who_earns_the_same_in_every_episode_has_no_advantage() -> None:
    group = group_of([0.5, 0.5], [0.5, 0.5])

    for gamma in (None, 0.0, 0.9, 1.0):
        assert by_turn(group, "group", gamma) == [[0.0, 0.0], [0.0, 0.0]]


# -- 3. numbers of one's own -----------------------------------------------------------------------


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
def test_a_function_gives_numbers_of_any_depth(given: Any) -> None:
    group = group_of([1.0, 1.0], [1.0])

    assert by_turn(group, lambda _: given) == [[3.0, 3.0], [-1.0]]


def test_a_function_sees_the_group() -> None:
    def only_the_second_turn(group: Group) -> Any:
        assert (group.task, group.seat) == ("a task", "")
        return [[0.0, episode[1]] for episode in group.turn_rewards]

    assert by_turn(group_of([1.0, 5.0], [1.0, 7.0]), only_the_second_turn) == [[0, 5], [0, 7]]


def test_tokens_of_a_turn_may_differ() -> None:
    found = token_advantages(group_of([1.0], [0.0]), lambda _: [[[1, 2]], [[3, 4]]])

    assert found == [[[1.0, 2.0]], [[3.0, 4.0]]]


# -- 4. what does not fit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (1.0, r"\(\)"),
        ([1.0, 2.0, 3.0], r"\(3,\)"),
        (np.zeros((2, 4)), r"\(2, 4\)"),
        ([[1.0], [1.0]], r"\(2, 1\)"),
        ([[1.0] * 3, [1.0] * 2], r"\(2, 2 to 3\)"),
        (np.zeros((2, 3, 5)), r"\(2, 3, 5\)"),
        (np.zeros((2, 3, 2, 1)), r"\(2, 3, 2, 1\)"),
    ],
)
def test_a_shape_that_does_not_fit_is_named_with_those_that_would(given: Any, shape: str) -> None:
    group = group_of([1.0, 1.0, 1.0], [1.0])
    expected = r"expected \[G\] = \(2,\), by episode, \[G, T\] = \(2, 3\), by turn, or \[G, T, N\] "
    with pytest.raises(AdvantagesError, match=rf"returned: got the shape {shape}; {expected}"):
        token_advantages(group, lambda _: given)


@pytest.mark.parametrize("given", [NAN, float("inf"), None, "1", True])
def test_what_is_no_finite_number_is_refused(given: Any) -> None:
    with pytest.raises(AdvantagesError, match=r"one is .*; expected finite numbers"):
        token_advantages(group_of([1.0], [1.0]), lambda _: [1.0, given])


def test_another_word_than_group_is_refused() -> None:
    with pytest.raises(AdvantagesError, match="advantages is 'turn'; expected \"group\""):
        token_advantages(group_of([1.0]), "turn")  # type: ignore[arg-type]


@pytest.mark.parametrize("gamma", [-0.1, 1.1, "1"])
def test_gamma_is_from_0_to_1(gamma: Any) -> None:
    with pytest.raises(AdvantagesError, match="gamma is .*; expected a number from 0"):
        token_advantages(group_of([1.0]), "group", gamma)


def test_gamma_beside_advantages_of_ones_own_is_refused() -> None:
    with pytest.raises(AdvantagesError, match='gamma=0.9 goes with advantages="group"'):
        token_advantages(group_of([1.0]), lambda group: group.rewards, 0.9)
