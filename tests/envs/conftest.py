"""Fixtures for the tests of ``evert.envs``: temporary ids, and a check for leftovers."""

import gc
import threading
import time
from collections.abc import Callable, Iterator

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from tests.faults.scene import open_descriptors

import evert.envs  # noqa: F401 (registers the games)
from evert.envs.as_gymnasium.registration import register_agent


@pytest.fixture
def register() -> Iterator[Callable[..., EnvSpec]]:
    """Yield ``register_agent``, and unregister the new environments after the test."""
    before = set(gymnasium.registry)
    yield register_agent
    for id in set(gymnasium.registry) - before:
        del gymnasium.registry[id]


@pytest.fixture
def leftovers() -> Callable[[], dict[str, list[str]]]:
    """Return a function that lists the threads and files opened since the start of the test."""
    env = gymnasium.make("evert/Identity-v0")  # so that whatever the tokenizer opens doesn't count
    env.reset()
    env.close()
    threads, files = set(threading.enumerate()), open_descriptors()

    def found() -> dict[str, list[str]]:
        """Wait up to a minute until nothing is left over; return whatever remains."""
        deadline = time.monotonic() + 60.0  # give threads time to finish
        while True:
            gc.collect()
            new = [thread.name for thread in threading.enumerate() if thread not in threads]
            new_by_kind = {"threads": new, "files": sorted(open_descriptors() - files)}
            leftovers_now = {kind: names for kind, names in new_by_kind.items() if names}
            if not leftovers_now or time.monotonic() > deadline:
                return leftovers_now
            time.sleep(0.5)  # let the threads run: garbage collection blocks them

    return found
