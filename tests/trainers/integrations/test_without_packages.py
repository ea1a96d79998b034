"""Integrations whose packages are missing. Other folders, such as ``tests/harbor``, test the
integrations with their packages."""

import importlib

import pytest

from evert.bridge.errors import MissingPackageError
from evert.envs.games import GameError
from evert.envs.tasksets import task_game


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("evert.harbor", r"harbor package \(0.25\).* Python 3.12"),
        ("evert.verifiers", r"verifiers package \(0.4 or newer"),
    ],
)
def test_an_integration_without_its_package_says_what_to_install(module: str, package: str) -> None:
    with pytest.raises(MissingPackageError, match=f"needs the {package}"):
        importlib.import_module(module)


def test_harbors_tasks_without_harbor_say_what_to_install() -> None:
    with pytest.raises(GameError, match="requires harbor 0.25 and Python 3.12 or newer"):
        task_game({"id": "harbor:examples/harbor"})
