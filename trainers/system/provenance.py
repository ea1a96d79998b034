"""Where results come from: package versions, machine and git revision."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from evert.trainers.system.machine import cores


def origin() -> dict[str, Any]:
    """Return ``versions``, ``git`` and ``machine`` for a record. The hostname is not included."""
    system, processor = platform.system(), platform.machine()
    return {
        "versions": _versions(),
        "git": _git_revision(),
        "machine": {"system": system, "processor": processor, "cpus": cores()},
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("evert", "tinker", "tinker-cookbook", "torch", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def _git_revision() -> str | None:
    """Return the git revision, with "-dirty" if there are changes; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
