"""``EvertError``, the base class of all evert errors, and the errors raised by the bridge.

An agent can stop in three ways: it returns (later calls raise ``EpisodeEndedError``), its Env is
closed (``EnvClosedError``), or it raises an exception (``AgentError``). Every class also inherits
from a standard-library exception and can be pickled. Messages state what we got, what was expected
and what to do next. If the Env cannot serve a request, the agent gets the OpenAI SDK's own
``BadRequestError`` (``chat/bad_requests.py``), because agents already catch that class.

``AgentAborted`` derives from ``BaseException`` rather than ``EvertError``, so that it also stops an
agent that keeps calling the model in an ``except Exception`` loop after its Env was closed.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any, ClassVar

NEEDS_UNIX = "needs Linux or macOS, but this is Windows. Run evert in WSL."
"""Ending of error messages about features that do not work on Windows."""

SIMILAR = 0.5
"""Minimum similarity (``difflib`` ratio) of a name that "Did you mean" suggests."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the most similar name, or "" if no name is similar enough."""
    return next(iter(get_close_matches(name, [*names], n=1, cutoff=SIMILAR)), "")


def did_you_mean(name: str, names: Iterable[str], form: str = "{!r}") -> str:
    """Return " Did you mean 'NAME'?" for the most similar name, or "" if none is similar enough.

    ``form`` is a template for the suggestion, for example "env={}".
    """
    match = nearest(name, names)
    return f" Did you mean {form.format(match)}?" if match else ""


class EvertError(Exception):
    """Base class of all errors that evert raises on purpose."""


class InvalidAgentError(EvertError, TypeError):
    """An object cannot be run as an agent."""


class RewardError(EvertError, ValueError):
    """An agent's reward is missing, not finite, or not a number."""


class AgentError(EvertError, RuntimeError):
    """The agent raised an exception, which is available as ``__cause__`` with its traceback.

    The class name includes the type of the exception (``AgentError.KeyError``), because the
    Cookbook counts errors by class name.
    """

    cause_name: ClassVar[str] = ""

    @staticmethod
    def of(cause_name: str, message: str) -> "AgentError":
        """Create the error for an agent that raised an exception of class ``cause_name``."""
        return _agent_error_class(cause_name)(message)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.cause_name:
            return AgentError, self.args
        return AgentError.of, (self.cause_name, *self.args)


@cache
def _agent_error_class(cause_name: str) -> type[AgentError]:
    return type(f"AgentError.{cause_name}", (AgentError,), {"cause_name": cause_name})


class AgentTimeoutError(EvertError, TimeoutError):
    """The agent neither called the model nor finished within ``agent_timeout`` seconds."""


class CommandError(EvertError, RuntimeError):
    """An agent's command could not be run."""


class McpError(EvertError, RuntimeError):
    """An MCP server could not be started, failed, or did not answer in time."""


class EnvStateError(EvertError, RuntimeError):
    """An Env method was called while the Env was in the wrong state for it."""


class EnvClosedError(EvertError, RuntimeError):
    """The Env was closed, so the agent can no longer call the model and ``step`` cannot be used."""


class EpisodeEndedError(EvertError, RuntimeError):
    """The model was called after the agent function had finished."""


class BlockingCallError(EvertError, RuntimeError):
    """A blocking model call was made on the same event loop that has to answer it."""


class RendererMismatchError(EvertError, ValueError):
    """The renderer cannot be used, or cannot express what the conversation contains."""


class InvalidActionError(EvertError, ValueError):
    """The action passed to ``step`` is not a list of token ids."""


class UnsupportedPromptError(EvertError, ValueError):
    """A prompt or stop condition contains something unsupported, such as an image."""


class InvalidModelError(EvertError, TypeError):
    """A model has the wrong type, uses the policy's name, or cannot be loaded."""


class MissingPackageError(EvertError, ImportError):
    """An optional package is not installed."""


class InvalidDatasetError(EvertError, ValueError):
    """A dataset has invalid tasks or sizes."""


class AdvantagesError(EvertError, ValueError):
    """Advantages do not match the shape of their episodes, or are not numbers."""


class RecordError(EvertError, ValueError):
    """The data is not a rollout record, or was written in a different format version."""


class ReplayError(EvertError, RuntimeError):
    """A replayed agent did not behave as recorded."""


class EnvCheckError(EvertError, RuntimeError):
    """``check_env`` found that an environment breaks one of its rules."""


def text_of(error: BaseException) -> str:
    """Return an exception's message, or a placeholder if its ``__str__`` raises."""
    try:
        return str(error)
    except BaseException as broken:  # a custom exception class can raise anything here
        return f"(its message cannot be read: {type(broken).__name__})"


def repr_of(value: object) -> str:
    """Return the first 200 characters of ``repr(value)``, or a placeholder if that raises."""
    try:
        return f"{value!r:.200}"
    except Exception as broken:
        return f"something whose repr() raises {type(broken).__name__}"


class AgentAborted(BaseException):
    """Stops an agent that keeps calling the model after its Env was closed."""
