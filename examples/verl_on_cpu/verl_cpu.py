"""Lets verl train without a GPU, using a CPU platform and a rollout sampled by evert's engine.

verl imports this module in each of its processes (``VERL_USE_EXTERNAL_MODULES=verl_cpu``). Since
verl requests a GPU for each worker, we tell Ray that there is one
(``ray_kwargs.ray_init.num_gpus=1``). This module registers the platform and the rollout with verl
0.9.1, which has extension points for other hardware. It also works around two problems. On a CPU,
verl passes the backend's name twice to ``init_process_group``. If TRL is installed, verl patches a
class that no longer exists in TRL 1.16.
"""

# ruff: noqa: D102 (the methods are verl's)

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.utils import import_utils

import_utils.is_trl_available = lambda: False  # before verl calls it

from verl.workers.rollout import base  # noqa: E402
from verl.workers.rollout.replica import RolloutReplicaRegistry  # noqa: E402

_ANSWERS = {
    "device_count": 1,
    "get_device_name": "CPU",
    "is_available": True,
    "mem_get_info": (1 << 33, 1 << 33),
}


class _Device(types.ModuleType):
    """A stand-in for ``torch.cuda`` that uses ``torch.cpu``. Missing functions do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _ANSWERS:
            return lambda *_, **__: _ANSWERS[name]
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        return lambda *_, **__: 0 if "memory" in name else None


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """A single CPU as verl's device (``VERL_PLATFORM=cpu``)."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("verl_cpu_device")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing, since these methods are only needed on a GPU."""

    set_device = synchronize = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = nothing

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


def _replica() -> type:
    from verl_cpu_rollout import Replica

    return Replica


def _with_one_backend(init: Any) -> Any:
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        is_twice = backend in (None, "cpu:gloo,cpu:gloo")
        return init("gloo" if is_twice else backend, *args, **kwargs)

    return init_process_group


base._ROLLOUT_REGISTRY["evert", "async"] = "verl_cpu_rollout.Adapter"
RolloutReplicaRegistry.register("evert", _replica)
torch.distributed.init_process_group = _with_one_backend(torch.distributed.init_process_group)
