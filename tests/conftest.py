"""What all tests rely on: that Ctrl-C reaches them, and the processes that they start.

Some need packages that are not in .venv; they are collected with ``--environment`` alone, in the
environment of that name (``frameworks/make_environment.py``).
"""

import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option for all folders whose tests need an environment of their own."""
    parser.addoption("--environment", help="the environment that this is: openai3, trainers, ...")


def pytest_configure() -> None:
    """Listen to SIGINT even where the shell that started us in the background had it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
