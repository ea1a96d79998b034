"""Finds the files of recorded rollouts without importing torch."""

from pathlib import Path

from evert.bridge.errors import RecordError

ROLLOUTS = "rollouts"
"""Name of the folder (or, with ``.jsonl``, the file) of a run's or an evaluation's rollouts."""

TRACES = "[0-9]" * 6 + ".json"
"""Pattern for the files that ``evert export format=atif`` writes, one per trace."""


def record_files(path: str | Path) -> list[Path]:
    """Return the files with the rollouts of a run, an evaluation, a folder or a file.

    Raises:
        RecordError: No file has rollouts.
    """
    path = Path(path).expanduser()
    files = [path] if path.is_file() else []
    for folder in (path / ROLLOUTS, path):
        files = files or sorted(folder.glob("[0-9]*.jsonl"))
    single = path / f"{ROLLOUTS}.jsonl"
    files = files or ([single] if single.is_file() else [])
    files = files or sorted(path.glob(TRACES))
    if not path.exists():
        raise RecordError(
            f"There is no folder or file {path}. Name the folder of a run or of an evaluation, "
            "such as runs/NAME, or a file that a Recorder wrote."
        )
    if not files:
        raise RecordError(
            f"{path} holds no rollouts. Name the folder of a run or of an evaluation that was made "
            "with record=True, a file that a Recorder wrote, or a trace (ATIF, TrainingTrace). "
            "Episodes whose agent failed are not recorded."
        )
    return files
