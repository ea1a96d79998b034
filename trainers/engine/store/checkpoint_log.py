"""The repair of the Cookbook's list of checkpoints, which it resumes from."""

import json
import shutil
from pathlib import Path

from evert.trainers.engine.store.checkpoints import PATH, CheckpointStore
from evert.trainers.system.files import write_whole


def repair_checkpoint_log(
    log_path: str | Path, store: CheckpointStore, *, all_here: bool = False
) -> list[str]:
    """Strike damaged checkpoints off the Cookbook's ``checkpoints.jsonl``.

    The Cookbook resumes from the last line that has a ``state_path``. After this, that is the
    newest one whose files are whole. Paths that are not in ``store`` (another engine's, or a
    hosted service's) are left alone; the old list is kept as ``checkpoints.jsonl.damaged``.
    """
    file = Path(log_path) / "checkpoints.jsonl"
    if not file.is_file():
        return []
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    damaged = [line for line in lines if _is_damaged(line, store, all_here)]
    if damaged:
        shutil.copyfile(file, file.with_suffix(".jsonl.damaged"))
        kept = "".join(f"{line}\n" for line in lines if line not in damaged)
        write_whole(file, kept.encode())
    return [_state_path(line) for line in damaged]


def _is_damaged(line: str, store: CheckpointStore, all_here: bool) -> bool:
    path = _state_path(line)
    match = PATH.fullmatch(path)
    ours = match is not None and (all_here or (store.root / match[1]).is_dir())
    return ours and not store.is_intact(path)


def _state_path(line: str) -> str:
    return str(json.loads(line).get("state_path") or "")
