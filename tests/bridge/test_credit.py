"""Credit: from what the episodes of a task earned to an advantage for every sampled token."""

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


def turn(reward: float) -> Transition:
    action = TokensWithLogprobs([7, 7], [-1.0, -1.0])
    return Transition(tinker.ModelInput.from_ints([1, 2]), action, reward, False)


def group_of(*episodes: list[float], final: list[float] | None = None) -> Group:
    played = [Trajectory([*map(turn, each)], tinker.ModelInput.empty()) for each in episodes]
    order = [range(len(each)) for each in episodes]
    return Group("a task", played, order, final or [0.0] * len(episodes))


def by_turn(group: Group, *how: Any) -> list[list[Any]]:
    """The advantages, checked to be those of every token of a turn."""
    found = token_advantages(group, *how)
    assert [[len(tokens) for tokens in episode] for episode in found] == group.tokens
    assert all(len(set(tokens)) == 1 for episode in found for tokens in episode)
    return [[pytest.approx(tokens[0]) for tokens in episode] for episode in found]


def test_rewards_and_returns_are_by_episode_and_by_turn() -> None:
    group = group_of([1.0, 0.0, 2.0], [0.5], final=[0.0, 4.0])

    assert group.rewards.tolist() == [3.0, 4.5]
    np.testing.assert_equal(group.turn_rewards, [[1.0, 0.0, 2.0], [4.5, NAN, NAN]])
    np.testing.assert_equal(group.returns(1.0), [[3.0, 2.0, 2.0], [4.5, NAN, NAN]])
    np.testing.assert_equal(group.returns(0.5), [[1.5, 1.0, 2.0], [4.5, NAN, NAN]])
    np.testing.assert_equal(group.returns(0.0), group.turn_rewards)


def test_a_token_has_its_episodes_reward_less_the_mean_or_its_turns_return_less_that_turns() -> (
    None
):
    assert by_turn(group_of([1.0, 0.0, 2.0], [1.0])) == [[1.0, 1.0, 1.0], [-1.0]]
    group = group_of([1.0, 0.0, 2.0], [0.0, 1.0])
    assert by_turn(group, "group", 0.0) == [[0.5, -0.5, 0.0], [-0.5, 0.5]]
    assert by_turn(group, "group", 1.0) == [[1.0, 0.5, 0.0], [-1.0, -0.5]]
    for gamma in (None, 0.0, 0.9, 1.0):  # who earns the same in every episode has none
        same = by_turn(group_of([0.5, 0.5], [0.5, 0.5]), "group", gamma)
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
def test_a_function_gives_numbers_of_any_depth(given: Any) -> None:
    def advantages(group: Group) -> Any:
        assert (group.task, group.seat) == ("a task", "")
        assert group.turn_rewards[0].tolist() == [1.0, 5.0]
        return given

    assert by_turn(group_of([1.0, 5.0], [1.0]), advantages) == [[3.0, 3.0], [-1.0]]


def test_tokens_of_a_turn_may_differ() -> None:
    found = token_advantages(group_of([1.0], [0.0]), lambda _: [[[1, 2]], [[3, 4]]])

    assert found == [[[1.0, 2.0]], [[3.0, 4.0]]]


EXPECTED = r"expected \[G\] = \(2,\), by episode, \[G, T\] = \(2, 3\), by turn, or \[G, T, N\] "
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
    *[((lambda _, g=g: g,), rf"got the shape {shape}; {EXPECTED}") for g, shape in SHAPES],
    *[
        ((lambda _, g=g: [1.0, g],), r"one is .*; expected finite numbers")
        for g in (NAN, float("inf"), None, "1", True)
    ],
    (("turn",), "advantages is 'turn'; expected \"group\""),
    *[(("group", gamma), "gamma is .*; expected a number from 0") for gamma in (-0.1, 1.1, "1")],
    ((lambda group: group.rewards, 0.9), 'gamma=0.9 goes with advantages="group"'),
]


@pytest.mark.parametrize(("how", "said"), WRONG, ids=range(len(WRONG)))
def test_what_is_no_credit_is_refused_with_what_would_be(how: Any, said: str) -> None:
    with pytest.raises(AdvantagesError, match=said):
        token_advantages(group_of([1.0, 1.0, 1.0], [1.0]), *how)
