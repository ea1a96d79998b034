"""What a sweep searches: its command line read into a plan.

A setting of a run with one value is fixed, one with several is searched: a list ``a,b,c`` becomes
``Choices``, a range ``a..b`` of numbers a ``Range``. ``read_plan`` checks every value by making
the settings of a run with it, so that a mistake is found before the first run starts.
"""

import difflib
import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import chz

from evert.bridge.errors import EvertError
from evert.trainers.runs.settings import RecipeError, TrainSettings

OWN = {
    "search": "grid, random or tpe; default: grid if all are lists, else random",
    "trials": "number of runs of a random or tpe search; default: 20",
    "parallel": "runs at a time; default: as many as the cores and the free memory allow",
    "out": "sweep folder, new or to resume; default: sweeps/<env>-<date-time>",
    "objective": "held_out (mean reward at temperature 1 after training), held_out_greedy, or a "
    "key of metrics.jsonl (its last value); default: held_out",
    "search_seed": "seed of the search itself; default: 0",
}
"""The sweep's own keys, and what they mean."""

FREE = ("out", "parallel")
"""Of these, what may differ each time a sweep is resumed."""

SEARCHES = ("grid", "random", "tpe")
TRIALS = 20
HELD_OUT = {"held_out": "temperature_1", "held_out_greedy": "greedy"}
"""Objectives that are held-out scores, and the way those are played."""

_RANGE = re.compile(r"(?P<low>.+?)\.\.(?P<high>.+?)(?::(?P<scale>log|linear))?")

Value: TypeAlias = str | int | float | bool | None


class SweepError(EvertError, ValueError):
    """The command line describes no sweep."""


@dataclass(frozen=True)
class Choices:
    """A list to choose from."""

    key: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included."""

    key: str
    low: float
    high: float
    log: bool
    integer: bool


Axis: TypeAlias = Choices | Range


@dataclass(frozen=True)
class Plan:
    """A sweep, as it was asked for."""

    fixed: tuple[str, ...]
    """``key=value`` arguments that all runs have."""
    axes: tuple[Axis, ...]
    search: str
    """One of ``SEARCHES``."""
    trials: int
    """Number of runs."""
    objective: str
    search_seed: int
    name: str
    """The game, or the agent's function."""
    steps: int
    """Of a run; where steps are searched, of the first one."""

    def arguments(self, values: Mapping[str, Value]) -> list[str]:
        """The ``key=value`` arguments of the run with these searched values."""
        return [*self.fixed, *(f"{key}={value}" for key, value in values.items())]


def read_plan(arguments: Sequence[str]) -> Plan:
    """Read a sweep's command line.

    Raises:
        SweepError: A key is unknown, a range is none, or there is nothing to search.
        RecipeError: A value is none of the setting's.
        EvertError: As ``recipes.check_settings``.
    """
    from evert.trainers.runs.settings import check_settings

    given = read_arguments(arguments)
    settings = {key: text for key, text in given.items() if key not in OWN}
    spread = {key: parts for key, text in settings.items() if (parts := _parts(key, text))}
    fixed = [f"{key}={text}" for key, text in settings.items() if key not in spread]
    first = {key: parts[0] for key, parts in spread.items()}
    base = _settings(fixed, first)
    check_settings(base)
    axes = tuple(_axis(key, settings[key], fixed, first) for key in spread)
    if not axes:
        raise SweepError(
            "There is nothing to search: every setting has one value. Give one of them a list or "
            "a range, for example learning_rate=1e-4,3e-4 or learning_rate=1e-4..1e-2."
        )
    search = _search(given.get("search"), axes)
    objective = given.get("objective", "held_out")
    if objective in HELD_OUT and not base.test_tasks:
        raise SweepError(
            f"objective={objective} needs held-out tasks, and there are none. Pass test_tasks=, "
            "or a metric of the training: objective=env/all/reward/total."
        )
    return Plan(
        fixed=tuple(fixed),
        axes=axes,
        search=search,
        trials=_trials(search, axes, given.get("trials")),
        objective=objective,
        search_seed=whole(given, "search_seed", 0, least=0),
        name=base.name,
        steps=base.steps,
    )


