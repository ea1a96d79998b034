"""Taking up the folder of a run that stopped, wherever it was stopped, and leaving it tidy.

A run may have been killed in the middle of any write, its checkpoints damaged or deleted. Then its
lists are cut back to the newest step that can be gone on from, so that the Cookbook finds what it
expects and no step stands twice in ``metrics.jsonl``.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import chz
from rich.console import Console

from evert.trainers.runs.folder import (
    BATCHES,
    CHECKPOINTS,
    METRICS,
    RUN,
    STORE,
    WARM_UP,
    RunFolder,
    RunFolderError,
    drop_broken_lines,
    keep_lines,
    read_jsonl,
    recorded_settings,
)
from evert.trainers.runs.frozen_models import pinned
from evert.trainers.runs.origin import origin
from evert.trainers.runs.settings import TrainSettings, read_train_settings, recorded

TIMES = "timing_spans.jsonl"


def settings_of_run(given: Mapping[str, Any]) -> TrainSettings:
    """What was given, over the recipe or over the settings of the run that its folder holds.

    Frozen models that are runs have the step that those runs are at, or were at when this began.

    Raises:
        EvertError: As ``read_train_settings``.
    """
    path = Path(given.get("log_path") or "").expanduser()
    resumes = given.get("log_path") and RunFolder(path, resumed=True).begun
    before = recorded_settings(path) if resumes else {}
    settings = read_train_settings(given, before)
    if not settings.models:
        return settings
    return chz.replace(settings, models=pinned(settings.models, before.get("models", {})))


def take_up(
    folder: RunFolder,
    settings: TrainSettings,
    command: Sequence[str],
    engine: str,
    console: Console,
) -> dict[str, Any]:
    """Bring a folder into order for a run to begin, or to go on, in it.

    Args:
        folder: Of the run, open.
        settings: Of the run; what may change in a resumed run is written down anew.
        command: The command line, for the record.
        engine: What it is to be trained on: "embedded" or "service".
        console: Where to say how far back a damaged run has to go.

    Returns:
        What ``run.json`` says.

    Raises:
        RunFolderError: The run's checkpoints are on another engine.
    """
    about: dict[str, Any] = (folder.read_json(RUN) if folder.resumed else None) or {
        "name": settings.name,
        "settings": {},
        "command": list(command),
        "engine": {},
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        **origin(),
    }
    about["settings"] = recorded(settings)
    if folder.resumed:
        _check_engine(folder, about, engine)
        _cut_back(folder, settings.steps, engine == "embedded", console)
    folder.write_json(RUN, about)
    return about


def _check_engine(folder: RunFolder, about: dict[str, Any], engine: str) -> None:
    was = (about.get("engine") or {}).get("engine", engine)
    if was != engine and folder.steps_done():
        there = "on a service" if was == "service" else f"in {folder.path / STORE}"
        raise RunFolderError(
            f"{folder.path} was trained with engine={was}, and its checkpoints are {there}; "
            f"engine={engine} cannot go on from them. Pass engine={was} (a service needs "
            "TINKER_API_KEY, and base_url where it is one of your own), or choose another log_path."
        )


def _cut_back(folder: RunFolder, steps: int, embedded: bool, console: Console) -> None:
    listed = folder.steps_done()
    broken = drop_broken_lines(folder.path / CHECKPOINTS) > 0
    for name in (METRICS, BATCHES):
        drop_broken_lines(folder.path / name)
    if embedded:
        _repair(folder.path)
        tidy(folder.path)
    done = folder.steps_done()
    for name in (METRICS, BATCHES, TIMES) if done < steps else ():
        keep_lines(folder.path / name, lambda row: int(row.get("step", -1)) < done)
    if broken or done < listed:
        start = f"resuming after step {done}" if done else "starting again from the first step"
        console.print(f"the newest checkpoint is damaged: {start} instead", markup=False)


def _repair(path: Path) -> None:
    """Strike off the lists what is damaged or gone: the Cookbook goes on from the last line."""
    from evert.trainers.engine.checkpoints import CheckpointStore, repair_checkpoint_log

    store = CheckpointStore(path / STORE)
    for log in (path, path / WARM_UP):
        states = [r["state_path"] for r in read_jsonl(log / CHECKPOINTS) if r.get("state_path")]
        if states and not store.is_intact(states[-1]):
            repair_checkpoint_log(log, store, all_here=True)


def tidy(path: Path) -> None:
    """Delete the checkpoints that no list of a run has any use for, and what crashes left."""
    from evert.trainers.engine.checkpoints import CheckpointStore

    if (path / STORE).is_dir():
        CheckpointStore(path / STORE).tidy(_of_use(path) | _of_use(path / WARM_UP))


def _of_use(log: Path) -> set[str]:
    """Paths of the checkpoints that a list keeps: of the rolling ones, only one to resume from."""
    records = read_jsonl(log / CHECKPOINTS)
    resumable = [record for record in records if record.get("state_path")]
    kept = [record for record in records if not record.get("rolling")] + resumable[-1:]
    return {str(record.get(key)) for record in kept for key in ("state_path", "sampler_path")}


def clean_up(folder: RunFolder) -> None:
    """Delete what a finished run does not need any more: rolling checkpoints, of dead runs too."""
    for log in (folder.path, folder.path / WARM_UP):
        keep_lines(log / CHECKPOINTS, lambda record: not record.get("rolling"))
    tidy(folder.path)
