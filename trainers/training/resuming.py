"""Resume a run in its folder, no matter where it was stopped, and clean up the folder.

The records of the run and its warm-up are truncated to the latest step that has an intact
checkpoint and for which ``metrics.jsonl`` is complete. This way, the Cookbook finds consistent
files, and each step is recorded only once.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import chz
from rich.console import Console

from evert.bridge.records.row_files import digest
from evert.bridge.redaction import redacted_arguments
from evert.trainers.config.early_checks import named_files
from evert.trainers.config.frozen_models import pin_steps
from evert.trainers.config.train import (
    WORKERS,
    TrainSettings,
    as_record,
    differences,
    read_train_settings,
)
from evert.trainers.rundir import folder as run_folder
from evert.trainers.rundir.folder import LOCK, STORE, WARM_UP, RunFolder, recorded_settings
from evert.trainers.rundir.metrics import is_step
from evert.trainers.system import files
from evert.trainers.system.files import CHECKPOINTS, RUN, RunFolderError, read_jsonl, slug
from evert.trainers.system.provenance import origin

AHEAD = 2
"""How many steps a killed run's checkpoint can be ahead of its metrics. The Cookbook saves a step
before it logs the step, and in the warm-up it submits the next batch early."""


def settings_of_run(options: Mapping[str, Any]) -> TrainSettings:
    """Read settings. The defaults come from the run to resume or, for a new run, from the recipe.

    If a frozen model is a run (``runs/NAME``, without a step), it is pinned to the step that was
    its latest when this run was started.
    """
    path = Path(options.get("log_path") or "").expanduser()
    with files.file_errors(path, "log_path"):
        resumes = options.get("log_path") and RunFolder(path).begun
    before = recorded_settings(path, TrainSettings) if resumes else {}
    if "rollouts" in options:  # recorded worker settings may be for another kind of worker
        before = {key: value for key, value in before.items() if key not in WORKERS}
    settings = read_train_settings(options, before)
    if not settings.models:
        return settings
    return chz.replace(settings, models=pin_steps(settings.models, before.get("models", {})))


def prepare_folder(
    folder: RunFolder,
    settings: TrainSettings,
    command: Sequence[str],
    engine: str,
    console: Console,
) -> dict[str, Any]:
    """Prepare a folder to start or resume a run, and return the contents of ``run.json``."""
    about: dict[str, Any] = (folder.read_json(RUN) if folder.resumed else None) or {
        "name": settings.name,
        "settings": {},
        "command": redacted_arguments(command),
        "engine": {},
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        **origin(),
    }
    about["settings"] = as_record(settings)
    about.setdefault("files", {key: digest(paths) for key, paths in named_files(settings).items()})
    if folder.resumed:
        _check_engine(folder, about, engine)
        _cut_back(folder, settings.steps, engine == "embedded", console)
    else:
        _cut(folder.path, 0)  # a run that was killed while it was starting may have left lines
    if engine == "embedded":
        tidy(folder.path)
    folder.write_json(RUN, about)
    return about


def _check_engine(folder: RunFolder, about: dict[str, Any], engine: str) -> None:
    was = (about.get("engine") or {}).get("engine", engine)
    if was != engine and folder.steps_done():
        place = "on a service" if was == "service" else f"in {folder.path / STORE}"
        raise RunFolderError(
            f"{folder.path} was trained with engine={was}, and its checkpoints are {place}, so "
            f"engine={engine} cannot load them. Pass engine={was} (a service requires "
            "TINKER_API_KEY, and base_url if you host it), or choose a different log_path."
        )


def _cut_back(folder: RunFolder, steps: int, embedded: bool, console: Console) -> None:
    path, warm = folder.path, RunFolder(folder.path / WARM_UP)
    broken = {f for log in (path, warm.path) for f in _files(log) if files.drop_broken_lines(f)}
    if embedded:
        _correct_batches(warm.path, path / STORE)
    for log in (path, warm.path):
        _remove_unlogged(log)
    listed_steps = folder.steps_done()
    if embedded:
        _repair(path)
    if (step := folder.steps_done()) < steps:
        _cut(path, step)
    if not any(record["name"] == "final" for record in warm.checkpoints()):
        _cut(warm.path, warm.steps_done())
    if path / CHECKPOINTS in broken or step < listed_steps:
        start = f"resuming after step {step}" if step else "starting again from the first step"
        message = f"the latest checkpoint is damaged or missing: {start} instead"
        console.print(message, markup=False, soft_wrap=True)


def _files(log: Path) -> list[Path]:
    return [log / name for name in (files.METRICS, files.BATCHES, files.TIMES, CHECKPOINTS)]


def _cut(log: Path, steps: int) -> None:
    for file in _files(log)[:-1]:
        files.keep_lines(file, lambda row: int(row.get("step") or 0) < steps)


def _repair(path: Path) -> None:
    """Remove damaged checkpoints from the lists, as the Cookbook resumes from the last entry."""
    from evert.trainers.engine.store.checkpoint_log import repair_checkpoint_log
    from evert.trainers.engine.store.checkpoints import CheckpointStore

    store = CheckpointStore(path / STORE)
    saved = len(_logged_steps(path)) >= AHEAD and any(store.root.glob("*/weights/*/"))
    if saved and not read_jsonl(path / CHECKPOINTS):
        raise RunFolderError(
            f"{path / CHECKPOINTS} lists no checkpoints, but {store.root} contains some; expected "
            "the list that was written together with them. Restore it, or also delete the "
            "checkpoints to start the run from scratch."
        )
    for log in (path, path / WARM_UP):
        states = [r["state_path"] for r in read_jsonl(log / CHECKPOINTS) if r.get("state_path")]
        if states and not store.is_intact(states[-1]):
            repair_checkpoint_log(log, store)


def _correct_batches(log: Path, root: Path) -> None:
    """Correct the recorded number of batches that the warm-up's weights were trained on.

    The Cookbook records the batch that it is waiting for. At that point, it has already submitted
    the next batch, so the weights were trained on both.
    """
    from evert.trainers.engine.store.checkpoints import CheckpointStore

    store = CheckpointStore(root)

    def fixed(record: dict[str, Any]) -> dict[str, Any]:
        path = record.get("state_path")
        if record["name"] == "final" or path is None or not store.is_intact(path):
            return record
        return {**record, "batch": store.info(path).steps}

    files.change_lines(log / CHECKPOINTS, fixed)


def _remove_unlogged(log: Path) -> None:
    """Remove checkpoints of steps that a killed run did not log, so that the steps are repeated."""
    logged = max(_logged_steps(log), default=-1) + 1
    lost = range(logged + 1, logged + AHEAD + 1)
    files.keep_lines(log / CHECKPOINTS, lambda record: record.get("batch") not in lost)


def _logged_steps(log: Path) -> set[int]:
    return {row.get("step", -1) for row in read_jsonl(log / files.METRICS) if is_step(row)}


def tidy(path: Path) -> None:
    """Delete checkpoints that are no longer needed, and leftovers from crashes."""
    from evert.trainers.engine.store.checkpoints import CheckpointStore

    if (path / STORE).is_dir():
        CheckpointStore(path / STORE).tidy(_to_keep(path) | _to_keep(path / WARM_UP))


def _to_keep(log: Path) -> set[str]:
    """Return the checkpoints to keep: all that are not rolling, and the latest resumable one."""
    records = read_jsonl(log / CHECKPOINTS)
    resumable = [record for record in records if record.get("state_path")]
    needed = [record for record in records if not record.get("rolling")] + resumable[-1:]
    return {str(record.get(key)) for record in needed for key in ("state_path", "sampler_path")}


def clean_up(folder: RunFolder) -> None:
    """Delete the rolling checkpoints of a finished run, and leftovers from killed processes."""
    for log in (folder.path, folder.path / WARM_UP):
        files.keep_lines(log / CHECKPOINTS, lambda record: not record.get("rolling"))
    tidy(folder.path)


_DEBRIS = frozenset({LOCK, f".{RUN}.draft"})
"""Files that can be left if a run is killed before it writes its first file."""


def check_folder(settings: TrainSettings) -> None:
    """Raise an error if ``log_path`` contains unrelated files, or a run with different settings."""
    if settings.log_path and (path := Path(settings.log_path).expanduser()).exists():
        with files.file_errors(path, "log_path"):
            _check_is_ours(RunFolder(path, resumed=RunFolder(path).begun), settings)


@contextmanager
def open_run(settings: TrainSettings, resume_command: Callable[[Path], str]) -> Iterator[RunFolder]:
    """Create or open a run's folder, and lock it inside the block.

    If there is an error, add a note about how to resume the run or, if there is nothing to resume,
    remove the folder if it is new.
    """
    name = f"{slug(settings.name)}-{slug(Path(settings.model_name).name)}"
    path = run_folder.named_folder(settings.log_path, "runs", name)
    try:
        with run_folder.alone_in(path, "training", "log_path"):
            new = _is_empty(path)
            folder = RunFolder(path, resumed=RunFolder(path).begun)
            _check_is_ours(folder, settings)
            try:
                yield folder
            except BaseException as error:
                if folder.begun:
                    _note_how_to_resume(error, folder, resume_command(path))
                elif new:
                    _empty(path)
                raise
    finally:
        with suppress(OSError):  # not empty
            path.rmdir()


def _is_empty(path: Path) -> bool:
    return all(file.name in _DEBRIS for file in path.iterdir())


def _empty(path: Path) -> None:
    for file in path.iterdir():
        if file.is_dir():
            shutil.rmtree(file, ignore_errors=True)
        elif file.name != LOCK:
            file.unlink(missing_ok=True)


def _note_how_to_resume(error: BaseException, folder: RunFolder, command: str) -> None:
    count = folder.steps_done()
    if isinstance(error, KeyboardInterrupt):
        steps = f"{count} step{'s' * (count != 1)}"
        error.add_note(
            f"Interrupted after {steps}, which are saved in {folder.path}. To resume:\n  {command}"
        )
    else:
        error.add_note(f"To resume: {command}")


def _check_is_ours(folder: RunFolder, settings: TrainSettings) -> None:
    path = folder.path
    if not folder.resumed:
        if not _is_empty(path) and not (path / RUN).is_file():
            raise RunFolderError(
                f"{path} is not empty and is not an evert run: it has no {RUN}. Nothing was "
                "changed. Choose a different log_path, or omit it for a new folder in runs/."
            )
        return
    changes = differences(recorded_settings(path, TrainSettings), settings)
    if changes := [*changes, *_changed_files(folder, settings)]:
        raise RunFolderError(
            f"{path} contains a run with different settings:\n  "
            + "\n  ".join(changes)
            + "\nTo resume it, leave these settings out and restore changed files. To train with "
            "the new settings, choose a different log_path."
        )


def _changed_files(folder: RunFolder, settings: TrainSettings) -> Iterator[str]:
    """Yield a line for each file that the run still needs and that has changed since the start."""
    before = (folder.read_json(RUN) or {}).get("files") or {}
    warm = RunFolder(folder.path / WARM_UP).checkpoints()
    is_warm = any(record["name"] == "final" for record in warm)
    for key, paths in named_files(settings).items():
        now = digest(paths)
        if before.get(key, now) != now and not (is_warm and key == "demonstrations"):
            yield f"{getattr(settings, key)} has changed: sha256 {before[key]} -> {now}"
