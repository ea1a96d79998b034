"""A fake GPU for machines without one: CPU tensors that follow the rules of CUDA or MPS.

    NumbersOnDevice   a tensor that claims to be on the device but keeps its numbers on the CPU
    StandIn           a device for such tensors, which records when the host waited for it
    stand_in          replaces CUDA or MPS with a StandIn, for all threads started in its block

Operations run on the CPU, so their results can be compared with those of a CPU. Whatever PyTorch
refuses on CUDA is refused here: mixing tensors of two devices in one operation, converting a tensor
on the device to a NumPy array, ``mm(out_dtype=)`` with types that CUDA does not support. The
kernels are the CPU's, so this does not test a GPU's kernels, speed or memory.

MPS also refuses float64. It has no graphs, streams or events, so a ``non_blocking`` copy to the
host never arrives. Two operations that silently give wrong results on some of Apple's machines
raise an error here: PyTorch's attention, and sums of many products.

A graph replays the captured operations on the same memory, without running Python.
As on CUDA, a capture refuses waits and copies between host and device.

The host waits where PyTorch waits on CUDA: for copies between host and device that are not
``non_blocking``, for numbers that Python reads, and for results whose shape depends on numbers
(``nonzero``, boolean indices, ``unique``).
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn
from unittest.mock import Mock, patch
from weakref import WeakKeyDictionary, WeakSet

import torch
from safetensors import safe_open
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import modeling_utils

CUDA, MPS = torch.device("cuda", 0), torch.device("mps", 0)
HOST = torch.device("cpu")
BELOW = torch.device("lazy", 0)
"""The device that PyTorch itself sees. It has no other use. Autograd runs the operations of this
device in the calling thread. On a machine without a GPU, autograd would not do so for CUDA."""

MEMORY = 64 * 2**30
"""The free memory that the device reports, in bytes."""

HALVES = {torch.bfloat16, torch.float16}
DOUBLES = {torch.float64, torch.complex128}

MPS_SUM = 2**15 - 2
"""The most products that MPS sums correctly on an M1 or M2."""

aten = torch.ops.aten

PRODUCTS = {"aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::baddbmm"}

INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
"""Operations that also accept indices on the host."""

READING = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::equal", "aten::is_nonzero",
}  # fmt: skip
"""Operations for which the host must read numbers before it can continue."""


@dataclass(frozen=True)
class Wait:
    """A moment at which the host waited for the device."""

    why: str
    """The operation."""
    place: str
    """The line of evert that caused the wait, for example ``models/logits.py:42``."""


@dataclass
class StandIn:
    """A device, and a record of what happened on it."""

    device: torch.device
    """The device that it replaces."""
    waits: list[Wait] = field(default_factory=list)
    """In chronological order. Several threads append to it."""
    replays: int = 0
    """How often a graph was launched."""
    pending: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    """For each thread, the copies to the host that are still pending: (target, numbers to copy)."""
    captures: dict[int, list[Any]] = field(default_factory=dict)
    """For each thread, the operations of the graph being captured."""

    def waited(self, call: Callable[[], Any]) -> Counter[Wait]:
        before = len(self.waits)
        call()
        return Counter(self.waits[before:])

    def wait(self, why: str) -> None:
        if threading.get_ident() in self.captures:
            raise RuntimeError(f"{why} is not permitted when stream is capturing")
        self.waits.append(Wait(why.removeprefix("aten::"), _place()))

    def run(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = operation._schema.name
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, NumbersOnDevice)]
        kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        target = kwargs.get("device")
        if torch.is_inference_mode_enabled():  # composite operations are not decomposed
            with _EveryOperation():  # type: ignore[no-untyped-call]
                result = operation.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if name in ("aten::_to_copy", "aten::copy_"):
            return self._copy(operation, args, kwargs)
        if ours:
            _check_devices(name, operation, args, kwargs)
            self._note_reading(name, args)
        if target is not None:
            on_device = _is_ours(target)
            kwargs = {**kwargs, "device": HOST if on_device else target}
        else:
            on_device = bool(ours)
        result = self._computed(operation, tree_map(_numbers, args), tree_map(_numbers, kwargs))
        return _laid_on_device(operation, result, ours) if on_device else result

    def _computed(self, operation: Any, args: Any, kwargs: Any) -> Any:
        if operation._schema.name in PRODUCTS and self.device == MPS:
            first, second = [arg for arg in args if isinstance(arg, Tensor)][-2:]
            if first.shape[-1] > MPS_SUM and min(first.shape[-2], second.shape[-1]) > 15:
                raise RuntimeError(f"MPS adds up {first.shape[-1]} products wrongly")
        if operation in (aten.mm.dtype, aten.bmm.dtype):
            first, second, wanted = args
            wrong = {first.dtype, second.dtype} - HALVES or wanted != torch.float32
            if wrong or self.device != CUDA:
                raise RuntimeError(f"mm(out_dtype={wanted}) of {first.dtype} is not CUDA's")
            operation = _float_product
        result = operation(*args, **kwargs)
        if (capture := self.captures.get(threading.get_ident())) is not None:
            capture.append((operation, args, kwargs, result))
        return result

    def _note_reading(self, name: str, args: Any) -> None:
        if name in READING:
            self.wait(name)
        elif name in INDEXING:
            indices = [index for index in args[1] if index is not None]
            if any(not isinstance(index, NumbersOnDevice) for index in indices):
                self.wait("index from the host")
            elif any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self.wait("boolean index")

    def _copy(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """Copy between devices, or within one."""
        if operation._schema.name == "aten::copy_":
            source, result = args[1], args[0]
            to_device = isinstance(result, NumbersOnDevice)
            self._computed(operation, (_numbers(result), _numbers(source), *args[2:]), {})
            waits = not (args[2:] and args[2])
        else:
            source, target = args[0], kwargs.get("device")
            from_device = isinstance(source, NumbersOnDevice)
            to_device = from_device if target is None else _is_ours(target)
            if not from_device and not to_device:
                return operation(*args, **kwargs)
            numbers = self._computed(operation, (_numbers(source),), {**kwargs, "device": HOST})
            result = NumbersOnDevice(numbers) if to_device else numbers
            waits = not kwargs.get("non_blocking")
            if from_device and not to_device and not waits:
                copies = self.pending.setdefault(threading.get_ident(), [])
                copies.append((result, numbers.clone()))
                result.zero_()
        waits = waits or threading.get_ident() in self.captures
        if waits and isinstance(source, NumbersOnDevice) != to_device:
            self.wait("copy to the device" if to_device else "copy to the host")
        return result


_current = StandIn(CUDA)
"""The device in use."""


class Stream:
    """A stream, or the current stream. Without a device, CUDA would use the thread's device."""

    def __init__(self, device: torch.device) -> None:
        assert device == CUDA

    def wait_stream(self, other: "Stream") -> None:
        """Do nothing, because all work finishes immediately."""


