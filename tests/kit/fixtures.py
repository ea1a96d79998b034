"""Short names for pytest's fixtures, and conditions to wait for or to skip without."""

import asyncio
import os
from collections.abc import Callable

import pytest

from evert.agents.sandbox import sandbox_problem

Patch = pytest.MonkeyPatch
Shown = pytest.CaptureFixture[str]
Logs = pytest.LogCaptureFixture


async def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition, up to a minute."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 (nobody tells when)
            await asyncio.sleep(0.005)


def assert_says(message: object, *words: str) -> None:
    """Assert that a message has these words, such as the setting, the value, what to do."""
    assert [text for text in words if text not in str(message)] == []


def needs_sandbox() -> None:
    """Skip a test without a sandbox, or fail it if ``EVERT_SANDBOX=required``."""
    if problem := sandbox_problem():
        if os.environ.get("EVERT_SANDBOX") == "required":
            pytest.fail(problem)
        pytest.skip(problem)
