"""Credit: from what the episodes of a task earned to an advantage for every sampled token.

A turn is a model call, in the order in which the calls were answered. Letters of shapes: P tasks, G
episodes a task, T turns of the longest episode, N tokens of the longest reply. What is shorter is
padded with NaN where it is handed out; where it is handed in it may be padded or not.
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
"""[G, turns, tokens], nested: an advantage for every sampled token of a group."""


@dataclass(frozen=True)
class Group:
    """The episodes of one task at one seat, as a function that gives advantages sees them.

    Episodes that failed are not in it. G is the number of those that did not.

    Attributes:
        task: What the agent was handed.
        trajectories: G of them, as they are trained on: turns that continue each other stand side
            by side.
        order: [G], of each transition of a trajectory, which turn it was, from 0 in the order of
            play.
        final_rewards: [G], what comparing the group added to what each earned.
        seat: The role; "" where the agent has one.
    """

    task: Any
    trajectories: Sequence[Trajectory]
    order: Sequence[Sequence[int]]
    final_rewards: Sequence[float]
    seat: str = ""

    @cached_property
    def turns(self) -> list[list[Transition]]:
        """[G], the transitions of each trajectory in the order in which they were played."""
        pairs = zip(self.trajectories, self.order, strict=True)
        return [[each.transitions[at] for at in np.argsort(order)] for each, order in pairs]

    @cached_property
    def rewards(self) -> Floats:
        """[G]: all that each episode earned."""
        return np.asarray(totals(self.turns, self.final_rewards))

    @cached_property
    def turn_rewards(self) -> Floats:
        """[G, T]: what each turn earned; the last one's holds the ``final_rewards``."""
        found = padded([[turn.reward for turn in turns] for turns in self.turns])
        for row, turns, final in zip(found, self.turns, self.final_rewards, strict=True):
            row[len(turns) - 1 : len(turns)] += final
        return found

    def returns(self, gamma: float = 1.0) -> Floats:
        """[G, T]: what each turn and those after it earned, ``gamma`` times less for each later.

        Args:
            gamma: From 0, a turn's own reward, to 1, the sum of all from it on.

        Raises:
            AdvantagesError: It is no number from 0 to 1.
        """
        check_credit("group", gamma)
        found = self.turn_rewards.copy()
        for turn in reversed(range(found.shape[1] - 1)):
            found[:, turn] += gamma * np.nan_to_num(found[:, turn + 1])
        return found

    @property
    def tokens(self) -> list[list[int]]:
        """[G, turns], nested: how many tokens were sampled."""
        return [[len(turn.ac.tokens) for turn in turns] for turns in self.turns]


Advantages: TypeAlias = Literal["group"] | Callable[[Group], Any]
"""How a group's advantages come about: "group", or a function that gives them."""


def totals(turns: Sequence[Sequence[Transition]], final_rewards: Sequence[float]) -> list[float]:
    """All that each of some episodes earned."""
    pairs = zip(turns, final_rewards, strict=True)
    return [math.fsum([*(turn.reward for turn in each), final]) for each, final in pairs]


def padded(rows: Sequence[Sequence[float]]) -> Floats:
    """Rows as one array, as wide as the longest; NaN where a row is over."""
    whole = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for number, row in enumerate(rows):
        whole[number, : len(row)] = row
    return whole


def token_advantages(
    group: Group, advantages: Advantages = "group", gamma: float | None = None
) -> ByToken:
    """The advantage of every sampled token of a group.

    "group" is what an episode earned, less the group's mean, for all of its tokens; with ``gamma``,
    for each turn its return less the mean of the same turn in the group. A function gives numbers
    by episode [G], by turn [G, T] or by token [G, T, N], each row as long as its episode or padded.
    """
    check_credit(advantages, gamma)
    if callable(advantages):
        what, values = f"What {agent_name(advantages)} returned", advantages(group)
    else:
        what = "advantages"
        earned = group.rewards if gamma is None else group.returns(gamma)
        values = earned - np.nanmean(earned, axis=0)
    found: ByToken = spread(values, group.tokens, what, "G")
    return found


