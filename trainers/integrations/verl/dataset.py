"""Writes tasks to the Parquet file that verl reads, and reads a row's task back.

A row has its task as JSON (``extra_info.task_json``), so that the agent gets the task unchanged:
Parquet itself would give all tasks the same keys, and all values of a key the same type. For other
datasets, the loop's YAML has the task's path in a row, such as ``task: extra_info.question``.
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
"""The path in a row at which ``write_dataset`` writes a task."""

WHOLE_ROW = "row"
"""Used instead of a path if the task is the whole row, as a dict."""


def write_dataset(
    path: str | Path,
    tasks: str | Sequence[Any],
    *,
    agent_name: str = "evert",
    data_source: str = "evert",
) -> None:
    """Write tasks as a dataset for verl's ``data.train_files`` or ``data.val_files``.

    Args:
        path: The file, ``*.parquet``.
        tasks: A sequence, or its import path 'package.module:name'. Each task must be JSON:
            numbers, strings, lists and dicts of them.
        agent_name: The ``name``, in the YAML, of the agent loop that plays the tasks.
        data_source: The name under which verl reports validation on these tasks.

    Raises:
        InvalidDatasetError: There are no tasks, or JSON cannot represent one of them.
    """
    import datasets

    task_list = load_tasks(tasks)
    if len(task_list) == 0:
        raise InvalidDatasetError("A dataset needs at least one task, got none.")
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
    """Return a row's task at a path; by default at that of ``write_dataset``, or else NO_TASK.

    Raises:
        InvalidDatasetError: The row has nothing at ``path``.
    """
    if path == WHOLE_ROW:
        return dict(row)
    value: Any = row
    for name in (path or TASK_PATH).split("."):
        if not isinstance(value, Mapping) or name not in value:
            if path is None:
                return NO_TASK
            raise InvalidDatasetError(
                f"A row of the dataset has no {path!r}; it has {_paths(row)}. In the agent loop's "
                "YAML, set the path of the task (task: extra_info.question, or task: row for the "
                "whole row), or omit it and create the dataset with evert.verl.write_dataset."
            )
        value = value[name]
    return json.loads(value) if path is None else value


def _as_json(task: Any, index: int) -> str:
    try:
        text = json.dumps(task)
        if json.loads(text) == task:
            return text
        reason = "changes in a round trip through JSON"
    except (TypeError, ValueError) as error:
        reason = f"cannot be written as JSON ({error})"
    raise InvalidDatasetError(
        f"Task {index}, {repr_of(task)}, {reason}; expected numbers, strings, lists and dicts with "
        "string keys. Write the task's number or name, and let the agent look up the task."
    )


def _paths(row: Mapping[str, Any]) -> str:
    inner = row.get("extra_info")
    names = [*row, *(f"extra_info.{name}" for name in (inner if isinstance(inner, dict) else ()))]
    return ", ".join(sorted(names))
