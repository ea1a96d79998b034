"""Samplers, which choose the tasks of each training step; ``SamplerLog`` logs the rewards."""

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
    """Chooses the tasks of each training batch by their numbers in the dataset, from 0."""

    def next(self, step: int) -> Sequence[int]:
        """Return the tasks of batch ``step``, one per group. Must not change any state."""
        ...

    def update(self, task: int, rewards: Sequence[float]) -> None:
        """Receive the rewards of a group.

        Args:
            task: The task's number.
            rewards: The total reward of each trajectory before the Cookbook subtracts the mean:
                with group rewards, and shifted so that all seats have the same mean. Empty if the
                group failed.
        """
        ...


class Curriculum:
    """A ``Sampler`` that mostly skips solved and hopeless tasks, which give no training signal.

    A group *teaches* if its rewards differ. A task is *active* if one of its latest two groups
    taught; other tasks that were played are *resting*. A share ``retry`` of the groups goes to
    resting tasks, since a hopeless task may become learnable and a solved task may be forgotten. A
    share ``explore`` goes to new tasks, and the rest to active tasks. Within each kind, the least
    played tasks come first. If a kind has too few tasks, the other kinds fill in, resting last.

    The choice depends only on the seed, the step and the rewards of earlier steps.

    Args:
        tasks: Number of tasks.
        batch_size: Groups per batch.
        seed: Seed for the order of tasks that have been played equally often.
        retry: Share of groups for resting tasks, from 0 to 1.
        explore: Share of groups for new tasks, from 0 to 1; with ``retry`` at most 1.

    Raises:
        InvalidDatasetError: The shares are out of range.
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
                f"A Curriculum got retry={retry} and explore={explore}; expected shares of all "
                "groups: each at least 0, together at most 1."
            )
        self.batch_size = min(batch_size, tasks)
        self.seed = seed
        self.retry = retry
        self.explore = explore
        self._plays = [0] * tasks
        self._taught: list[tuple[bool, ...]] = [()] * tasks  # by task: its latest two groups

    def next(self, step: int) -> list[int]:
        """Return the tasks of batch ``step``, all different."""
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
        """Whether a task is active; None if it was never played."""
        return any(self._taught[task]) if self._taught[task] else None

    def _share(self, share: float, step: int) -> int:
        """Return the number of groups in a share; fractions carry over to later steps."""
        size = share * self.batch_size
        return int(size * (step + 1) + 1e-9) - int(size * step + 1e-9)

    def update(self, task: int, rewards: Sequence[float]) -> None:
        """Remember whether a task's group taught."""
        self._plays[task] += 1
        spread = max(rewards, default=0.0) - min(rewards, default=0.0)
        teaches = spread > 1e-9 * max(map(abs, rewards), default=0.0)
        self._taught[task] = (*self._taught[task][-1:], teaches)


def make_sampler(source: Any, tasks: int, batch_size: int, seed: int) -> Sampler | None:
    """Return the sampler that an object, function or import path gives; None for None and ""."""
    if source is None or source == "":
        return None
    sampler: Any = source
    if isinstance(source, str):
        sampler = resolve(source, "sampler", InvalidDatasetError)
    make: Any = sampler  # a sampler's class would also pass isinstance
    if callable(make) and (inspect.isclass(sampler) or not isinstance(sampler, Sampler)):
        sampler = make(tasks, batch_size, seed)
    if not isinstance(sampler, Sampler):
        raise InvalidDatasetError(
            f"The sampler is {repr_of(sampler)}; expected an object with next(step) and "
            "update(task, rewards), or a function of (tasks, batch_size, seed) that makes such an "
            "object, like evert.Curriculum."
        )
    return sampler


class SamplerLog:
    """Passes the rewards of groups to a sampler, and logs them in a file if ``path`` is set.

    A resumed run reads the rewards of earlier steps from the log, for its sampler. A line
    ``{"step": 3, "task": 17, "rewards": [0.0, 1.0]}`` has the rewards of a group. A line
    ``{"from": 2}`` says that the run was resumed at step 2, so preceding lines for step 2 or later
    are invalid.
    """

    def __init__(self, sampler: Sampler, path: str | Path | None) -> None:
        self.sampler = sampler
        self._path = None if path is None else Path(path)
        self._is_begun = False

    def begin(self, step: int) -> None:
        """On the first call, give the sampler the logged rewards of the steps before ``step``."""
        if self._is_begun:
            return
        self._is_begun = True
        if self._path is None or not self._path.is_file():
            return
        for record in read_sampler_log(self._path):
            if record["step"] < step:
                self.sampler.update(record["task"], record["rewards"])
        self._write({"from": step}, before="\n")  # the last line may lack its newline

    def update(self, step: int, task: int, rewards: Sequence[float]) -> None:
        """Give the sampler the rewards of a group, and log them."""
        self.sampler.update(task, rewards)
        self._write({"step": step, "task": task, "rewards": list(rewards)})

    def _write(self, record: dict[str, Any], before: str = "") -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{before}{json.dumps(record)}\n")


def read_sampler_log(path: Path) -> list[dict[str, Any]]:
    """Return the log's valid records, one per group; broken lines are skipped."""
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
