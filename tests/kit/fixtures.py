"""Short names for pytest fixtures, and a few common assertions, waits and skips."""

import asyncio
import os
from collections.abc import Callable

import pytest

from evert.agents.sandbox import sandbox_problem

Patch = pytest.MonkeyPatch
Shown = pytest.CaptureFixture[str]
Logs = pytest.LogCaptureFixture


async def until(is_so: Callable[[], object]) -> None:
    """Wait up to a minute for a condition."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.005)


def assert_says(message: object, *words: str) -> None:
    """Assert that a message contains these words, such as the setting, the value and the advice."""
    assert [text for text in words if text not in str(message)] == []


def needs_sandbox() -> None:
    """Skip the test if there is no sandbox, or fail it if ``EVERT_SANDBOX=required``."""
    if problem := sandbox_problem():
        if os.environ.get("EVERT_SANDBOX") == "required":
            pytest.fail(problem)
        pytest.skip(problem)
