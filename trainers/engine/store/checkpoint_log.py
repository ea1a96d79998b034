"""Repairs the Cookbook's list of checkpoints, from which the Cookbook resumes."""

import shutil
from pathlib import Path

from evert.trainers.engine.store.checkpoints import PATH, CheckpointStore
from evert.trainers.system.files import CHECKPOINTS, keep_lines, read_jsonl


def repair_checkpoint_log(
    log_path: str | Path, store: CheckpointStore, *, all_here: bool = False
) -> list[str]:
    """Remove damaged checkpoints from the Cookbook's ``checkpoints.jsonl``; returns their paths.

    The Cookbook resumes from the last line with a ``state_path``. After the repair, that is the
    newest one whose files are intact. Paths of other stores (another engine's, or a hosted
    service's) stay in the list, unless ``all_here`` says that there are none. If lines are removed,
    the old list is kept as ``checkpoints.jsonl.damaged``.
    """
    file = Path(log_path) / CHECKPOINTS
    paths = [record["state_path"] for record in read_jsonl(file) if record.get("state_path")]
    damaged = [path for path in paths if _is_damaged(path, store, all_here)]
    if damaged:
        shutil.copyfile(file, file.with_suffix(".jsonl.damaged"))
        keep_lines(file, lambda record: record.get("state_path") not in damaged)
    return damaged


def _is_damaged(path: str, store: CheckpointStore, all_here: bool) -> bool:
    match = PATH.fullmatch(path)
    ours = match is not None and (all_here or (store.root / match[1]).is_dir())
    return ours and not store.is_intact(path)
