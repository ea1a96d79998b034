"""This machine: its processor's maker, and the cores and free memory for this process."""

import os
import platform
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_PROCESSOR = Path("/proc/cpuinfo")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def made_by_amd() -> bool:
    """Whether the system reports a processor by AMD."""
    text = _PROCESSOR.read_text() if _PROCESSOR.exists() else platform.processor()
    return "AuthenticAMD" in text


def free_memory() -> int:
    """Bytes that can be allocated without swapping and within a container's limit."""
    return min(int(psutil.virtual_memory().available), _container_bytes())


def _container_bytes() -> int:
    """Bytes left within a container's limit, without file caches; 2**62 if it has no limit."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        used = dict(line.split() for line in lines)
        return max(0, limit - int(used["anon"]) - int(used.get("slab_unreclaimable", 0)))
    except (OSError, ValueError, KeyError):
        return 2**62
