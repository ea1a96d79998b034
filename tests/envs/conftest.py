"""What the tests of ``evert.envs`` share: ids that are forgotten again, a count of leftovers."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

import evert.envs  # noqa: F401 (registers the games)
from evert.envs.as_gymnasium.registration import register_agent


@pytest.fixture
def register() -> Iterator[Callable[..., EnvSpec]]:
    """``register_agent``; what it registered is gone after the test."""
    before = set(gymnasium.registry)
    yield register_agent
    for id in set(gymnasium.registry) - before:
        del gymnasium.registry[id]


@pytest.fixture
def leftovers() -> Callable[..., dict[str, list[Any]]]:
    """Threads and files that were not there when the test began; empty when there are none."""
    env = gymnasium.make("evert/Identity-v0")  # loads the tokenizer, whatever that opens
    env.reset()
    env.close()
    threads = set(threading.enumerate())
    files = _open_files()

    def found(expected: dict[str, list[Any]] | None = None) -> dict[str, list[Any]]:
        """What is left, as soon as it is what is expected (None: nothing), or after a while."""
        deadline = time.monotonic() + 60.0  # what is just ending may end
        while True:
            gc.collect()
            new_threads = [t.name for t in threading.enumerate() if t not in threads]
            new_files = sorted(_open_files() - files)
            named = {"threads": new_threads, "files": new_files}
            left = {kind: names for kind, names in named.items() if names}
            if left == (expected or {}) or time.monotonic() > deadline:
                return left
            time.sleep(0.5)  # a collection holds up the very threads that are to end

    return found


def _open_files() -> set[str]:
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return {name for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}")}
