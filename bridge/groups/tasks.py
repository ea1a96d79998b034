"""``check_tasks``: whether an object can be the tasks of a dataset."""

from collections.abc import Mapping

from evert.bridge.errors import InvalidDatasetError


def check_tasks(tasks: object, called: str = "tasks") -> None:
    """Check that ``tasks`` is a sequence; ``called`` is its name in the message.

    Raises:
        InvalidDatasetError: It is something else.
    """
    is_sequence = hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")
    if not is_sequence or isinstance(tasks, Mapping):
        raise InvalidDatasetError(
            f"{called} is a {type(tasks).__name__}; expected a sequence (with a length and an "
            "index). Make a list of it: TASKS = [...]."
        )
