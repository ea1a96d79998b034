"""Tests of instrumented agents, with real instrumentations and in-memory exporters.

    .frameworks/instrumented/bin/python -m pytest tests/instrumented --environment instrumented

``frameworks/make_environment.py instrumented`` creates the environment. Without ``--environment``,
these tests are not collected, because the instrumentations are not installed in .venv.
"""

import pytest

HERE = "instrumented"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("environment") == HERE:
        config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")  # from dependencies


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("environment") == HERE else True
