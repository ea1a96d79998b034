"""Instrumented agents, with the real instrumentations and exporters in memory.

    .frameworks/instrumented/bin/python -m pytest tests/instrumented --environment instrumented

``frameworks/make_environment.py instrumented`` makes the environment. Without ``--environment``
nothing here is collected: the instrumentations are not in .venv.
"""

import pytest

HERE = "instrumented"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("environment") == HERE:
        config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")  # of theirs


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("environment") == HERE else True
