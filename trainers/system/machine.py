"""Information about this machine: CPU vendor, available cores and free memory."""

import os
import platform
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_PROCESSOR = Path("/proc/cpuinfo")


def cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def made_by_amd() -> bool:
    """Return whether this machine has an AMD processor."""
    text = _PROCESSOR.read_text() if _PROCESSOR.exists() else platform.processor()
    return "AuthenticAMD" in text


def free_memory() -> int:
    """Return how many bytes can be allocated without swapping or exceeding a container limit."""
    return min(int(psutil.virtual_memory().available), _container_bytes())


def _container_bytes() -> int:
    """Return how many more bytes the container may use, or 2**62 if it has no limit.

    File caches don't count as used memory.
    """
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        used = dict(line.split() for line in lines)
        return max(0, limit - int(used["anon"]) - int(used.get("slab_unreclaimable", 0)))
    except (OSError, ValueError, KeyError):
        return 2**62
