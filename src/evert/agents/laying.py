"""Writes files to an episode's folder without following links that a command may have left there.

Every folder in a path is opened relative to its parent, and never through a link. A file is written
under a temporary name and then renamed, which replaces any link or named pipe with that name.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def lay(room: Path, inner: PurePath, content: bytes | Path) -> None:
    """Write bytes to a file, or copy a file or folder. Links inside a folder stay links.

    Raises:
        OSError: There is a link or a file where a folder is needed, or vice versa.
    """
    if isinstance(content, Path) and content.is_dir():
        with _open_folder(room, inner):
            pass  # also copy empty folders
        for entry in content.iterdir():
            if entry.is_symlink():
                with _open_folder(room, inner) as folder, _new_name(folder, entry.name) as name:
                    os.symlink(entry.readlink(), name, dir_fd=folder)
            else:
                lay(room, inner / entry.name, entry)
        return
    with _open_folder(room, inner.parent) as folder, _new_name(folder, inner.name) as name:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
                return
            with content.open("rb") as source:
                shutil.copyfileobj(source, file)
                status = os.fstat(source.fileno())
            file.flush()
            os.fchmod(file.fileno(), status.st_mode & 0o7777)
            os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


@contextmanager
def _open_folder(room: Path, inner: PurePath) -> Iterator[int]:
    """Open a folder in ``room``, creating missing folders, and yield its file descriptor."""
    folder = os.open(room, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in inner.parts:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
            below = os.open(part, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _new_name(folder: int, name: str) -> Iterator[str]:
    """Yield a temporary file name. At the end of the block, it is renamed to ``name``."""
    temporary = f".evert-{secrets.token_hex(8)}"
    try:
        yield temporary
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
