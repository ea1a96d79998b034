"""A sweep's memory: an Optuna study in the sweep folder, ``journal.log``.

Optuna draws the values of each run and keeps what became of it. A run is tried until it has
completed, and every attempt is an Optuna trial: one that failed stays there as failed, and its
run is enqueued again with the same values. So the study is the whole history, and readable with
Optuna's own tools. Where a run is tried again, its trial says which run it is (``again``).

The samplers are made anew for each run, seeded by its number: a sweep that was interrupted draws
what it would have drawn anyway.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from evert.bridge.errors import MissingPackageError
from evert.trainers.sweeping.space import Axis, Choices, Plan, Value

if TYPE_CHECKING:
    import optuna

JOURNAL = "journal.log"
AGAIN = "again"

Status: TypeAlias = Literal["completed", "failed", "interrupted", "running", "waiting"]


@dataclass
class Attempt:
    """One try at a run."""

    status: Status
    seconds: float = 0.0
    error: str = ""
    """The last lines of what went wrong; '' if nothing did."""


@dataclass
class Run:
    """A run of the sweep, and how far it is."""

    number: int
    values: dict[str, Value]
    """Of the searched settings."""
    objective: float | None = None
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """Of the last attempt."""
        return self.attempts[-1].status

    @property
    def seconds(self) -> float:
        """Of all attempts."""
        return sum(attempt.seconds for attempt in self.attempts)


@dataclass
class Try:
    """A run that is to be started now."""

    run: Run
    trial: "optuna.Trial"


class Record:
    """The runs of a sweep, as Optuna has them.

    Args:
        plan: Of the sweep.
        folder: The sweep folder; a study that is there is gone on with.

    Raises:
        MissingPackageError: Optuna is not installed.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        optuna = need_optuna()
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self._plan = plan
        self._optuna = optuna
        # Does for telling results, too, where a grid's would ask for trials of its own only.
        self._plain = optuna.samplers.RandomSampler()
        self._study = optuna.create_study(
            study_name="sweep",
            storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
            sampler=self._plain,
            direction="maximize",
            load_if_exists=True,
        )

    def take_up(self) -> None:
        """Mark what was running when the sweep ended, and enqueue all that has not completed."""
        states = self._optuna.trial.TrialState
        for trial in self._study.get_trials(states=(states.RUNNING,)):
            self._study.tell(trial.number, state=states.FAIL)
        for run in self.runs():
            if run.status in ("failed", "interrupted"):
                self._study.enqueue_trial(run.values, user_attrs={AGAIN: run.number})

    def next(self) -> Try | None:
        """The run to start next; None if there is none left."""
        runs = self.runs()
        if len(runs) >= self._plan.trials and all(run.status != "waiting" for run in runs):
            return None
        number = len(runs)
        self._study.sampler = _sampler(self._plan, number)
        try:
            with warnings.catch_warnings():  # what is enqueued may be just outside a range
                warnings.simplefilter("ignore", UserWarning)
                trial = self._study.ask({axis.key: _distribution(axis) for axis in self._plan.axes})
        finally:
            self._study.sampler = self._plain
        again = trial.user_attrs.get(AGAIN)
        return Try(self.runs()[number if again is None else again], trial)

    def finish(self, tried: Try, attempt: Attempt, objective: float | None) -> None:
        """Write down how an attempt ended; ``objective`` is None unless it completed."""
        tried.trial.set_user_attr("status", attempt.status)
        tried.trial.set_user_attr("seconds", round(attempt.seconds, 2))
        tried.trial.set_user_attr("error", attempt.error)
        if objective is None:
            self._study.tell(tried.trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(tried.trial, objective)

    def runs(self) -> list[Run]:
        """Every run that was drawn, in order of its number, with its attempts."""
        runs: list[Run] = []
        for trial in self._study.get_trials(deepcopy=False):
            again = trial.user_attrs.get(AGAIN)
            if again is None:
                runs.append(Run(len(runs), dict(trial.params)))
            run = runs[-1 if again is None else again]
            run.attempts.append(_attempt(trial))
            if trial.values:
                run.objective = trial.values[0]
        return runs


def _attempt(trial: "optuna.trial.FrozenTrial") -> Attempt:
    notes: Mapping[str, Any] = trial.user_attrs
    state = trial.state.name
    if state in ("RUNNING", "WAITING"):
        return Attempt("running" if state == "RUNNING" else "waiting")
    if "status" not in notes:
        return Attempt("interrupted", error="the sweep was killed before the run ended")
    return Attempt(notes["status"], notes["seconds"], notes["error"])


def need_optuna() -> Any:
    """Optuna, told to be quiet.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingPackageError(
            f"A sweep needs the package optuna, which is not installed ({error}). Install it with "
            "pip install 'evert[sweep]'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _sampler(plan: Plan, number: int) -> Any:
    from optuna import samplers

    if plan.search == "grid":
        grid = {axis.key: list(axis.values) for axis in plan.axes if isinstance(axis, Choices)}
        return samplers.GridSampler(grid, seed=plan.search_seed)
    seed = 1_000_003 * plan.search_seed + number
    if plan.search == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed)


def _distribution(axis: Axis) -> Any:
    from optuna import distributions

    if isinstance(axis, Choices):
        return distributions.CategoricalDistribution(axis.values)
    if axis.integer:
        return distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return distributions.FloatDistribution(axis.low, axis.high, log=axis.log)
