"""A run in TensorBoard: ``tensorboard --logdir runs`` shows every run of the folder by its name.

Event files in ``RUN/tensorboard`` say what ``metrics.jsonl`` says, a scalar a metric and step, and
are written as it grows. The settings are there as text from the start, and as hyperparameters
with the held-out scores at the end. A resumed run adds another event file, which takes up where
the ones before it stop: lines that nobody had written down yet are made up for, steps that are
done again replace the old ones.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from evert.trainers.runs.folder import HELD_OUT_REWARD, TRAIN_REWARD, RunFolder
from evert.trainers.runs.settings import TrainSettings

if TYPE_CHECKING:
    from tinker_cookbook.rl.train import Config
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class TensorboardLog:
    """Writes a run's event files; a tracker."""

    def __init__(self, writer: "SummaryWriter", settings: Mapping[str, Any]) -> None:
        self._writer: Any = writer
        self._settings = settings

    def begin(self, config: "Config") -> None:
        """Nothing to do: the settings say it."""

    def row(self, metrics: Mapping[str, Any]) -> None:
        """Write a step's numbers, at once: the run may be killed any time."""
        for name, value in metrics.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, metrics["step"])
        self._writer.flush()

    def result(self, result: Mapping[str, Any]) -> None:
        """Write the hyperparameters and what they led to."""
        after = result["held_out"]["after"] or {}
        scores = {f"held_out/after/{how}": score["reward"] for how, score in after.items()}
        if "temperature_1" in after:  # the last point of the curve
            scores[HELD_OUT_REWARD] = after["temperature_1"]["reward"]
        values = {key: _plain(value) for key, value in self._settings.items()}
        self._writer.add_hparams(values, scores, run_name=".", global_step=result["steps"])


@contextmanager
def tensorboard_log(
    settings: TrainSettings, folder: RunFolder, about: Mapping[str, Any], console: Console
) -> Iterator[TensorboardLog]:
    """Have the event files open inside the block; see ``tracking``."""
    from torch.utils.tensorboard import SummaryWriter

    path = folder.path / FOLDER
    start, written = folder.steps_done(), last_step(path)
    make: Any = SummaryWriter
    with make(str(path), purge_step=start if written >= start else None) as writer:
        log = TensorboardLog(writer, about["settings"])
        writer.add_text("settings", _table(about["settings"]), start)
        writer.add_text("machine", _table({**about["engine"], **about["versions"]}), start)
        for row in folder.steps():
            if written < row["step"] < start:
                log.row(row)
        writer.flush()
        console.print(f"tensorboard --logdir {path.parent.parent}", soft_wrap=True, markup=False)
        yield log


def last_step(path: Path) -> int:
    """The last training step in a folder's event files; -1 if there is none."""
    if not path.is_dir():
        return -1
    from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]
        event_accumulator,
    )

    everything = {"scalars": 0}
    events: Any = event_accumulator.EventAccumulator(str(path), size_guidance=everything).Reload()
    if TRAIN_REWARD not in events.Tags()["scalars"]:
        return -1
    return max(int(scalar.step) for scalar in events.Scalars(TRAIN_REWARD))


def _plain(value: Any) -> str | float | bool:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _table(values: Mapping[str, Any]) -> str:
    """As Markdown."""
    rows = [f"| {key} | {value} |" for key, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *rows])
