"""Observations as text, for Gymnasium's toy-text games, MiniGrid, and any other space.

The texts are short and regular, so that even small models can learn to read them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

Env = gymnasium.Env[Any, Any]


def in_words(observation: Any, info: Mapping[str, Any], env: Env) -> str:
    """Return an observation as text. This is the default ``describe`` of ``GymAgent``."""
    if describe := toy_text(env):
        return describe(observation, env.unwrapped)
    if isinstance(observation, Mapping) and {"mission", "image"} <= observation.keys():
        return minigrid_in_words(observation)
    return plainly(observation)


def toy_text(env: Env) -> Callable[[Any, Any], str] | None:
    """Return the function that describes a toy-text game's observations, or None."""
    functions = (_TOY_TEXT.get(f"{c.__module__}:{c.__name__}") for c in type(env.unwrapped).__mro__)
    return next(filter(None, functions), None)


def plainly(observation: Any) -> str:
    """Return generic text: strings unchanged, arrays as lists, mappings with one line per key."""
    if isinstance(observation, Mapping):
        return "\n".join(f"{key}: {plainly(value)}" for key, value in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(map(plainly, observation))
    if isinstance(observation, np.ndarray | np.generic):
        if observation.dtype.kind == "f":
            observation = observation.astype(float).round(4)
        return str(observation.tolist())
    return str(observation)


# -- Gymnasium's toy-text games ------------------------------------------------------------------


def _blackjack(observation: Any, env: Any) -> str:
    total, dealer, ace = observation
    return f"Sum {total}, {'usable ace, ' if ace else ''}dealer {dealer}."


def _frozen_lake(observation: Any, env: Any) -> str:
    rows = ["".join(cell.decode() for cell in row) for row in env.desc]
    return f"{_place(observation, env.ncol)} Lake: {' '.join(rows)}."


def _cliff_walking(observation: Any, env: Any) -> str:
    return _place(observation, env.shape[1])


def _place(cell: Any, columns: int) -> str:
    row, column = divmod(int(cell), columns)
    return f"Row {row}, column {column}."


def _taxi(observation: Any, env: Any) -> str:
    row, column, passenger, destination = env.decode(observation)
    stops = ("Red", "Green", "Yellow", "Blue", "in the taxi")
    return (
        f"Row {row}, column {column}. Passenger: {stops[passenger]}. "
        f"Destination: {stops[destination]}."
    )


_TOY_TEXT: Mapping[str, Callable[[Any, Any], str]] = {
    "gymnasium.envs.toy_text.blackjack:BlackjackEnv": _blackjack,
    "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv": _frozen_lake,
    "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv": _cliff_walking,
    "gymnasium.envs.toy_text.taxi:TaxiEnv": _taxi,
}

# -- MiniGrid ------------------------------------------------------------------------------------

# Codes used in observations, from minigrid.core.constants.
_WALL = 2
_OBJECTS = {4: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava"}
_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_STATES = ("open", "closed", "locked")
_DIRECTIONS = ("east", "south", "west", "north")


def minigrid_in_words(observation: Mapping[str, Any]) -> str:
    """Return the text of a MiniGrid observation: mission, carried object and what is in view.

    Args:
        observation: Has ``mission``, ``direction`` (optional) and ``image``, which contains the
            object, colour and state of each visible cell, with shape (columns, rows, 3). The agent
            is in the middle of the last row, facing up.
    """
    image = np.asarray(observation["image"])
    middle, agent_row = image.shape[0] // 2, image.shape[1] - 1
    cells = {
        (x - middle, agent_row - y): _object_words(*map(int, image[x, y]))
        for y in reversed(range(agent_row + 1))
        for x in range(image.shape[0])
    }
    carried = cells.pop((0, 0))
    things = [f"{thing} {_direction_words(*place)}" for place, thing in cells.items() if thing]
    sentences = [f"Mission: {observation['mission']}."]
    if "direction" in observation:
        sentences.append(f"You face {_DIRECTIONS[int(observation['direction'])]}.")
    if carried:
        sentences.append(f"You carry a {carried}.")
    if int(image[middle, agent_row - 1, 0]) == _WALL:
        sentences.append("A wall is before you.")
    sentences.append(f"You see: {', '.join(things) or 'nothing'}.")
    return " ".join(sentences)


def _object_words(kind: int, color: int, state: int) -> str:
    if kind not in _OBJECTS:
        return ""
    return " ".join([*([_STATES[state]] if kind == 4 else []), _COLORS[color], _OBJECTS[kind]])


def _direction_words(right: int, ahead: int) -> str:
    side = f"{abs(right)} to the {'right' if right > 0 else 'left'}" if right else ""
    return " and ".join(filter(None, [f"{ahead} ahead" if ahead else "", side]))
