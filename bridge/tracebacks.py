"""Exceptions as the author of an agent wants to see them: with the frames of their own code."""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

import evert.bridge
from evert.bridge.errors import text_of

MOST_FRAMES = 12
MOST_LEAVES = 4  # exceptions of a group that are shown

_HOMES = (Path(evert.bridge.__path__[0]), Path(evert.__file__).parent / "agents")
_EVERT = tuple(str(path.resolve()) for path in _HOMES)
"""Where frames are that start an agent and carry its calls."""
_PACKAGES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_STANDARD = sysconfig.get_path("stdlib")


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an exception that are neither evert's nor a library's, outermost first."""
    return [frame for frame, home in _frames(error) if home == ""]


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions that a group holds, at any depth, in order; of any other, itself."""
    found, waiting = list[BaseException](), [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup):
            waiting += reversed(each.exceptions)
        else:
            found.append(each)
    return found


def told(error: BaseException) -> tuple[str, str]:
    """The name of an exception's class, and its message; of a group, what it was raised for."""
    found = leaves(error)
    if len(found) == 1:
        return type(found[0]).__name__, text_of(found[0])
    named = [f"{type(leaf).__name__}: {text_of(leaf)}" for leaf in found[:MOST_LEAVES]]
    return type(error).__name__, "; ".join([text_of(error), *named])


def agent_traceback(error: BaseException) -> str:
    """The exception with the frames of the agent's own code, in Python's form; "" without any.

    Frames of evert and of libraries are left out; of an agent that is a library's, those of the
    standard library alone. Of a group, each exception in it, or the group's frames where that has
    none of the agent's.
    """
    packages = [frame for frame, home in _frames(error) if home == "packages"]
    around = own_frames(error) or packages
    shown = [(own_frames(leaf) or around, leaf) for leaf in leaves(error)[:MOST_LEAVES]]
    return "\n".join(_written(frames, leaf) for frames, leaf in shown if frames)


def _frames(error: BaseException) -> list[tuple[traceback.FrameSummary, str]]:
    found = traceback.extract_tb(error.__traceback__)
    return [(frame, _home(frame.filename)) for frame in found]


def _home(file: str) -> str:
    """Whose a file is: "evert", "packages", "standard", or "" for anybody else's."""
    path = str(Path(file).resolve())
    if path.startswith(_EVERT):
        return "evert"
    if path.startswith(_PACKAGES):
        return "packages"
    return "standard" if path.startswith(_STANDARD) or file.startswith("<frozen") else ""


def _written(frames: Sequence[traceback.FrameSummary], error: BaseException) -> str:
    lines = traceback.format_list(frames[-MOST_FRAMES:])
    last = traceback.format_exception_only(error)
    return "".join(["Traceback (most recent call last):\n", *lines, *last]).rstrip()
