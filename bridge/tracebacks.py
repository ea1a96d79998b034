"""Formats exceptions for the author of an agent, showing only frames from their own code."""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

import evert.bridge
from evert.bridge.errors import text_of

MOST_FRAMES = 12
MOST_LEAVES = 4  # how many exceptions in an exception group to show

_HOMES = [evert.bridge.__path__[0], str(Path(evert.__file__).parent / "agents")]
"""Folders with the code that starts agents and forwards their calls."""
_PATHS = sysconfig.get_paths()
_EVERT, _PACKAGES, _STANDARD = (
    tuple(str(Path(folder).resolve()) for folder in folders)
    for folders in (_HOMES, [_PATHS["purelib"], _PATHS["platlib"]], [_PATHS["stdlib"]])
)


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an exception that are not in evert or a library, outermost first."""
    return _frames(error, "")


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions in an exception group, in order. Any other error is returned alone."""
    exceptions, pending = list[BaseException](), [error]
    while pending:
        exception = pending.pop()
        if isinstance(exception, BaseExceptionGroup):
            pending += reversed(exception.exceptions)
        else:
            exceptions.append(exception)
    return exceptions


def name_and_message(error: BaseException) -> tuple[str, str]:
    """Return the class name and message of an exception.

    The message of an exception group includes the exceptions inside it. A group that contains a
    single exception is treated as that exception.
    """
    exceptions = leaves(error)
    if len(exceptions) == 1:
        return type(exceptions[0]).__name__, text_of(exceptions[0])
    texts = [f"{type(leaf).__name__}: {text_of(leaf)}" for leaf in exceptions[:MOST_LEAVES]]
    return type(error).__name__, "; ".join([text_of(error), *texts])


def agent_traceback(error: BaseException) -> str:
    """Format an exception as Python does, but with only the frames of the agent's own code.

    Frames in evert and in libraries are left out. If the agent itself lives in a library, the
    frames of installed packages are shown instead. An exception group gets one traceback per
    exception. If an exception has no agent frames, the group's frames are shown for it. Returns ""
    if there are no frames to show.
    """
    around = own_frames(error) or _frames(error, "packages")
    pairs = [(own_frames(leaf) or around, leaf) for leaf in leaves(error)[:MOST_LEAVES]]
    return "\n".join(_format(frames, leaf) for frames, leaf in pairs if frames)


def _frames(error: BaseException, home: str) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if _home(frame.filename) == home]


def _home(file: str) -> str:
    """Classify a file as "evert", "packages", "standard", or "" (the user's code)."""
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
