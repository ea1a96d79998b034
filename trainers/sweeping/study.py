"""The search space of a sweep, and the Optuna study in the sweep's folder that records its runs.

Every attempt at a run is an Optuna trial. We enqueue it with the values that are already known, and
the sampler chooses the rest. For grid points, retries and additional seeds, all values are known.
For other runs, only the seed is known. (We don't use ``GridSampler``, because it could lose points
if the sweep is killed.) The sampler is seeded with the run's number, so that a resumed sweep
samples the same values.
"""

import ast
import itertools
import math
import re
import typing
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import chz
import optuna
from optuna import distributions, samplers
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from evert.trainers.config.arguments import UsageError, read_settings
from evert.trainers.config.fields import setting, size
from evert.trainers.config.train import TrainSettings, read_train_settings
from evert.trainers.system.files import cannot_read, drop_broken_lines
from evert.trainers.training.preflight import prepare

HELD_OUT = {"held_out": "temperature_1", "held_out_greedy": "greedy"}
"""Objectives that are held-out scores, and how the held-out episodes are sampled."""
SEED, TRIALS, JOURNAL = "seed", 20, "journal.log"
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
_RANGE = re.compile(rf"{_NUMBER}\.\.{_NUMBER}(?::(log|linear))?", re.IGNORECASE)
_KILLED = {"status": "interrupted", "seconds": 0.0, "error": "killed with the sweep"}


@chz.chz
class SweepSettings:
    """Settings of the sweep itself, as opposed to the settings of its runs."""

    search: Literal["auto", "grid", "random", "tpe"] = setting(
        "auto", "grid, random or tpe; auto uses random if a setting has a range, and grid otherwise"
    )
    trials: int | None = size(None, f"number of runs for random and tpe (default: {TRIALS})")
    parallel: int | None = size(
        None, "number of concurrent runs (default: as many as cores and memory allow)"
    )
    out: str = setting("", "new folder, or one to resume (default: sweeps/<env>-<date-time>)")
    objective: str = setting(
        "held_out",
        "held_out (reward at temperature 1 after training), held_out_greedy, or a metric's key",
    )


@dataclass(frozen=True)
class SweepPlan:
    """Settings, search space and size of a sweep."""

    settings: SweepSettings
    fixed: Mapping[str, str]
    """Settings that are the same in all runs."""
    space: Mapping[str, BaseDistribution]
    """Settings to search over, in the order they were passed."""
    search: str
    trials: int
    name: str
    """Name of the game or the agent's function."""

    def arguments(self, values: Mapping[str, object]) -> list[str]:
        """Return the ``key=value`` arguments of a run with these values."""
        return [f"{key}={value}" for key, value in {**self.fixed, **values}.items()]


def read_plan(arguments: Mapping[str, str]) -> SweepPlan:
    """Parse the settings of a sweep, and validate all values before the first run starts."""
    sweep_options = {
        key: text for key, text in arguments.items() if key in chz.chz_fields(SweepSettings)
    }
    fixed = {key: text for key, text in arguments.items() if key not in sweep_options}
    settings = read_settings(SweepSettings, sweep_options)
    parts = {key: _parts(key, text) for key, text in fixed.items()}
    first = {key: texts[0] for key, texts in parts.items()}
    base = read_train_settings(first, {})
    searched = [key for key, texts in parts.items() if len(texts) > 1]
    if not searched:
        raise UsageError(
            "There is nothing to search, because every setting has a single value. Pass a list or "
            "a range, for example learning_rate=1e-4,3e-4 or learning_rate=1e-4..1e-2."
        )
    prepare(base)
    if settings.objective in HELD_OUT and not base.test_tasks:
        raise UsageError(
            f"objective={settings.objective} requires held-out tasks, but there are none. Pass "
            "test_tasks=, or use a training metric: objective=env/all/reward/total."
        )
    space = {}
    for key in searched:
        values = [_value({**first, key: part}, key) for part in parts[key]]
        space[key] = _distribution(f"{key}={fixed.pop(key)}", values)
    return SweepPlan(settings, fixed, space, *_search(settings, space), base.name)


def _value(arguments: Mapping[str, str], key: str) -> Any:
    settings = read_train_settings(arguments, {})
    prepare(settings)
    name, _, path = key.partition(".")
    value = getattr(settings, name)
    return value[path or "id"] if isinstance(value, Mapping) else value


def _parts(key: str, text: str) -> Sequence[str]:
    field = chz.chz_fields(TrainSettings).get(key)
    if field is not None and typing.get_origin(field.final_type) is tuple:
        return [text]  # the list is a single value of this setting
    ends = _RANGE.fullmatch(text)
    return ends.groups()[:2] if ends else text.split(",")


