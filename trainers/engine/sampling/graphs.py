"""Captures decoding steps as CUDA graphs, which the host launches as one operation.

A step appends one token to every row in hundreds of small operations. Launching them one by one
takes the host longer than a GPU takes to run them. A graph launches all of them together, on the
same memory each time. So a step is captured for a number of rows and columns, both rounded up, and
its inputs are copied into the graph's own tensors.

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
    """Round up to one of ``parts`` sizes per power of two, at least ``least`` apart.

    A capture takes as long as several steps, so there must be few sizes. With few rows, a step
    mostly reads the weights, and more rows take no longer.
    """
    step = max(least, (1 << (size - 1).bit_length()) // (2 * parts))
    return -(-size // step) * step


class Graphs:
    """The steps of one batch that have been captured so far."""

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
        """Return ``call(*inputs)``, with inputs padded by zeros or by earlier rows.

        Args:
            owners: Objects whose memory ``call`` uses. If one is replaced, all is captured again.
            sizes: Number of rows to compute, and any other sizes that the operations depend on.
            call: A function of the inputs, each [rows], that does not wait for the device.
            inputs: Tensors [B].

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
    """Runs once uncaptured, so that libraries can set themselves up; captures the second run."""

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

    Graphs may share a pool because one runs at a time and all results are kept.
    """

    def __init__(self, device: torch.device) -> None:
        self._has_failed = False
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._latest: Any = None
        """The latest graph, kept because PyTorch cannot capture into a pool without graphs."""

    def __call__(self, call: Callable[[], Tensor]) -> tuple[Any, Tensor] | None:
        """Return the graph of a call, and the tensor that each replay writes its result into.

        Return None if this call or an earlier one could not be captured.
        """
        if self._has_failed:
            return None
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        stream = _stream(self._device, threading.get_ident())
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                # Other threads, such as a trainer's, may use the device meanwhile.
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
    """Return a thread's stream for captures: PyTorch keeps memory for every used stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
