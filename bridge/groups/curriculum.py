"""Samplers choose the tasks of each training step. ``SamplerLog`` logs their rewards."""

import inspect
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from evert.bridge.errors import InvalidDatasetError, repr_of
from evert.bridge.import_paths import resolve


@runtime_checkable
class Sampler(Protocol):
    """Chooses the tasks of each training batch by their index in the dataset."""

    def next(self, step: int) -> Sequence[int]:
        """Return the tasks for batch ``step``, one per group. Must not change any state."""
        ...

    def update(self, task: int, rewards: Sequence[float]) -> None:
        """Receive the rewards of a group.

        Args:
            task: The index of the task.
            rewards: The total reward of each trajectory before the Cookbook subtracts the mean.
                It includes group rewards and, for agents with seats, the shift that gives all
                seats the same mean. Empty if the group failed.
        """
        ...


class Curriculum:
    """A ``Sampler`` that mostly skips solved and hopeless tasks, which give no training signal.

    A group gives a training signal if its rewards are not all equal. A task is *active* if one of
    its last two groups gave a signal. Other tasks that have been played are *resting*. A fraction
    ``retry`` of the groups goes to resting tasks, because a hopeless task may become learnable and
    a solved task may be forgotten. A fraction ``explore`` goes to new tasks, and the rest to active
    tasks. In each of these categories, the least played tasks come first. If a category does not
    have enough tasks, tasks from the other categories are used instead, with resting tasks last.

    The choice only depends on the seed, the step and the rewards of earlier steps.

    Args:
        tasks: Number of tasks.
        batch_size: Groups per batch.
        seed: Seed for the order of tasks that have been played equally often.
        retry: Fraction of groups for resting tasks, from 0 to 1.
        explore: Fraction of groups for new tasks, from 0 to 1. ``retry + explore`` must not exceed
            1.

    Raises:
        InvalidDatasetError: The fractions are out of range.
    """

    def __init__(
        self,
        tasks: int,
        batch_size: int,
        seed: int = 0,
        *,
        retry: float = 0.1,
        explore: float = 0.2,
    ) -> None:
        if not (retry >= 0 and explore >= 0 and retry + explore <= 1):
            raise InvalidDatasetError(
                f"Curriculum got retry={retry} and explore={explore}; expected fractions of at "
                "least 0 that add up to at most 1."
            )
        self.batch_size = min(batch_size, tasks)
        self.seed = seed
        self.retry = retry
        self.explore = explore
        self._plays = [0] * tasks
        self._taught: list[tuple[bool, ...]] = [()] * tasks  # whether recent groups gave a signal

    def next(self, step: int) -> list[int]:
        """Return the tasks for batch ``step``, without duplicates."""
        order = [*range(len(self._plays))]
        random.Random(f"{self.seed}/{step}").shuffle(order)
        order.sort(key=self._plays.__getitem__)
        kinds = (True, None, False)
        pools = {kind: [task for task in order if self._teaches(task) is kind] for kind in kinds}
        shares = {False: self._share(self.retry, step), None: self._share(self.explore, step)}
        chosen = [task for kind, count in shares.items() for task in pools[kind][:count]]
        chosen_tasks = {*chosen}
        fillers = [task for pool in pools.values() for task in pool if task not in chosen_tasks]
        return [*chosen, *fillers][: self.batch_size]

    def _teaches(self, task: int) -> bool | None:
        """Whether a task is active, or None if it has never been played."""
        return any(self._taught[task]) if self._taught[task] else None

    def _share(self, share: float, step: int) -> int:
        """Convert a fraction to a number of groups. The remainder carries over to later steps."""
        size = share * self.batch_size
        return int(size * (step + 1) + 1e-9) - int(size * step + 1e-9)

    def update(self, task: int, rewards: Sequence[float]) -> None:
        """Record whether a task's group gave a training signal."""
        self._plays[task] += 1
        spread = max(rewards, default=0.0) - min(rewards, default=0.0)
        teaches = spread > 1e-9 * max(map(abs, rewards), default=0.0)
        self._taught[task] = (*self._taught[task][-1:], teaches)


def make_sampler(source: Any, tasks: int, batch_size: int, seed: int) -> Sampler | None:
    """Create a sampler from an object, a function or an import path. Return None for None or ""."""
    if source is None or source == "":
        return None
    sampler: Any = source
    if isinstance(source, str):
        sampler = resolve(source, "sampler", InvalidDatasetError)
    make: Any = sampler  # isinstance is also true for a sampler class
    if callable(make) and (inspect.isclass(sampler) or not isinstance(sampler, Sampler)):
        sampler = make(tasks, batch_size, seed)
    if not isinstance(sampler, Sampler):
        raise InvalidDatasetError(
            f"The sampler is {repr_of(sampler)}; expected an object with next(step) and "
            "update(task, rewards), or a function that creates one from (tasks, batch_size, seed), "
            "such as evert.Curriculum."
        )
    return sampler


class SamplerLog:
    """Passes group rewards to a sampler, and logs them to a file if ``path`` is set.

    When a run is resumed, the sampler receives the rewards of earlier steps from the log. A line
    ``{"step": 3, "task": 17, "rewards": [0.0, 1.0]}`` contains the rewards of one group. A line
    ``{"from": 2}`` means that the run was resumed at step 2, so all preceding lines for step 2 or
    later are obsolete.
    """

    def __init__(self, sampler: Sampler, path: str | Path | None) -> None:
        self.sampler = sampler
        self._path = None if path is None else Path(path)
        self._is_begun = False

    def begin(self, step: int) -> None:
        """On the first call, pass the logged rewards of steps before ``step`` to the sampler."""
        if self._is_begun:
            return
        self._is_begun = True
        if self._path is None or not self._path.is_file():
            return
        for record in read_sampler_log(self._path):
            if record["step"] < step:
                self.sampler.update(record["task"], record["rewards"])
        self._write({"from": step}, before="\n")  # the last line may have no newline

    def update(self, step: int, task: int, rewards: Sequence[float]) -> None:
        """Pass the rewards of a group to the sampler, and log them."""
        self.sampler.update(task, rewards)
        self._write({"step": step, "task": task, "rewards": list(rewards)})

    def _write(self, record: dict[str, Any], before: str = "") -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{before}{json.dumps(record)}\n")


def read_sampler_log(path: Path) -> list[dict[str, Any]]:
    """Return the valid records in a log, one per group. Broken lines are skipped."""
    records: list[dict[str, Any]] = []
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
            if "from" in record:
                records = [entry for entry in records if entry["step"] < record["from"]]
            else:
                records.append({key: record[key] for key in ("step", "task", "rewards")})
        except (ValueError, TypeError, KeyError):
            continue
    return records
