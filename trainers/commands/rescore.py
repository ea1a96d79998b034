"""``evert rescore run=RUN reward=module:function``: compute new rewards for recorded rollouts.

No episodes are played. The old and new rewards are written to ``rescored.jsonl``. With
``replace=true``, the new rewards are also written into the record; otherwise it is not modified.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import correlation, fmean
from typing import TYPE_CHECKING, Any, cast

import chz
from rich.console import Console
from rich.table import Table

from evert.bridge.errors import InvalidAgentError, RecordError, RewardError, text_of
from evert.bridge.import_paths import place_of, resolve
from evert.bridge.records.files import record_files
from evert.trainers.config.command import Command
from evert.trainers.config.fields import setting, size
from evert.trainers.rundir.recorded import change_rows, progress
from evert.trainers.system.command import run_async
from evert.trainers.system.files import write_whole

if TYPE_CHECKING:
    from evert.bridge.records.record import RolloutRecord
    from evert.bridge.records.rows import Row

RESCORED = "rescored.jsonl"
USAGE = """\
Usage: evert rescore run=RUN reward=package.module:function [key=value ...]

Computes new rewards for the recorded rollouts of a run, or of an evaluation with record=True, and
compares them with the old ones. The function takes a RolloutRecord and returns a number. It can be
async. With replace=true, the new rewards are written into the record, so that evert view, evert
export and warm-ups use them.

"""


@chz.chz
class RescoreSettings:
    """The rollouts to rescore, and the new reward function."""

    run: str = chz.field(doc="run or evaluation folder, or a Recorder's file")
    reward: str = chz.field(doc="import path of a function that maps a RolloutRecord to a reward")
    replace: bool = setting(False, "replace the recorded rewards with the new ones")
    out: str = setting("", f"output file (default: {RESCORED} in the run's folder)")
    parallel: int = size(64, "how many rollouts to score concurrently, if the function is async")
    show: int = size(5, "how many of the largest reward changes to print", 0)


@dataclass(frozen=True)
class Rescored:
    """A rollout's position in the record, with its old and new reward."""

    iteration: int
    group_idx: int
    traj_idx: int
    task: str
    old: float
    new: float


def rescore_and_show(settings: RescoreSettings) -> None:
    """Rescore the rollouts, print a comparison, and write the rewards."""
    console = Console(highlight=False, markup=False)
    rollouts = rescore(settings, console)
    _show(rollouts, settings.show, console)
    console.print(f"rescored: {_write(rollouts, settings)}", soft_wrap=True)
    if settings.replace:
        _replace(rollouts, settings.run)
        console.print(f"replaced: the rewards in {settings.run}", soft_wrap=True)


def rescore(settings: RescoreSettings, console: Console) -> list[Rescored]:
    """Compute the new reward of every recorded rollout."""
    reward = resolve(settings.reward, "reward", InvalidAgentError)
    if not callable(reward):
        raise InvalidAgentError(
            f"reward={settings.reward} is a {type(reward).__name__}; expected a function that "
            "takes a RolloutRecord and returns a number."
        )
    with progress(settings.run, "rescoring", console) as records:
        if settings.replace:
            records = map(_replaceable, records)
        rollouts = run_async(_rescored(records, reward, settings.parallel))
    if not rollouts:
        raise RecordError(f"Nothing to rescore: {settings.run} contains no complete rollouts.")
    return rollouts


def _replaceable(record: "RolloutRecord") -> "RolloutRecord":
    if "trace" in record.row:
        raise RecordError(
            "replace=true only works with records written by evert, but this is a trace "
            f"({record.row['trace']}). Remove replace=true and find the new rewards in {RESCORED}."
        )
    return record


async def _rescored(
    records: "Iterable[RolloutRecord]", reward: Callable[..., Any], parallel: int
) -> list[Rescored]:
    rollouts, remaining = list[Rescored](), iter(records)
    while batch := [*islice(remaining, parallel)]:  # raises an error if a line is damaged
        rollouts += await asyncio.gather(*(_scored(record, reward) for record in batch))
        await asyncio.sleep(0)  # let Ctrl-C through if the reward function never awaits
    return rollouts


async def _scored(record: "RolloutRecord", reward: Callable[..., Any]) -> Rescored:
    from evert.bridge.episode.agent import reward_of

    row = record.row
    name = f"The reward of rollout {row['group_idx']}/{row['traj_idx']}"
    try:
        value = reward(record)
        if inspect.isawaitable(value):
            value = await value
    except Exception as error:
        raise RewardError(
            f"{name} raised {type(error).__name__}: {text_of(error)}{place_of(error)}. Fix the "
            "reward function and try again. The record was not modified."
        ) from error
    return Rescored(
        row["iteration"],
        row["group_idx"],
        row["traj_idx"],
        str(row.get("task", row.get("task_repr", ""))),
        record.reward,
        reward_of(value, name),
    )


def _show(rollouts: Sequence[Rescored], limit: int, console: Console) -> None:
    old, new = [rollout.old for rollout in rollouts], [rollout.new for rollout in rollouts]
    changes = [rollout for rollout in rollouts if not math.isclose(rollout.old, rollout.new)]
    console.print(f"{len(rollouts)} rollouts, {len(changes)} with a different reward")
    table = Table("", "old", "new", box=None)
    for name, measure in (("mean", fmean), ("lowest", min), ("highest", max)):
        of = cast("Callable[[list[float]], float]", measure)
        table.add_row(name, f"{of(old):.3f}", f"{of(new):.3f}")
    console.print(table)
    if len({*old}) > 1 and len({*new}) > 1:
        console.print(f"correlation between old and new: {correlation(old, new):.2f}")
    changes.sort(key=lambda rollout: -abs(rollout.new - rollout.old))
    for rollout in changes[:limit]:
        where = f"iteration {rollout.iteration}, group {rollout.group_idx}"
        where += f", member {rollout.traj_idx}"
        console.print(f"  {rollout.old:g} -> {rollout.new:g}  {where}  {rollout.task:.60}")


def _write(rollouts: Sequence[Rescored], settings: RescoreSettings) -> Path:
    run = Path(settings.run).expanduser()
    path = Path(settings.out).expanduser() if settings.out else None
    path = path or (run if run.is_dir() else run.parent) / RESCORED
    write_whole(path, "".join(f"{json.dumps(asdict(rollout))}\n" for rollout in rollouts).encode())
    return path


def _replace(rollouts: Sequence[Rescored], run: str) -> None:
    """Write the new rewards into the record by adding the differences to ``final_reward``."""
    rewards = {
        (rollout.iteration, rollout.group_idx, rollout.traj_idx): rollout.new
        for rollout in rollouts
    }

    def change(row: "Row") -> bool:
        key = row["iteration"], row["group_idx"], row["traj_idx"]
        added = rewards.get(key, row["total_reward"]) - row["total_reward"]
        row["final_reward"] = row.get("final_reward", 0.0) + added
        row["total_reward"] += added
        return bool(added)

    for file in record_files(run):
        change_rows(file, change)


COMMAND = Command(RescoreSettings, USAGE, rescore_and_show, "run")
main, parse = COMMAND.main, COMMAND.parse
