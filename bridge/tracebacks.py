"""Exceptions formatted for an agent's author: only the frames of the author's own code."""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

import evert.bridge
from evert.bridge.errors import text_of

MOST_FRAMES = 12
MOST_LEAVES = 4  # maximum number of exceptions to show from an exception group

_HOMES = [evert.bridge.__path__[0], str(Path(evert.__file__).parent / "agents")]
"""Folders of the code that starts an agent and carries its calls."""
_PATHS = sysconfig.get_paths()
_EVERT, _PACKAGES, _STANDARD = (
    tuple(str(Path(folder).resolve()) for folder in folders)
    for folders in (_HOMES, [_PATHS["purelib"], _PATHS["platlib"]], [_PATHS["stdlib"]])
)


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return an exception's frames without those of evert and libraries, outermost first."""
    return _frames(error, "")


def leaves(error: BaseException) -> list[BaseException]:
    """Return all exceptions nested in an exception group, in order; else just ``error``."""
    exceptions, pending = list[BaseException](), [error]
    while pending:
        exception = pending.pop()
        if isinstance(exception, BaseExceptionGroup):
            pending += reversed(exception.exceptions)
        else:
            exceptions.append(exception)
    return exceptions


def name_and_message(error: BaseException) -> tuple[str, str]:
    """Return an exception's class name and message; a group's message includes its exceptions.

    A group with a single exception is treated as that exception.
    """
    exceptions = leaves(error)
    if len(exceptions) == 1:
        return type(exceptions[0]).__name__, text_of(exceptions[0])
    texts = [f"{type(leaf).__name__}: {text_of(leaf)}" for leaf in exceptions[:MOST_LEAVES]]
    return type(error).__name__, "; ".join([text_of(error), *texts])


def agent_traceback(error: BaseException) -> str:
    """Return an exception's traceback in Python's format, with only the agent's own frames.

    Frames of evert and of libraries are left out. If the agent itself is part of a library, the
    frames of installed packages are shown. For a group, the result has a traceback per exception;
    an exception without agent frames gets the group's frames. Without any frames, it is "".
    """
    around = own_frames(error) or _frames(error, "packages")
    pairs = [(own_frames(leaf) or around, leaf) for leaf in leaves(error)[:MOST_LEAVES]]
    return "\n".join(_format(frames, leaf) for frames, leaf in pairs if frames)


def _frames(error: BaseException, home: str) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if _home(frame.filename) == home]


def _home(file: str) -> str:
    """Return where a file belongs: "evert", "packages", "standard", or "" for the user's code."""
    path = str(Path(file).resolve())
    if path.startswith(_EVERT):
        return "evert"
    if path.startswith(_PACKAGES):
        return "packages"
    return "standard" if path.startswith(_STANDARD) or file.startswith("<frozen") else ""


def _format(frames: Sequence[traceback.FrameSummary], error: BaseException) -> str:
    lines = traceback.format_list(frames[-MOST_FRAMES:])
    last = traceback.format_exception_only(error)
    return "".join(["Traceback (most recent call last):\n", *lines, *last]).rstrip()
