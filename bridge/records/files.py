"""Finds the files that contain recorded rollouts, without importing torch."""

from pathlib import Path

from evert.bridge.errors import RecordError

ROLLOUTS = "rollouts"
"""Name of the folder (or, with ``.jsonl``, of the file) for the rollouts of a run or evaluation."""

TRACES = "[0-9]" * 6 + ".json"
"""Pattern for the files written by ``evert export format=atif``, one per trace."""


def record_files(path: str | Path) -> list[Path]:
    """Return the rollout files at a path, which is a file or a folder (such as a run folder).

    Raises:
        RecordError: There are no rollouts.
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
            f"There is no folder or file {path}. Pass the folder of a run or an evaluation, such "
            "as runs/NAME, or a file written by a Recorder."
        )
    if not files:
        raise RecordError(
            f"{path} contains no rollouts. Pass the folder of a run or an evaluation that was "
            "started with record=True, a file written by a Recorder, or a trace (ATIF, "
            "TrainingTrace). Note that episodes are not recorded if the agent fails."
        )
    return files
