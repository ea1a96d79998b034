"""What all tests rely on; ``leftovers.py`` sees to it that a failing test fails alone.

Some need packages that are not in .venv; they are collected with ``--environment`` alone, in the
environment of that name (``frameworks/make_environment.py``).
"""

from pathlib import Path

import pytest
from tests.nightly import IS_NIGHT

pytest_plugins = ["tests.leftovers"]

TESTS = Path(__file__).parent

COOKBOOK_CONTRACT = (
    "bridge/env/test_check.py",
    "agents/test_cookbook_agent.py",
    "bridge/groups/test_dataset.py",
    "bridge/env/test_env.py",
    "bridge/groups/test_group.py",
    "bridge/env/test_limits.py",
    "bridge/conversations/test_oracle.py",
    "bridge/tokens/test_rendering.py",
    "trainers/engine/test_cookbook.py",
    "trainers/engine/test_engine.py",
    "trainers/loop/test_cookbook_loop.py",
    "trainers/training/test_cookbook.py",
)
"""The tests of what evert and the Tinker Cookbook take from each other: types, renderers, runners,
limits, strategies, the loop. `make cookbooks` runs them against the newest Cookbook."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option for all folders whose tests need an environment of their own."""
    parser.addoption("--environment", help="the environment that this is: openai3, trainers, ...")


def is_contract(path: Path) -> bool:
    """Whether a module is one of the Cookbook's contract."""
    return path.is_relative_to(TESTS) and str(path.relative_to(TESTS)) in COOKBOOK_CONTRACT


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no other module where the contract alone is asked for: that takes a minute."""
    alone = config.getoption("markexpr") == "cookbook_contract"
    return (
        True if alone and collection_path.is_file() and not is_contract(collection_path) else None
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the Cookbook's contract; by day, deselect the tests that are marked ``nightly``."""
    for item in items:
        if is_contract(item.path):
            item.add_marker(pytest.mark.cookbook_contract)
    left = [] if IS_NIGHT else [item for item in items if item.get_closest_marker("nightly")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
