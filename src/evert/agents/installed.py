"""Finds the paths that a program needs in a sandbox: its installation and files in its arguments.

A sandbox contains the system's folders but no home folder. However, programs are often installed in
the home folder (npm, nvm, pyenv, pipx, uv), next to keys and personal files. A sandbox therefore
only shows these parts of an installation: ``PREFIX/bin``, the other ``PARTS``, and the targets of
links in ``bin``, because pipx, uv and Claude Code only create a link in ``~/.local/bin``.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from evert.agents.sandbox import system_folders

PARTS = "bin sbin lib lib32 lib64 libexec include share pyvenv.cfg conda-meta ssl"
"""The parts of an installation to show, except ``~/.local/share``, which may contain passwords."""


def needed(command: Sequence[str], variables: Mapping[str, str]) -> dict[str, Path]:
    """Return the paths that a command in a sandbox can see, in addition to system folders.

    Args:
        command: Program and arguments. Absolute paths in the arguments are included.
        variables: Environment variables. If a variable contains the absolute path of a file, the
            file is included. A folder in a variable such as ``PATH`` is treated as part of an
            installation.
    """
    values = _paths(part for text in variables.values() for part in text.split(os.pathsep))
    folders = [path for path in values if os.path.isdir(path)]
    program = shutil.which(command[0], path=variables.get("PATH"))
    files = {*values, *_paths(command[1:])} - {*folders}
    paths = {
        *_installation_paths((*folders, *_paths([program or ""]))),
        *(path for path in map(Path, files) if not _is_broad(path)),
    }
    outer = [path for path in paths if not paths & {*path.parents} and not _is_system(path)]
    return {str(path): path for path in outer}


def _paths(texts: Iterable[str]) -> list[str]:
    paths = [os.path.normpath(text) for text in texts if text.startswith("/") and "\0" not in text]
    return [path for path in paths if os.path.exists(path)]


@lru_cache(64)  # takes 5 ms, and installations rarely change during training
def _installation_paths(starts: tuple[str, ...]) -> frozenset[Path]:
    paths: set[Path] = set()
    visited: set[Path] = set()
    queue = [*map(Path, starts)]
    while queue:
        path = queue.pop()
        if path in visited or not os.path.exists(path):  # Path.exists may raise
            continue
        visited.add(path)
        queue += _link_targets(path)
        folder = path if path.is_dir() else path.parent
        if not _is_system(folder):
            paths.update(_parts_of(folder) or ([path] if path != folder else []))
            if folder.name == "bin" and os.access(folder, os.R_OK):
                queue += [entry for entry in folder.iterdir() if entry.is_symlink()]
    return frozenset(paths)


def _link_targets(path: Path) -> list[Path]:
    """Return a link's target, or the interpreter in a script's first line."""
    real = Path(os.path.realpath(path.parent))
    if path.is_symlink():
        return [Path(os.path.normpath(real / path.readlink()))]
    targets = [] if real == path.parent else [real / path.name]
    if path.is_file() and os.access(path, os.R_OK):
        with path.open("rb") as file:
            first = file.readline(256)
        if first.startswith(b"#!/"):
            targets.append(Path(os.fsdecode(first[2:].split()[0])))
    return targets


def _parts_of(folder: Path) -> list[Path]:
    """Return the paths that a program in this folder needs (never a whole home folder)."""
    if "node_modules" in folder.parts:
        return [Path(*folder.parts[: folder.parts.index("node_modules") + 1])]
    prefix = folder.parent if folder.name in ("bin", "sbin") else folder
    if _is_broad(prefix):
        return [] if prefix == folder else [folder]
    if prefix == folder and prefix.name != ".local":
        return [folder]
    names = [name for name in PARTS.split() if (prefix.name, name) != (".local", "share")]
    return [prefix / name for name in names if os.path.exists(prefix / name)]


def _is_broad(path: Path) -> bool:
    """Return whether the path is the user's home or one of its parents."""
    return Path(os.path.expanduser("~")).is_relative_to(path)


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(system) for system in system_folders())
