"""Write tasks to a Parquet file for verl, and read a task back from a row.

Tasks are stored as JSON in ``extra_info.task_json``, so that agents receive them unchanged. Parquet
itself would force all tasks to have the same keys with the same types. For other datasets, set the
path of the task in the loop's YAML file, for example ``task: extra_info.question``.
"""

# pyright: reportMissingImports=false

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evert.bridge.episode.agent import NO_TASK
from evert.bridge.errors import InvalidDatasetError, repr_of
from evert.bridge.groups.tasks import load_tasks

TASK_PATH = "extra_info.task_json"
"""Where ``write_dataset`` stores the task in a row."""

WHOLE_ROW = "row"
"""Special path: the task is the whole row, as a dict."""


def write_dataset(
    path: str | Path,
    tasks: str | Sequence[Any],
    *,
    agent_name: str = "evert",
    data_source: str = "evert",
) -> None:
    """Write tasks as a dataset for verl's ``data.train_files`` or ``data.val_files``.

    Args:
        path: Output file, ``*.parquet``.
        tasks: A sequence of tasks, or its import path 'package.module:name'. Tasks must be
            JSON-serializable: numbers, strings, lists and dicts.
        agent_name: The agent loop that should play the tasks (its ``name`` in the YAML file).
        data_source: The name under which verl reports validation results on these tasks.

    Raises:
        InvalidDatasetError: There are no tasks, or a task is not JSON-serializable.
    """
    import datasets

    task_list = load_tasks(tasks)
    if len(task_list) == 0:
        raise InvalidDatasetError("A dataset requires at least one task, got none.")
    rows = [
        {
            "data_source": data_source,
            "agent_name": agent_name,
            "prompt": [{"role": "user", "content": "(the agent writes its prompts itself)"}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "task_json": _as_json(task_list[index], index)},
        }
        for index in range(len(task_list))
    ]
    datasets.Dataset.from_list(rows).to_parquet(str(path))


def task_of(row: Mapping[str, Any], path: str | None) -> Any:
    """Return the task at ``path`` in a row.

    If ``path`` is None, use the path at which ``write_dataset`` stores the task. If the row does
    not have that path, return NO_TASK.

    Raises:
        InvalidDatasetError: ``path`` does not exist in the row.
    """
    if path == WHOLE_ROW:
        return dict(row)
    value: Any = row
    for name in (path or TASK_PATH).split("."):
        if not isinstance(value, Mapping) or name not in value:
            if path is None:
                return NO_TASK
            raise InvalidDatasetError(
                f"A row of the dataset has no {path!r}; available: {_paths(row)}. Set the path of "
                "the task in the agent loop's YAML (task: extra_info.question, or task: row for "
                "the whole row), or omit it and create the dataset with evert.verl.write_dataset."
            )
        value = value[name]
    return json.loads(value) if path is None else value


def _as_json(task: Any, index: int) -> str:
    try:
        text = json.dumps(task)
        if json.loads(text) == task:
            return text
        reason = "changes in a JSON round trip"
    except (TypeError, ValueError) as error:
        reason = f"is not JSON-serializable ({error})"
    raise InvalidDatasetError(
        f"Task {index}, {repr_of(task)}, {reason}; expected numbers, strings, lists and dicts with "
        "string keys. You can also write the task's index or name, and let the agent look it up."
    )


def _paths(row: Mapping[str, Any]) -> str:
    inner = row.get("extra_info")
    names = [*row, *(f"extra_info.{name}" for name in (inner if isinstance(inner, dict) else ()))]
    return ", ".join(sorted(names))
