"""Captures decoding steps as CUDA graphs, which the host can launch as a single operation.

A step appends one token to each row, using hundreds of small operations. Launching them one by one
takes longer than running them on the GPU. A graph launches all of them together, but always uses
the same memory. We therefore capture a graph for each number of rows and columns, both rounded up,
and copy the inputs of each step into the graph's tensors.

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
    """Round up to a bucket size.

    Between consecutive powers of two, there are ``parts`` sizes, at least ``least`` apart.
    Capturing takes as long as several steps, so we want few sizes. Small batches can be padded at
    little cost, because a step with few rows spends most of its time reading the weights.
    """
    step = max(least, (1 << (size - 1).bit_length()) // (2 * parts))
    return -(-size // step) * step


class Graphs:
    """The captured steps of one batch."""

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
        """Return ``call(*inputs)``. Inputs are padded with zeros, or with rows of earlier calls.

        Args:
            owners: Objects whose memory ``call`` uses. If any of them is replaced, all steps are
                captured again.
            sizes: Number of rows to compute, and any other sizes that the operations depend on.
            call: Function of the inputs, each [rows]. It must not wait for the device.
            inputs: Tensors of shape [B].

        Returns:
            A tensor [B, H] that is valid until the next call.
        """
        if [*map(id, owners)] != [*map(id, self._owners)]:
            self._steps.clear()
            self._owners = owners
        self._capture = self._capture or _Capture(inputs[0].device)
        if (step := self._steps.get(sizes)) is None:
            step = self._steps[sizes] = _CapturedStep(call, sizes[0], inputs)
        return step.run(inputs, self._capture)[: len(inputs[0])]


class _CapturedStep:
    """Runs once without capturing, so that libraries can initialize, then captures the next run."""

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
    """Captures calls on one stream, using one memory pool.

    Graphs can share the pool because only one runs at a time, and we keep all result tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._has_failed = False
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._latest: Any = None
        """The latest graph, kept because PyTorch can't capture into a pool that has no graphs."""

    def __call__(self, call: Callable[[], Tensor]) -> tuple[Any, Tensor] | None:
        """Capture a call. Return its graph and the tensor into which replays write the result.

        Return None if this call or an earlier one couldn't be captured.
        """
        if self._has_failed:
            return None
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        stream = _stream(self._device, threading.get_ident())
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                # Other threads, such as a trainer's, may use the device during the capture.
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                try:
                    result = call()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            logger.warning(
                "Decoding without CUDA graphs, because capturing a step failed: %s", error
            )
            self._has_failed = True
            return None
        current.wait_stream(stream)
        self._latest = graph
        return graph, result


@cache
def _stream(device: torch.device, thread: int) -> Any:
    """Return a thread's capture stream. Cached because PyTorch keeps memory for every stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
