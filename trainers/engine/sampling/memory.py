"""Measures free memory and decides how much of it a sampler's key-value cache may use."""

from typing import Any

import torch

from evert.trainers.engine.models.base_models import attention_sizes
from evert.trainers.system.machine import free_memory

_CACHE_SHARE = 4  # a sampler's key-value cache may use 1/4 of the free memory
_CACHE_BYTES = 2 * 2**30  # maximum cache size on a CPU, where samplers don't need more
_OUT_OF_MEMORY = ("can't allocate memory", "MPS backend out of memory", "Invalid buffer size")


def free_bytes(device: torch.device) -> int:
    """Return a device's free memory in bytes."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    if device.type == "mps":  # shares the machine's memory
        used = torch.mps.current_allocated_memory()
        free = free_memory() + torch.mps.driver_allocated_memory() - used
        return max(0, min(free, torch.mps.recommended_max_memory() - used))
    return free_memory()


def cache_token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return the size in bytes of one token's keys and values."""
    config = config.get_text_config()
    _, key_heads, size = attention_sizes(config)
    return int(2 * config.num_hidden_layers * key_heads * size * dtype.itemsize)


def cache_bytes(device: torch.device, free: int | None = None) -> int:
    """Return the maximum size of a sampler's key-value cache, in bytes.

    ``free`` is the free memory (default: measured now).
    """
    share = (free_bytes(device) if free is None else free) // _CACHE_SHARE
    return share if device.type == "cuda" else min(_CACHE_BYTES, share)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a device or this machine is out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    )