def _distribution(pair: str, values: Sequence[Any]) -> BaseDistribution:
    ends = _RANGE.fullmatch(pair.partition("=")[2])
    if ends is None:
        return distributions.CategoricalDistribution(tuple(dict.fromkeys(values)))
    values = [ast.literal_eval(value) if isinstance(value, str) else value for value in values]
    is_integer = all(isinstance(value, int) for value in values)
    scale = (ends[3] or "").lower()
    log = scale == "log" or (not scale and not is_integer and values[0] > 0)
    make: Any = distributions.IntDistribution if is_integer else distributions.FloatDistribution
    try:
        return cast(BaseDistribution, make(*values, log=log))
    except ValueError as error:
        raise UsageError(f"Got {pair}, expected a range such as 1..10: {error}") from error


def choices(distribution: BaseDistribution | None) -> Sequence[Any]:
    """Return the values of a list, or () for a range."""
    return (
        distribution.choices
        if isinstance(distribution, distributions.CategoricalDistribution)
        else ()
    )


def _search(settings: SweepSettings, space: Mapping[str, BaseDistribution]) -> tuple[str, int]:
    ranges = [key for key, distribution in space.items() if not choices(distribution)]
    search = settings.search.replace("auto", "random" if ranges else "grid")
    if search == "grid" and ranges:
        raise UsageError(
            f"search=grid only works with lists, but {', '.join(ranges)} has a range. List the "
            "values, or pass search=random."
        )
    seeds = len(choices(space.get(SEED))) or 1
    points = math.prod(len(choices(distribution)) for distribution in space.values())
    default = points if search == "grid" else math.ceil(TRIALS / seeds) * seeds
    trials = default if settings.trials is None else settings.trials
    if trials != points if search == "grid" else trials % seeds:
        right = f"{points}, the size of the grid" if search == "grid" else f"a multiple of {seeds}"
        raise UsageError(f"Got trials={trials}, expected {right}.")
    return search, trials


@dataclass
class SweepRun:
    """A run of the sweep and its state."""

    number: int
    values: dict[str, Any]
    """Values of the searched settings."""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """Dicts with ``status`` (completed, failed, interrupted, running), ``seconds``, ``error``."""
    objective: float | None = None
    """None until the run has completed."""


class Record:
    """Records the runs of a sweep in an Optuna study, and resumes an existing study."""

    def __init__(self, plan: SweepPlan, folder: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._plan = plan
        points = itertools.product(*map(choices, plan.space.values()))
        self._grid = list(points) if plan.search == "grid" else []
        self.runs: list[SweepRun] = []
        """All runs so far, indexed by number. Always up to date."""
        self._trials: dict[int, optuna.Trial] = {}
        journal = folder / JOURNAL
        drop_broken_lines(journal)
        try:
            self._study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(journal))),
                study_name="sweep", direction="maximize", load_if_exists=True,
            )  # fmt: skip
            for trial in self._study.get_trials():
                self._restore(trial)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise cannot_read(journal) from error
        self._retries = deque(run.number for run in self.runs if run.objective is None)

    def _restore(self, trial: FrozenTrial) -> None:
        if trial.state is TrialState.WAITING:
            self._study.ask()
        if not trial.state.is_finished():
            self._study.tell(trial.number, state=TrialState.FAIL)
        # A trial that was killed too early does not have all values.
        if trial.params.keys() >= self._plan.space.keys():
            attempt = {**_KILLED, **trial.user_attrs}
            self._note(attempt.pop("run"), trial.params, attempt).objective = trial.value

    def _note(self, number: int, values: Mapping[str, Any], attempt: dict[str, Any]) -> SweepRun:
        if number == len(self.runs):
            self.runs.append(SweepRun(number, {key: values[key] for key in self._plan.space}))
        self.runs[number].attempts.append(attempt)
        return self.runs[number]

    def next(self) -> SweepRun | None:
        """Return the run to start next, or None if all runs have been started."""
        number = self._retries.popleft() if self._retries else len(self.runs)
        if number >= self._plan.trials:
            return None
        sampler: Any = samplers.TPESampler if self._plan.search == "tpe" else samplers.RandomSampler
        self._study.sampler = sampler(seed=number)
        self._study.enqueue_trial(self._known_values(number), user_attrs={"run": number})
        trial = self._trials[number] = self._study.ask(dict(self._plan.space))
        return self._note(number, trial.params, {**_KILLED, "status": "running", "error": ""})

    def _known_values(self, number: int) -> dict[str, Any]:
        if number < len(self.runs):
            return self.runs[number].values
        if self._grid:
            return dict(zip(self._plan.space, self._grid[number], strict=True))
        seeds = choices(self._plan.space.get(SEED))
        if not seeds:
            return {}
        repeat = number % len(seeds)
        return {**(self.runs[number - repeat].values if repeat else {}), SEED: seeds[repeat]}

    def finish(self, run: SweepRun, attempt: dict[str, Any], objective: float | None) -> None:
        """Record the result of an attempt. ``objective`` is None unless the attempt completed."""
        run.attempts[-1], run.objective = attempt, objective
        trial = self._trials.pop(run.number)
        for key, value in attempt.items():
            trial.set_user_attr(key, value)
        state = TrialState.FAIL if objective is None else TrialState.COMPLETE
        self._study.tell(trial, objective, state)
