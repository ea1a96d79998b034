"""``load_tasks`` loads the tasks that a setting names; ``check_tasks`` validates a sequence."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evert.bridge.errors import InvalidDatasetError
from evert.bridge.groups.kept import unwrap
from evert.bridge.import_paths import resolve
from evert.bridge.records.row_files import holds_records, names_file, read_rows


def load_tasks(tasks: str | Sequence[Any]) -> Sequence[Any]:
    """Load tasks from a sequence, an import path 'package.module:name', a file or a folder.

    Every row of a file is a task. In a folder of records, the first request of every conversation
    is a task (a dict with ``messages`` and ``tools``). Duplicates are removed.

    Raises:
        InvalidDatasetError: ``tasks`` is not a sequence, or a row cannot be read.
        RecordError: The folder contains neither a dataset nor records.
    """
    if not isinstance(tasks, str):
        sequence: Sequence[Any] = unwrap(tasks)
    elif names_file(tasks):
        sequence = _of_file(tasks)
    else:
        sequence = resolve(tasks, "tasks", InvalidDatasetError)
    check_tasks(sequence)
    return sequence


def _of_file(path: str) -> list[Any]:
    if holds_records(path, InvalidDatasetError):
        openings = {json.dumps(opening, sort_keys=True): opening for opening in _openings(path)}
        return [*openings.values()]
    return [row for _, row in read_rows(path, InvalidDatasetError)]


def _openings(path: str) -> Iterator[dict[str, Any]]:
    from evert.bridge.records.record import read_records  # imports torch

    for record in read_records(path):
        for turn in record.last_turns():
            first = record.path(turn)[0]
            yield {"messages": record.asked(first), "tools": record.tools(first)}


def check_tasks(tasks: object, called: str = "tasks") -> None:
    """Check that ``tasks`` is a sequence. ``called`` is its name in error messages.

    Raises:
        InvalidDatasetError: ``tasks`` is not a sequence.
    """
    is_sequence = hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")
    if not is_sequence or isinstance(tasks, Mapping):
        raise InvalidDatasetError(
            f"{called} is a {type(tasks).__name__}; expected a sequence with a length and integer "
            "indices. Convert it to a list: TASKS = [...]."
        )
