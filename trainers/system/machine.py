"""This machine: its processor's maker, and this process's cores and free memory."""

import os
import platform
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_PROCESSOR = Path("/proc/cpuinfo")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def made_by_amd() -> bool:
    """Return whether the system reports an AMD processor."""
    text = _PROCESSOR.read_text() if _PROCESSOR.exists() else platform.processor()
    return "AuthenticAMD" in text


def free_memory() -> int:
    """Return how many bytes can be allocated without swapping, within a container's limit."""
    return min(int(psutil.virtual_memory().available), _container_bytes())


def _container_bytes() -> int:
    """Return the bytes left within a container's limit, ignoring file caches; 2**62: no limit."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        used = dict(line.split() for line in lines)
        return max(0, limit - int(used["anon"]) - int(used.get("slab_unreclaimable", 0)))
    except (OSError, ValueError, KeyError):
        return 2**62
