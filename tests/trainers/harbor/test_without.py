"""``evert.harbor`` where Harbor is not: in its own environment, ``tests/harbor``."""

import importlib

import pytest

from evert.bridge.errors import MissingPackageError
from evert.envs.games import GameError
from evert.envs.tasksets import task_game


def test_without_harbor_its_face_and_its_tasks_say_what_to_do() -> None:
    with pytest.raises(MissingPackageError, match="needs the package harbor 0.25.* Python 3.12"):
        importlib.import_module("evert.harbor")
    with pytest.raises(GameError, match="needs the package harbor 0.25, and Python 3.12 or newer"):
        task_game({"id": "harbor:examples/harbor"})