def check_credit(advantages: Any, gamma: float | None) -> None:
    """Check that advantages are "group" or a function, and that gamma goes with them."""
    if callable(advantages):
        check_gamma(gamma)
    elif not isinstance(advantages, str) or advantages != "group":
        raise AdvantagesError(
            f'advantages is {repr_of(advantages)}; expected "group" (rewards less their mean), or '
            "a function from a group to numbers by episode, turn or token."
        )
    elif gamma is not None and (not isinstance(gamma, numbers.Real) or not 0 <= gamma <= 1):
        raise AdvantagesError(
            f"gamma is {repr_of(gamma)}; expected a number from 0 (each turn has its own "
            "reward alone) to 1 (and all that came after it), or None for the whole episode's."
        )


def check_gamma(gamma: float | None) -> None:
    """Check that none was given where it would mean nothing."""
    if gamma is not None:
        raise AdvantagesError(
            f'gamma={gamma!r} goes with advantages="group"; numbers or a function of your own hold '
            "the credit of each turn already (Group.returns(gamma) has discounted returns)."
        )


def spread(values: Any, tokens: Any, what: str, letters: str) -> Any:
    """Numbers of whatever depth, as a list of floats in the place of each count of ``tokens``.

    Args:
        values: Nested lists or an array.
        tokens: Nested lists of token counts, by turn: [G, turns] or [P, G, turns].
        what: What to call the values in a message: "advantages".
        letters: Of the dimensions that must be there: "G", or "PG".
    """
    *rows, counts = _levels(tokens)
    widths = [*(max(map(len, level)) for level in rows), max(counts, default=0)]
    values = _listed(values)
    try:
        return _fit(values, tokens, widths, len(letters))
    except IndexError:
        depths = range(len(letters), len(letters) + 3)
        names = f"{letters}TN"
        fits = [f"[{', '.join(names[:n])}] = {tuple(widths[:n])}" for n in depths]
        raise AdvantagesError(
            f"{what}: got the shape {_shape(values)}; expected {fits[0]}, by episode, {fits[1]}, "
            f"by turn, or {fits[2]}, by token. A row may be as long as its own episode has turns, "
            "or its turn tokens."
        ) from None
    except (TypeError, ValueError) as error:
        raise AdvantagesError(f"{what}: {error}") from error


def _levels(nested: Any) -> list[list[Any]]:
    """What stands at each depth of nested lists, down to the first at which not all are lists."""
    levels = [[nested]]
    while levels[-1] and all(isinstance(each, list) for each in levels[-1]):
        levels.append([*chain.from_iterable(levels[-1])])
    return levels


def _fit(values: Any, tokens: Any, widths: Sequence[int], least: int) -> Any:
    """The values in the shape of the tokens. Other shapes raise an IndexError."""
    if not isinstance(values, list):
        if least > 0:
            raise IndexError
        return _filled(values, tokens)
    if not widths:
        raise IndexError
    inner = [None] * tokens if isinstance(tokens, int) else tokens
    if len(values) not in (len(inner), widths[0]):
        raise IndexError
    return [
        _fit(value, each, widths[1:], least - 1) for value, each in zip(values, inner, strict=False)
    ]


def _filled(value: Any, tokens: Any) -> Any:
    if isinstance(tokens, list):
        return [_filled(value, each) for each in tokens]
    if tokens == 0:
        return []
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"one is {repr_of(value)}; expected finite numbers.")
    return float(value) if tokens is None else [float(value)] * tokens


def _listed(values: Any) -> Any:
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, Sequence) and not isinstance(values, str):
        return [_listed(value) for value in values]
    return values


def _shape(values: Any) -> str:
    """The shape of nested lists, in words: "(2, 4)", or "(2, 1 to 4)" where rows differ."""
    lengths = [{len(each) for each in level} for level in _levels(values)[:-1]]
    sizes = [" to ".join(map(str, sorted({min(each), max(each)}))) for each in lengths]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
