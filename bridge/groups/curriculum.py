"""Which tasks a step plays: samplers, one that leaves out what teaches nothing, and their log."""

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
    """Chooses the tasks of each training batch. Tasks are numbers: their places in the dataset."""

    def next(self, step: int) -> Sequence[int]:
        """The tasks of batch ``step``, one a group; asking changes nothing."""
        ...

    def update(self, task: int, rewards: Sequence[float]) -> None:
        """Learn what came of a group.

        Args:
            task: Its number.
            rewards: Total of each episode, as the Cookbook centres them: group rewards included,
                and seats' means made equal. Empty: no episode came to a reward.
        """
        ...


class Curriculum:
    """A ``Sampler`` that leaves out tasks that teach nothing: solved ones, and hopeless ones.

    A group teaches where its rewards differ. A task of which one of the latest two groups taught is
    played on, the least played first; any other that was tried *rests*. Resting tasks come back:
    ``retry`` of all groups are for them, the least played first, since what is hopeless today may
    be learned tomorrow, and what is solved may be forgotten. ``explore`` of all groups are for
    tasks that were never tried. What one kind has too few of, the others fill, resting ones last.

    What it chooses follows from its seed, the step and what it was told of the steps before.

    Args:
        tasks: How many there are.
        batch_size: Groups a batch.
        seed: Of the choice among tasks that were played as often.
        retry: Share of all groups, from 0 to 1.
        explore: Share of all groups, from 0 to 1; together they are at most 1.

    Raises:
        InvalidDatasetError: The shares are none.
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
        self._played = [0] * tasks
        self._taught: list[tuple[bool, ...]] = [()] * tasks  # whether its latest two groups did

    def next(self, step: int) -> list[int]:
        """The tasks of batch ``step``, all different."""
        order = [*range(len(self._played))]
        random.Random(f"{self.seed}/{step}").shuffle(order)
        order.sort(key=self._played.__getitem__)
        kinds = (True, None, False)
        pools = {kind: [task for task in order if self._teaches(task) is kind] for kind in kinds}
        shares = {False: self._share(self.retry, step), None: self._share(self.explore, step)}
        chosen = [task for kind, count in shares.items() for task in pools[kind][:count]]
        known = {*chosen}
        rest = [task for pool in pools.values() for task in pool if task not in known]
        return [*chosen, *rest][: self.batch_size]

    def _teaches(self, task: int) -> bool | None:
        """Whether a task is to be played on; None: it was never tried."""
        return any(self._taught[task]) if self._taught[task] else None

    def _share(self, share: float, step: int) -> int:
        """A share of a batch, in groups; fractions of a group add up from step to step."""
        size = share * self.batch_size
        return int(size * (step + 1) + 1e-9) - int(size * step + 1e-9)

    def update(self, task: int, rewards: Sequence[float]) -> None:
        """Learn whether a task's group taught."""
        self._played[task] += 1
        spread = max(rewards, default=0.0) - min(rewards, default=0.0)
        teaches = spread > 1e-9 * max(map(abs, rewards), default=0.0)
        self._taught[task] = (*self._taught[task][-1:], teaches)


def make_sampler(given: Any, tasks: int, batch_size: int, seed: int) -> Sampler | None:
    """A sampler from one, from what makes one, or from the import path of either; of "", None."""
    if given is None or given == "":
        return None
    found: Any = given
    if isinstance(given, str):
        found = resolve(given, "sampler", InvalidDatasetError)
    make: Any = found  # a class has the methods of what it makes
    if callable(make) and (inspect.isclass(found) or not isinstance(found, Sampler)):
        found = make(tasks, batch_size, seed)
    if not isinstance(found, Sampler):
        raise InvalidDatasetError(
            f"The sampler is {repr_of(found)}; expected an object with next(step) and "
            "update(task, rewards), or what makes one of (tasks, batch_size, seed): "
            "evert.Curriculum, say."
        )
    return found


class SamplerLog:
    """Tells a sampler what came of groups, and writes it down; without a path, nothing is.

    So that in a resumed run it knows what the whole one would. A line ``{"step": 3, "task": 17,
    "rewards": [0.0, 1.0]}`` is what came of a group. After a line ``{"from": 2}`` what stands above
    it of that step or later ones does not count: it is done again.
    """

    def __init__(self, sampler: Sampler, path: str | Path | None) -> None:
        self.sampler = sampler
        self._path = None if path is None else Path(path)
        self._is_begun = False

    def begin(self, step: int) -> None:
        """Tell the sampler what is on file of the steps before the first one of this process."""
        if self._is_begun:
            return
        self._is_begun = True
        if self._path is None or not self._path.is_file():
            return
        for record in read_sampler_log(self._path):
            if record["step"] < step:
                self.sampler.update(record["task"], record["rewards"])
        self._write({"from": step}, before="\n")  # the last line may lack its end

    def update(self, step: int, task: int, rewards: Sequence[float]) -> None:
        """Tell the sampler what came of a group of a step."""
        self.sampler.update(task, rewards)
        self._write({"step": step, "task": task, "rewards": list(rewards)})

    def _write(self, record: dict[str, Any], before: str = "") -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{before}{json.dumps(record)}\n")


def read_sampler_log(path: Path) -> list[dict[str, Any]]:
    """What counts of a file: a record a group."""
    records: list[dict[str, Any]] = []
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
            if "from" in record:
                records = [each for each in records if each["step"] < record["from"]]
            else:
                records.append({key: record[key] for key in ("step", "task", "rewards")})
        except (ValueError, TypeError, KeyError):
            continue
    return records