class Event:
    """A point in the device's work that the host can wait for."""

    def record(self, stream: Stream) -> None:
        """Note the current work. Without a stream, CUDA uses the stream of the thread's device."""
        self._copies = _current.pending.pop(threading.get_ident(), [])

    def synchronize(self) -> None:
        """Wait for the noted work to finish."""
        _current.wait("event")
        for result, numbers in self._copies:
            result.copy_(numbers)


class Graph:
    """A CUDA graph: the captured operations and the memory that they read and write."""

    _of_pools: ClassVar["WeakKeyDictionary[Any, WeakSet[Graph]]"] = WeakKeyDictionary()

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        if not self._of_pools.get(pool, True):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED: the pool's graphs are gone")
        self._of_pools.setdefault(pool, WeakSet()).add(self)
        self._operations = _current.captures[threading.get_ident()] = []

    def capture_end(self) -> None:
        del _current.captures[threading.get_ident()]

    def replay(self) -> None:
        _current.replays += 1
        for operation, args, kwargs, results in self._operations:
            again = operation(*args, **kwargs)
            for old, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class NumbersOnDevice(Tensor):
    numbers: Tensor
    """The values, on the CPU."""

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "NumbersOnDevice":
        make: Any = torch.Tensor._make_wrapper_subclass
        if _current.device == MPS and numbers.dtype in DOUBLES:
            raise TypeError(f"Cannot convert a MPS Tensor to {numbers.dtype}")
        made: NumbersOnDevice = make(
            cls, numbers.shape, numbers.stride(), numbers.storage_offset(),
            dtype=numbers.dtype, device=BELOW,
        )  # fmt: skip
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _current.run(func, args, kwargs or {})

    device = property(lambda self: _current.device)
    is_cuda = property(lambda self: _current.device == CUDA)
    is_mps = property(lambda self: _current.device == MPS)
    is_cpu = property(lambda self: False)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"NumbersOnDevice({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copied: Tensor = NumbersOnDevice(self.numbers.clone())
            if isinstance(self, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
            memo[id(self)] = copied
        return memo[id(self)]

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.numbers.untyped_storage()

    def tolist(self) -> Any:
        _current.wait("tolist")
        return self.numbers.tolist()

    def numpy(self, *, force: bool = False) -> NoReturn:
        kind = _current.device
        raise TypeError(f"can't convert {kind} device type tensor to numpy. Use Tensor.cpu() first")


class _EveryOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Intercepts operations that have no tensor on the device yet but may create one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _current.run(func, args, kwargs or {})


@contextmanager
def _every_operation() -> Iterator[None]:
    # torch.tensor(..., device=) creates a tensor on the CPU. We see the operation that moves it.
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with _EveryOperation():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(False)


@contextmanager
def stand_in(device: torch.device = CUDA) -> Iterator[StandIn]:
    """Replace a device with a stand-in, in this thread and in threads started in the block."""
    global _current
    _current = StandIn(device)
    run = threading.Thread.run

    def run_with(thread: threading.Thread) -> None:
        with _every_operation():
            run(thread)

    with (
        _in_place_of_cuda() if device == CUDA else _in_place_of_mps(),
        patch.object(torch.__future__, "_swap_module_params_on_conversion", True),  # keeps ties
        patch.object(threading.Thread, "run", run_with),
        _every_operation(),
    ):
        yield _current


def _in_place_of_cuda() -> Any:
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "_lazy_init": lambda: None,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "CUDAGraph": Graph,
        "Stream": Stream,
        "Event": Event,
        "current_stream": Stream,
        "stream": lambda stream: nullcontext(),
        "graph_pool_handle": Mock,
    }
    return patch.multiple(torch.cuda, **answers)


