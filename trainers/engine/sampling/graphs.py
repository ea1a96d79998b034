"""CUDA graphs: decoding steps that the host launches as one.

A step appends one token to every row in some hundred small operations, which take the host longer
to launch one by one than they take a GPU. A graph launches all of them together, on the same memory
each time. So a step is captured for a number of rows and columns, both rounded up, and its inputs
are copied into the graph's own tensors.

Shapes: B rows, H hidden.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


def rounded(size: int, parts: int = 2, least: int = 1) -> int:
    """Round a size up to a multiple of ``least``, one of ``parts`` from a power of two to the next.

    A capture takes several steps, so sizes are few. For few rows a step reads the weights, and
    takes as long as for more of them.
    """
    step = max(least, (1 << (size - 1).bit_length()) // (2 * parts))
    return -(-size // step) * step


class Graphs:
    """The steps of one batch that were captured so far."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, ...], _CapturedStep] = {}
        self._owners: tuple[object, ...] = ()
        self._capture: _Capture | None = None

    def run(
        self,
        owners: tuple[object, ...],
        sizes: tuple[int, ...],
        call: Callable[..., Tensor],
        inputs: Sequence[Tensor],
    ) -> Tensor:
        """Return ``call(*inputs)`` for inputs that are padded with zeros or with earlier rows.

        Args:
            owners: Objects whose memory ``call`` uses. If one is replaced, all is captured again.
            sizes: Number of rows to compute, and whatever else the operations depend on.
            call: A function of the inputs [rows] that does not wait for the device.
            inputs: [B] each.

        Returns:
            [B, H], valid until the next call.
        """
        if [*map(id, owners)] != [*map(id, self._owners)]:
            self._steps.clear()
            self._owners = owners
        self._capture = self._capture or _Capture(inputs[0].device)
        if (step := self._steps.get(sizes)) is None:
            step = self._steps[sizes] = _CapturedStep(call, sizes[0], inputs)
        return step.run(inputs, self._capture)[: len(inputs[0])]


class _CapturedStep:
    """Runs once uncaptured, since libraries set themselves up; the second run is captured."""

    def __init__(self, call: Callable[..., Tensor], rows: int, inputs: Sequence[Tensor]) -> None:
        self._call = call
        self._inputs = [tensor.new_zeros(rows) for tensor in inputs]
        self._has_run = False
        self._captured: tuple[Any, Tensor] | None = None

    def run(self, inputs: Sequence[Tensor], capture: "_Capture") -> Tensor:
        for target, source in zip(self._inputs, inputs, strict=True):
            target[: len(source)].copy_(source)
        if self._captured is None and self._has_run:
            self._captured = capture(lambda: self._call(*self._inputs))
        self._has_run = True
        if self._captured is None:
            return self._call(*self._inputs)
        graph, result = self._captured
        graph.replay()
        return result


class _Capture:
    """Captures calls on one stream, into one pool of memory.

    Graphs may share a pool: one runs at a time, and all results are kept.
    """

    def __init__(self, device: torch.device) -> None:
        self._has_failed = False
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._latest: Any = None
        """The latest graph: PyTorch cannot capture into a pool whose graphs are all gone."""

    def __call__(self, call: Callable[[], Tensor]) -> tuple[Any, Tensor] | None:
        """Return the graph of a call, and what each replay writes its result into.

        None: the call, or one before it, could not be captured.
        """
        if self._has_failed:
            return None
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        stream = _stream(self._device, threading.get_ident())
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                # Other threads may use the device meanwhile: a trainer does.
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                try:
                    result = call()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            logger.warning(
                "Decoding without CUDA graphs, since a step cannot be captured: %s", error
            )
            self._has_failed = True
            return None
        current.wait_stream(stream)
        self._latest = graph
        return graph, result


@cache
def _stream(device: torch.device, thread: int) -> Any:
    """A thread's stream for captures; PyTorch keeps memory for each stream that was used."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
