"""Configuration for all tests. ``leftovers.py`` keeps failing tests from affecting later ones.

Some tests need packages that are not in .venv. They are only collected with ``--environment``, in
the environment of that name (``frameworks/make_environment.py``).
"""

import gc
from functools import cache
from pathlib import Path

import pytest
from tests.nightly import IS_NIGHT

pytest_plugins = ["tests.leftovers"]

TESTS = Path(__file__).parent

GROUPS = {
    # The interfaces between evert and the Tinker Cookbook: types, renderers, runners, limits,
    # strategies and the training loop. `make cookbooks` runs these with the newest Cookbook.
    "cookbook_contract": (
        "bridge/env/test_check.py",
        "agents/test_cookbook_agent.py",
        "bridge/groups/test_dataset.py",
        "bridge/env/test_env.py",
        "bridge/groups/test_group.py",
        "bridge/env/test_limits.py",
        "bridge/conversations/test_oracle.py",
        "bridge/tokens/test_rendering.py",
        "trainers/engine/test_cookbook.py",
        "trainers/loop/test_cookbook_loop.py",
        "trainers/training/test_cookbook.py",
    ),
    # `make quick`: tests without processes, models or training. About a minute on one core.
    "quick": (
        "bridge/chat",
        "bridge/clients/dialects/test_as_people_write.py",
        "bridge/clients/dialects/test_contract.py",
        "bridge/clients/dialects/test_gemini_tools.py",
        "bridge/clients/dialects/test_one_api.py",
        "bridge/clients/dialects/test_reading.py",
        "bridge/clients/test_one_sdk.py",
        "bridge/clients/test_sdks.py",
        "bridge/conversations",
        "bridge/env/test_check.py",
        "bridge/env/test_env.py",
        "bridge/env/test_limits.py",
        "bridge/env/test_scripted.py",
        "bridge/env/test_seats.py",
        "bridge/episode/test_agent.py",
        "bridge/groups/test_credit.py",
        "bridge/groups/test_curriculum.py",
        "bridge/groups/test_dataset.py",
        "bridge/groups/test_group.py",
        "bridge/groups/test_group_reward.py",
        "bridge/models",
        "bridge/records",
        "bridge/tokens/test_calls.py",
        "bridge/tokens/test_images.py",
        "bridge/tokens/test_prefill.py",
        "bridge/tokens/test_rendering.py",
        "bridge/tokens/test_template.py",
        "bridge/test_given_up.py",
        "bridge/test_imports.py",
        "bridge/test_parallel.py",
        "bridge/test_secrets.py",
        "trainers/commands/test_model_check.py",
        "trainers/engine/training/test_losses.py",
        "trainers/episodes/test_scores.py",
        "trainers/rundir/test_traces.py",
        "trainers/sweeping/test_results.py",
        "trainers/training/test_row_files.py",
    ),
}
"""Maps each marker to the files and folders whose tests get it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option used by folders whose tests need a separate environment."""
    parser.addoption(
        "--environment", help="name of the current environment: openai3, trainers, ..."
    )


@cache
def in_group(path: Path, group: str) -> bool:
    """Return whether the tests in this module get this marker from ``GROUPS``."""
    return any(path.is_relative_to(TESTS / part) for part in GROUPS[group])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """If only one group is run, skip all other modules, because importing them takes a minute."""
    group = config.getoption("markexpr")
    is_other = group in GROUPS and collection_path.is_file()
    return True if is_other and not in_group(collection_path, group) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the group markers, and deselect ``nightly`` tests outside nightly runs."""
    for item in items:
        for group in GROUPS:
            if in_group(item.path, group):
                item.add_marker(group)
    left = [] if IS_NIGHT else [item for item in items if item.get_closest_marker("nightly")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.fixture(autouse=True, scope="module")
def _imported_modules_are_not_collected() -> None:
    """Freeze all objects, so that garbage collections don't spend a second scanning modules."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Unfreeze all objects, because Hypothesis, if it is imported only now, looks up referrers."""
    gc.unfreeze()