def read_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """The keys and values of a command line.

    Raises:
        SweepError: An argument is no ``key=value``, or its key is unknown.
    """
    given: dict[str, str] = {}
    known = [*OWN, *chz.chz_fields(TrainSettings)]
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise SweepError(f"Got {argument!r}, expected key=value. See evert sweep --help.")
        if key == "log_path":
            raise SweepError("Each run of a sweep has a log_path of its own. Name the sweep's "
                             "folder with out=.")  # fmt: skip
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise SweepError(
                f"There is no setting {key!r}.{hint} evert sweep --help lists the sweep's own "
                "keys, evert train --help those of a run."
            )
        given[key] = text
    return given


def show(value: Value) -> str:
    """A value for people: four digits are enough."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def whole(given: Mapping[str, str], key: str, default: int, *, least: int) -> int:
    """A whole number of the command line.

    Raises:
        SweepError: It is none, or below ``least``.
    """
    text = given.get(key)
    if text is None:
        return default
    if not re.fullmatch(r"\d+", text) or int(text) < least:
        raise SweepError(f"Got {key}={text}, expected a whole number of at least {least}.")
    return int(text)


def _parts(key: str, text: str) -> list[str]:
    """The values that a text names, or the ends of its range; empty where it is one value."""
    if typing.get_origin(_type(key)) is tuple:  # several values are one value of these
        return []
    if _numbers(key) and ".." in text:
        ends = _RANGE.fullmatch(text)
        if ends is None:
            raise SweepError(f"Got {key}={text}, expected a range such as {key}=1..10.")
        return [ends["low"], ends["high"]]
    return text.split(",") if "," in text else []


def _axis(key: str, text: str, fixed: Sequence[str], first: Mapping[str, str]) -> Axis:
    values = [getattr(_settings(fixed, {**first, key: part}), key) for part in _parts(key, text)]
    ends = _RANGE.fullmatch(text) if _numbers(key) else None
    if ends is None:
        return Choices(key, tuple(dict.fromkeys(values)))
    low, high = values
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SweepError(f"Got {key}={text}, expected a range from a lower to a higher number.")
    integer = isinstance(low, int)
    log = ends["scale"] == "log" or (ends["scale"] is None and not integer and low > 0)
    if log and low <= 0:
        raise SweepError(f"Got {key}={text}, but a log range has to be above 0.")
    return Range(key, low, high, log, integer)


def _settings(fixed: Sequence[str], values: Mapping[str, str]) -> TrainSettings:
    """The settings of a run; what chz has to say about a value becomes an error of ours."""
    from evert.trainers.train import parse

    arguments = [*fixed, *(f"{key}={value}" for key, value in values.items())]
    try:
        return parse(arguments)
    except Exception as error:
        if isinstance(error, EvertError) or not type(error).__module__.startswith("chz."):
            raise
        raise RecipeError(str(error).rstrip()) from error


def _type(key: str) -> Any:
    return chz.chz_fields(TrainSettings)[key].final_type


def _numbers(key: str) -> bool:
    """Whether a setting is a number (or None)."""
    found = _type(key)
    return bool({int, float} & {found, *typing.get_args(found)})


def _search(asked: str | None, axes: Sequence[Axis]) -> str:
    ranges = [axis.key for axis in axes if isinstance(axis, Range)]
    search = asked or ("random" if ranges else "grid")
    if search == "grid" and ranges:
        raise SweepError(
            f"search=grid needs lists, and {', '.join(ranges)} has a range. List its values, or "
            "pass search=random."
        )
    if search not in SEARCHES:
        raise SweepError(f"Got search={search}, expected one of {', '.join(SEARCHES)}.")
    return search


def _trials(search: str, axes: Sequence[Axis], asked: str | None) -> int:
    if search != "grid":
        return whole({} if asked is None else {"trials": asked}, "trials", TRIALS, least=1)
    size = math.prod(len(axis.values) for axis in axes if isinstance(axis, Choices))
    if asked is not None and asked != str(size):
        raise SweepError(
            f"Got trials={asked}, but this grid has {size} runs. Leave trials out, or pass "
            "search=random to draw some of them."
        )
    return size
