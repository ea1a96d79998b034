"""Runs calls in parallel on several cores.

If passes are too short to benefit from PyTorch's own multithreading, we run several at once in our
own threads. Results are returned in the order of the items, so sums are bitwise identical on any
number of cores.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from evert.trainers.system.machine import cores

Item = TypeVar("Item")
Result = TypeVar("Result")

_SOFT = 1  # OpenMP's omp_pause_soft, which keeps the settings


def lanes(device: torch.device) -> int:
    """Return how many passes to run in parallel: cores / PyTorch threads on a CPU, 1 on a GPU."""
    return max(1, cores() // torch.get_num_threads()) if device.type == "cpu" else 1


def thread_map(call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Map ``call`` over the items, with one thread per item.

    This is worthwhile for calls that take milliseconds.
    """
    if len(items) < 2:
        return [*map(call, items)]
    with ThreadPoolExecutor(len(items) - 1, thread_name_prefix="evert-lane") as pool:
        futures = [pool.submit(call, item) for item in items[1:]]
        return [call(items[0]), *(future.result() for future in futures)]


def in_chunks(
    call: Callable[[slice], Tensor], rows: int, least: int, device: torch.device
) -> Tensor:
    """Split a batch into at most one slice per core, and run ``call`` on the slices in parallel.

    If the batch is split, each slice has at least ``least`` rows.
    """
    count = min(rows // least, lanes(device)) if rows >= 2 * least else 1
    if count < 2:
        return call(slice(0, rows))
    cuts = [rows * part // count for part in range(count + 1)]
    return torch.cat(
        thread_map(torch.inference_mode()(call), [slice(*cut) for cut in pairwise(cuts)])
    )


def bounded_map(
    call: Callable[[Item], Result], items: Sequence[Item], limit: int
) -> Iterator[Result]:
    """Yield ``call(item)`` for each item, in order, running at most ``limit`` calls in parallel."""
    if min(limit, len(items)) < 2:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(limit, thread_name_prefix="evert-lane") as pool:
        running: deque[Future[Result]] = deque()
        for item in items:
            running.append(pool.submit(call, item))
            if len(running) > limit:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


class WorkerThread(ThreadPoolExecutor):
    """A single thread that runs calls in order and uses no CPU while it is idle."""

    def __init__(self, name: str) -> None:
        super().__init__(1, thread_name_prefix=name)

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Queue a call, like ``Executor.submit``."""

        def run() -> Result:
            try:
                return fn(*args, **kwargs)
            finally:
                release_threads()

        return super().submit(run)


def release_threads() -> None:
    """Stop the calling thread's OpenMP helper threads. Its next pass starts them again.

    GNU OpenMP creates helper threads for each thread that computes. Helpers spin while they wait
    for work. If there are more helpers than cores, counting idle helpers, all of them sleep instead
    of spinning, and a pass takes up to 1.7 times as long.
    """
    openmp = _openmp()
    if openmp is not None and torch.get_num_threads() > 1:
        openmp.omp_pause_resource_all(_SOFT)


@cache
def _openmp() -> Any:
    """Return the GNU OpenMP library bundled with PyTorch, or None if PyTorch uses another one."""
    for file in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"):
        library = ctypes.CDLL(str(file))
        if hasattr(library, "omp_pause_resource_all"):
            return library
    return None
