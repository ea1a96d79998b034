"""Repairs the checkpoint list from which the Cookbook resumes training."""

import shutil
from pathlib import Path

from evert.trainers.engine.store.checkpoints import CheckpointStore
from evert.trainers.system.files import CHECKPOINTS, keep_lines, read_jsonl


def repair_checkpoint_log(log_path: str | Path, store: CheckpointStore) -> list[str]:
    """Remove damaged checkpoints from the Cookbook's ``checkpoints.jsonl``. Return their paths.

    The Cookbook resumes from the last line that has a ``state_path``. After the repair, this line
    describes the newest checkpoint whose files in ``store`` are intact. If lines are removed, the
    original list is kept as ``checkpoints.jsonl.damaged``.
    """
    file = Path(log_path) / CHECKPOINTS
    paths = [record["state_path"] for record in read_jsonl(file) if record.get("state_path")]
    damaged = [path for path in paths if not store.is_intact(path)]
    if damaged:
        shutil.copyfile(file, file.with_suffix(".jsonl.damaged"))
        keep_lines(file, lambda record: record.get("state_path") not in damaged)
    return damaged
