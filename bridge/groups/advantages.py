"""Credit assignment: computes an advantage for every sampled token from the episodes' rewards.

Turns are in the order in which the calls were answered. Shapes use the letters P (tasks), G
(episodes per task), T (turns in the longest episode) and N (tokens in the longest reply). Returned
arrays are padded with NaN. Input rows can be ragged or padded.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.episode.agent import agent_name
from evert.bridge.errors import AdvantagesError, repr_of

Floats: TypeAlias = npt.NDArray[np.float64]

ByToken: TypeAlias = list[list[list[float]]]
"""[G, turns, tokens], nested lists: the advantage of every sampled token in a group."""


@dataclass(frozen=True)
class Group:
    """All episodes of one task at one seat. This is the argument of an advantage function.

    Failed episodes are left out and not counted in G.

    Attributes:
        task: The agent's task.
        trajectories: [G], the trajectories. In each trajectory, the turns of a lineage are
            adjacent.
        order: [G], for each trajectory, the turn number (in the order of play, from 0) of each of
            its transitions.
        final_rewards: [G], the rewards added by ``group_reward``.
        seat: The name of the seat, or "" if the agent has no seats.
    """

    task: Any
    trajectories: Sequence[Trajectory]
    order: Sequence[Sequence[int]]
    final_rewards: Sequence[float]
    seat: str = ""

    @cached_property
    def turns(self) -> list[list[Transition]]:
        """[G]: the transitions of each trajectory, in the order of play."""
        pairs = zip(self.trajectories, self.order, strict=True)
        return [
            [trajectory.transitions[at] for at in np.argsort(order)] for trajectory, order in pairs
        ]

    @cached_property
    def rewards(self) -> Floats:
        """[G]: the total reward of each episode."""
        return np.asarray(totals(self.turns, self.final_rewards))

    @cached_property
    def turn_rewards(self) -> Floats:
        """[G, T]: the reward of each turn; the last turn's reward includes ``final_rewards``."""
        rewards = padded([[turn.reward for turn in turns] for turns in self.turns])
        for row, turns, final in zip(rewards, self.turns, self.final_rewards, strict=True):
            row[len(turns) - 1 : len(turns)] += final
        return rewards

    def returns(self, gamma: float = 1.0) -> Floats:
        """[G, T]: the discounted return of each turn.

        Args:
            gamma: Discount factor. If it is 0, only the turn's own reward counts; if it is 1, all
                later rewards count in full.

        Raises:
            AdvantagesError: ``gamma`` is not a number from 0 to 1.
        """
        check_credit("group", gamma)
        returns = self.turn_rewards.copy()
        for turn in reversed(range(returns.shape[1] - 1)):
            returns[:, turn] += gamma * np.nan_to_num(returns[:, turn + 1])
        return returns

    @property
    def tokens(self) -> list[list[int]]:
        """[G, turns], nested lists: the number of sampled tokens in each turn."""
        return [[len(turn.ac.tokens) for turn in turns] for turns in self.turns]


Advantages: TypeAlias = Literal["group"] | Callable[[Group], Any]
""""group", or a function that takes a ``Group`` and returns advantages (``token_advantages``)."""


def totals(turns: Sequence[Sequence[Transition]], final_rewards: Sequence[float]) -> list[float]:
    """Return the total reward of each episode."""
    pairs = zip(turns, final_rewards, strict=True)
    return [
        math.fsum([*(turn.reward for turn in transitions), final]) for transitions, final in pairs
    ]


def padded(rows: Sequence[Sequence[float]]) -> Floats:
    """Stack rows into one array, padded with NaN to the length of the longest row."""
    array = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array


def token_advantages(
    group: Group, advantages: Advantages = "group", gamma: float | None = None
) -> ByToken:
    """Return the advantage of every sampled token in a group.

    With "group", the advantage of a token is the reward of its episode minus the group's mean. If
    ``gamma`` is set, the advantage is the return of the token's turn minus the group's mean return
    at that turn. An advantage function must return one number per episode [G], per turn [G, T] or
    per token [G, T, N].
    """
    check_credit(advantages, gamma)
    if callable(advantages):
        label, values = f"The result of {agent_name(advantages)}", advantages(group)
    else:
        label = "advantages"
        earned = group.rewards if gamma is None else group.returns(gamma)
        values = earned - np.nanmean(earned, axis=0)
    by_token: ByToken = spread(values, group.tokens, label, "G")
    return by_token