@contextmanager
def _in_place_of_mps() -> Iterator[None]:
    generator = torch.Generator()
    answers: dict[str, Any] = {
        "device_count": lambda: 1,
        "recommended_max_memory": lambda: MEMORY,
        "driver_allocated_memory": lambda: 0,
        "current_allocated_memory": lambda: 0,
        "manual_seed": generator.manual_seed,
        "get_rng_state": lambda device=MPS: generator.get_state(),
        "set_rng_state": lambda state, device=MPS: generator.set_state(state),
    }
    refusal = AssertionError("PyTorch's attention is wrong on MPS for some shapes and types")
    with (
        patch.multiple(torch.mps, **answers),
        patch.object(torch.backends.mps, "is_available", lambda: True),
        patch.object(torch.nn.functional, "scaled_dot_product_attention", side_effect=refusal),
        patch.object(modeling_utils, "safe_open", _open_on_the_host),
    ):
        yield


def _open_on_the_host(file: Any, **options: Any) -> Any:
    """Open weights on the CPU, because safetensors writes to MPS from Rust, which we cannot see."""
    return safe_open(file, **{**options, "device": "cpu"})


def _check_devices(name: str, operation: Any, args: Any, kwargs: Any) -> None:
    """Raise an error for tensors on different devices if CUDA would raise one."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if name in INDEXING and isinstance(args[0], NumbersOnDevice):
        tensors = [args[0], *args[2:3]]  # indices may be on any device
    scalars = name in INDEXING or name == "aten::fill_" or torch.Tag.pointwise in operation.tags
    strangers = [
        tensor
        for tensor in tensors
        if not isinstance(tensor, NumbersOnDevice) and (tensor.ndim or not scalars)
    ]
    if strangers:
        shapes = [tuple(tensor.shape) for tensor in strangers]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} at {_place()} got cpu "
            f"tensors of shapes {shapes} beside {_current.device}"
        )


def _is_ours(device: Any) -> bool:
    return torch.device(device).type in (_current.device.type, BELOW.type)


def _numbers(leaf: Any) -> Any:
    return leaf.numbers if isinstance(leaf, NumbersOnDevice) else leaf


def _laid_on_device(operation: Any, result: Any, ours: Sequence[NumbersOnDevice]) -> Any:
    """Wrap results as tensors on the device. A tensor changed in place stays the same object."""
    known = {id(tensor.numbers): tensor for tensor in ours}
    # A view tracks versions only if its base tensor does.
    views = operation.is_view and ours
    mode = torch.inference_mode(ours[0].is_inference()) if views else nullcontext()

    def laid(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, NumbersOnDevice):
            return leaf
        # resolve_conj: PyTorch only marks conjugates, and the stand-in would ignore the mark.
        return known[id(leaf)] if id(leaf) in known else NumbersOnDevice(leaf.resolve_conj())

    with mode:
        return tree_map(laid, result)


def _float_product(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    return first.float() @ second.float()


def _place() -> str:
    """Return the innermost line of the engine on the call stack."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        _, match, rest = frame.f_code.co_filename.partition("/trainers/engine/")
        if match and "/tests/" not in frame.f_code.co_filename:
            return f"{rest}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"
