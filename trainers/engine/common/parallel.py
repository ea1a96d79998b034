"""Work on several of this machine's cores: threads of our own, and PyTorch's for each of them.

Where passes are too short for PyTorch's threads, they run side by side in ours. Results come in the
order of the work: sums are the same to the bit on any number of cores.
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

_SOFT = 1  # OpenMP's omp_pause_soft: what was set stays


def lanes(device: torch.device) -> int:
    """Passes that may run at a time: as many as there are cores for PyTorch's threads of each."""
    return max(1, cores() // torch.get_num_threads()) if device.type == "cpu" else 1


def all_at_once(call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """What a call returns of each item, each in a thread of its own: for work of milliseconds."""
    if len(items) < 2:
        return [*map(call, items)]
    with ThreadPoolExecutor(len(items) - 1, thread_name_prefix="evert-lane") as pool:
        others = [pool.submit(call, item) for item in items[1:]]
        return [call(items[0]), *(other.result() for other in others)]


def in_stretches(
    call: Callable[[slice], Tensor], rows: int, least: int, device: torch.device
) -> Tensor:
    """What a call computes of a batch's rows, a stretch of ``least`` or more on each core."""
    count = min(rows // least, lanes(device)) if rows >= 2 * least else 1
    if count < 2:
        return call(slice(0, rows))
    cuts = [rows * part // count for part in range(count + 1)]
    return torch.cat(
        all_at_once(torch.inference_mode()(call), [slice(*cut) for cut in pairwise(cuts)])
    )


def side_by_side(
    call: Callable[[Item], Result], items: Sequence[Item], most: int
) -> Iterator[Result]:
    """What a call returns of each item, in their order, at most ``most`` calls at a time."""
    if min(most, len(items)) < 2:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(most, thread_name_prefix="evert-lane") as pool:
        begun: deque[Future[Result]] = deque()
        for item in items:
            begun.append(pool.submit(call, item))
            if len(begun) > most:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


class Worker(ThreadPoolExecutor):
    """One thread that runs what it is given in order, and holds no core in between."""

    def __init__(self, name: str) -> None:
        super().__init__(1, thread_name_prefix=name)

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Run a call, as an executor does."""

        def run() -> Result:
            try:
                return fn(*args, **kwargs)
            finally:
                give_back_threads()

        return super().submit(run)


def give_back_threads() -> None:
    """End the threads that PyTorch computed with for this thread; the next pass starts them anew.

    GNU's OpenMP gives each thread that computes helpers of its own, which spin for their next work.
    Where it has more than there are cores, idle ones counted, it has all of them sleep instead, and
    a pass takes up to 1.7 times as long.
    """
    openmp = _openmp()
    if openmp is not None and torch.get_num_threads() > 1:
        openmp.omp_pause_resource_all(_SOFT)


@cache
def _openmp() -> Any:
    """GNU's OpenMP as PyTorch brings it; None where it brings another."""
    for file in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"):
        library = ctypes.CDLL(str(file))
        if hasattr(library, "omp_pause_resource_all"):
            return library
    return None
