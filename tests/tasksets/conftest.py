"""Tasksets, with their own packages and a script for the model.

    .frameworks/worlds/bin/python -m pytest tests/tasksets --environment worlds

``frameworks/make_environment.py worlds`` makes the environment. Without ``--environment`` nothing
here is collected: the packages are not in .venv.
"""

from pathlib import Path

import pytest

ENVIRONMENTS = {
    "test_miniwob.py": "worlds",
    "test_openenv.py": "worlds",
    "test_scienceworld.py": "worlds",
    "test_textarena.py": "worlds",
}
"""A file of tests -> the environment in which it runs."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    where = ENVIRONMENTS.get(collection_path.name)
    own = collection_path.is_dir() or config.getoption("environment") == where
    return None if config.getoption("environment") and own else True