def check_credit(advantages: Any, gamma: float | None) -> None:
    """Check that ``advantages`` is "group" or a function, and that ``gamma`` is allowed with it."""
    if callable(advantages):
        check_gamma(gamma)
    elif not isinstance(advantages, str) or advantages != "group":
        raise AdvantagesError(
            f'advantages is {repr_of(advantages)}; expected "group" (rewards minus their mean), or '
            "a function that takes a Group and returns numbers per episode, turn or token."
        )
    elif gamma is not None and (not isinstance(gamma, numbers.Real) or not 0 <= gamma <= 1):
        raise AdvantagesError(
            f"gamma is {repr_of(gamma)}; expected a number from 0 (each turn only gets its own "
            "reward) to 1 (plus all later rewards), or None (each turn gets the episode's reward)."
        )


def check_gamma(gamma: float | None) -> None:
    """Check that ``gamma`` is None, because it is only used with ``advantages="group"``."""
    if gamma is not None:
        raise AdvantagesError(
            f'gamma={gamma!r} only works with advantages="group", but you passed custom '
            "advantages. Leave gamma out. An advantage function can call Group.returns(gamma) to "
            "get discounted returns."
        )


def spread(values: Any, tokens: Any, label: str, letters: str) -> Any:
    """Broadcast values given per episode, turn or token, so that every token gets a float.

    Args:
        values: Nested lists or an array.
        tokens: Nested lists with the token count of each turn, [G, turns] or [P, G, turns].
        label: The name of the values in error messages, for example "advantages".
        letters: The leading dimensions that ``values`` must have ("G" or "PG").
    """
    *rows, counts = _levels(tokens)
    widths = [*(max(map(len, level)) for level in rows), max(counts, default=0)]
    values = _as_lists(values)
    try:
        return _fit(values, tokens, widths, len(letters))
    except IndexError:
        depths = range(len(letters), len(letters) + 3)
        names = f"{letters}TN"
        fits = [f"[{', '.join(names[:n])}] = {tuple(widths[:n])}" for n in depths]
        raise AdvantagesError(
            f"{label}: got shape {_shape(values)}; expected {fits[0]} (per episode), {fits[1]} "
            f"(per turn) or {fits[2]} (per token). Rows don't need to be padded: their length can "
            "be the number of turns in the episode, or of tokens in the turn."
        ) from None
    except (TypeError, ValueError) as error:
        raise AdvantagesError(f"{label}: {error}") from error


def _levels(nested: Any) -> list[list[Any]]:
    """Return the elements at each nesting depth, down to the first depth with a non-list."""
    levels = [[nested]]
    while levels[-1] and all(isinstance(element, list) for element in levels[-1]):
        levels.append([*chain.from_iterable(levels[-1])])
    return levels


def _fit(values: Any, tokens: Any, widths: Sequence[int], least: int) -> Any:
    """Broadcast the values to the shape of the tokens. Raises IndexError on a mismatch."""
    if not isinstance(values, list):
        if least > 0:
            raise IndexError
        return _repeat(values, tokens)
    if not widths:
        raise IndexError
    inner = [None] * tokens if isinstance(tokens, int) else tokens
    if len(values) not in (len(inner), widths[0]):
        raise IndexError
    return [
        _fit(value, counts, widths[1:], least - 1)
        for value, counts in zip(values, inner, strict=False)
    ]


def _repeat(value: Any, tokens: Any) -> Any:
    if isinstance(tokens, list):
        return [_repeat(value, count) for count in tokens]
    if tokens == 0:
        return []
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"got {repr_of(value)}; expected finite numbers.")
    return float(value) if tokens is None else [float(value)] * tokens


def _as_lists(values: Any) -> Any:
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, Sequence) and not isinstance(values, str):
        return [_as_lists(value) for value in values]
    return values


def _shape(values: Any) -> str:
    """Describe the shape of nested lists, as "(2, 4)" or (for ragged rows) "(2, 1 to 4)"."""
    lengths = [{len(row) for row in level} for level in _levels(values)[:-1]]
    sizes = [" to ".join(map(str, sorted({min(level), max(level)}))) for level in lengths]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
