"""The data exchanged with workers, and how it is pickled.

    Parcel, GroupOutcome    a group to play; its result
    pack, unpack            pickle and unpickle
    PackedError             an exception with its causes

If a function or class can't be imported, ``cloudpickle`` pickles it by value. Examples are lambdas,
closures and everything that is defined in a script or notebook. All others are pickled by
reference, so the worker must be able to import their modules.
"""

import copyreg
import functools
import io
import itertools
import logging
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.types import TrajectoryGroup

from evert.bridge.errors import EvertError, text_of
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.bridge.models.tinker_model import TinkerModel
from evert.bridge.tokens.pretrained import register_folder
from evert.trainers.workers.errors import WorkerError

MOST_CAUSES = 8


@dataclass(frozen=True)
class Parcel:
    """A group to play in a worker."""

    task: Any
    allow_hosts: frozenset[str] | None = None
    """Hosts that a worker may connect to in addition to its own machine. None allows all hosts."""
    weights: tuple[tuple[TinkerModel, Any, int | None], ...] = ()
    """(model, client, context length) for each frozen model that the trainer opened."""
    level: int = logging.WARNING
    """The trainer's log level."""


@dataclass
class GroupOutcome:
    """The result of a group."""

    result: TrajectoryGroup | None = None
    error: "PackedError | None" = None
    account: Any = None
    rewards: list[float] | None = None
    """Total reward of each trajectory, or None if the group failed before it was scored."""
    records: list[logging.LogRecord] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)


def pack(value: Any, stand_in: Callable[[Any], Any] = lambda item: None) -> bytes:
    """Pickle a value. ``stand_in`` returns an object's replacement, or None to keep the object."""
    file = io.BytesIO()
    try:
        _Pickler(file, stand_in).dump(value)
    except EvertError:
        raise
    except Exception as error:  # users' classes can raise anything
        raise WorkerError(
            f"{type(error).__name__}: {text_of(error)}. The agent, its task and its options are "
            "pickled to send them to another process. Create locks, clients, files and models "
            "inside the agent, where they are used, or play the rollouts in this process."
        ) from error
    return file.getvalue()


def unpack(data: bytes, owner: str = "This") -> Any:
    """Unpickle packed bytes. ``owner`` describes them in error messages."""
    try:
        return pickle.loads(data)
    except EvertError:
        raise
    except Exception as error:
        raise WorkerError(
            f"{owner}: {type(error).__name__}: {text_of(error)}. The data from the other process "
            "can't be unpickled here. Both processes must be able to import the same versions of "
            "the modules that define agents, tasks and exceptions."
        ) from error


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, stand_in: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._stand_in = stand_in

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ChatAgentGroupBuilder):  # its __getstate__ requires import paths
            return copyreg.__newobj__, (type(obj),), obj.state()  # type: ignore[attr-defined]
        if isinstance(obj, Renderer):
            return _one_renderer, (cloudpickle.dumps(obj.__reduce__()),)
        replacement = self._stand_in(obj)
        return super().reducer_override(obj) if replacement is None else (_identity, (replacement,))


def _identity(replacement: Any) -> Any:
    return replacement


@functools.cache
def _one_renderer(reduced: bytes) -> Renderer:
    """Return a renderer that all groups in a process share, so that it is created only once."""
    make, arguments = pickle.loads(reduced)
    for name in arguments:  # one of the arguments is the model name
        if isinstance(name, str):
            register_folder(name)
    renderer: Renderer = make(*arguments)
    return renderer


# -- exceptions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedError:
    """An exception and its causes, each pickled or, if that fails, converted to text."""

    pickled: tuple[bytes | str, ...]

    @classmethod
    def of(cls, error: BaseException) -> "PackedError":
        """Pack a caught exception."""
        chain = [error]
        while len(chain) < MOST_CAUSES and (cause := _cause(chain[-1])) is not None:
            chain.append(cause)
        if not isinstance(chain[-1], EvertError):
            chain[-1].add_note(
                "In a worker:\n" + "".join(traceback.format_tb(chain[-1].__traceback__))
            )
        return cls(tuple(_pickled(failure) for failure in chain))

    def unpacked(self) -> BaseException:
        """Restore the exception with its original type."""
        chain = [_unpickled(packed) for packed in self.pickled]
        for error, cause in itertools.pairwise(chain):
            error.__cause__ = cause
        return chain[0]


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _pickled(error: BaseException) -> bytes | str:
    try:
        data = cloudpickle.dumps(error)
        pickle.loads(data)  # many exceptions can be pickled but not unpickled
    except Exception:
        return f"{type(error).__name__}: {text_of(error)}"
    return bytes(data)


def _unpickled(packed: bytes | str) -> BaseException:
    if isinstance(packed, str):
        return WorkerError(packed)
    error = unpack(packed)
    return error if isinstance(error, BaseException) else WorkerError(repr(error))
