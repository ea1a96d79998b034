"""evert's agents under other trainers, with the real packages.

    .frameworks/trainers/bin/python -m pytest tests/other_trainers --environment trainers

``frameworks/make_environment.py trainers`` makes the environment. Without ``--environment`` nothing
here is collected: the packages are not in .venv.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--environment", choices=["trainers"], help="what is installed here")


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, but for what these packages say of each other as they are imported."""
    for category in ("DeprecationWarning", "FutureWarning", "UserWarning:verl"):
        config.addinivalue_line("filterwarnings", f"ignore::{category}")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if config.getoption("--environment", default=None) is None else None
