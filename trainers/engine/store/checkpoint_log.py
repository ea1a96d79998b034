"""The repair of the Cookbook's list of checkpoints, which it resumes from."""

import shutil
from pathlib import Path

from evert.trainers.engine.store.checkpoints import PATH, CheckpointStore
from evert.trainers.system.files import CHECKPOINTS, keep_lines, read_jsonl


def repair_checkpoint_log(
    log_path: str | Path, store: CheckpointStore, *, all_here: bool = False
) -> list[str]:
    """Strike damaged checkpoints off the Cookbook's ``checkpoints.jsonl``.

    The Cookbook resumes from the last line that has a ``state_path``. After this, that is the
    newest one whose files are whole. Paths that are not in ``store`` (another engine's, or a
    hosted service's) are left alone; the old list is kept as ``checkpoints.jsonl.damaged``.
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
