"""``EvertError``, the base class of evert's errors, and the errors of the bridge.

An agent ends in one of three ways: it returns (later calls raise ``EpisodeEndedError``), its Env is
closed (``EnvClosedError``), or it raises (``AgentError``). Each class has a standard-library
parent and can be pickled; its message says what we got, what was expected and what to do next. For
a request that the Env cannot serve, the agent gets the OpenAI SDK's own ``BadRequestError``
(``chat/bad_requests.py``), because agents already catch that class.

``AgentAborted`` is a ``BaseException``, not an ``EvertError``, so that it also ends an agent that
keeps calling in a loop with ``except Exception`` after its Env was closed.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any, ClassVar

NEEDS_UNIX = "needs Linux or macOS, and this is Windows. Run evert in WSL."
"""Follows the name of a feature that does not work on Windows."""

SIMILAR = 0.5
"""Minimum similarity (``difflib``'s ratio) of a name that a "Did you mean" hint suggests."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the most similar name; "" if no name is similar enough."""
    return next(iter(get_close_matches(name, [*names], n=1, cutoff=SIMILAR)), "")


def did_you_mean(name: str, names: Iterable[str], form: str = "{!r}") -> str:
    """Return " Did you mean 'NAME'?" with the most similar name; "" if no name is similar enough.

    ``form`` shows how to type the name, for example "env={}".
    """
    match = nearest(name, names)
    return f" Did you mean {form.format(match)}?" if match else ""


class EvertError(Exception):
    """Base class of every error that evert raises deliberately."""


class InvalidAgentError(EvertError, TypeError):
    """An object cannot be run as an agent."""


class RewardError(EvertError, ValueError):
    """An agent's reward is missing, not finite, or not a number."""


class AgentError(EvertError, RuntimeError):
    """The agent raised an exception; ``__cause__`` is that exception, with its traceback.

    The class is named after it (``AgentError.KeyError``): the Cookbook counts by class name.
    """

    cause_name: ClassVar[str] = ""

    @staticmethod
    def of(cause_name: str, message: str) -> "AgentError":
        """Return the error for an agent's exception of the class ``cause_name``."""
        return _agent_error_class(cause_name)(message)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.cause_name:
            return AgentError, self.args
        return AgentError.of, (self.cause_name, *self.args)


@cache
def _agent_error_class(cause_name: str) -> type[AgentError]:
    return type(f"AgentError.{cause_name}", (AgentError,), {"cause_name": cause_name})


class AgentTimeoutError(EvertError, TimeoutError):
    """The agent neither called the model nor ended within ``agent_timeout`` seconds."""


class CommandError(EvertError, RuntimeError):
    """The command of an agent could not be run."""


class McpError(EvertError, RuntimeError):
    """An MCP server could not be started, failed, or did not answer in time."""


class EnvStateError(EvertError, RuntimeError):
    """A method of an Env was called in a state that does not allow the call."""


class EnvClosedError(EvertError, RuntimeError):
    """The Env was closed, so its agent cannot call the model and ``step`` cannot be called."""


class EpisodeEndedError(EvertError, RuntimeError):
    """A model call arrived after the agent function had ended."""


class BlockingCallError(EvertError, RuntimeError):
    """A blocking model call was made on the event loop that has to answer it."""


class RendererMismatchError(EvertError, ValueError):
    """The renderer cannot be used, or cannot express what the conversation contains."""


class InvalidActionError(EvertError, ValueError):
    """The action of a ``step`` does not consist of token ids."""


class UnsupportedPromptError(EvertError, ValueError):
    """A prompt or stop condition contains something, such as an image, that is not supported."""


class InvalidModelError(EvertError, TypeError):
    """A model is of the wrong kind, has the policy's name, or cannot be loaded."""


class MissingPackageError(EvertError, ImportError):
    """An optional package is not installed."""


class InvalidDatasetError(EvertError, ValueError):
    """The tasks or sizes of a dataset are invalid."""


class AdvantagesError(EvertError, ValueError):
    """Advantages do not have the shape of their episodes, or are not numbers."""


class RecordError(EvertError, ValueError):
    """The data is not a record of a rollout, or is a record of a different version."""


class ReplayError(EvertError, RuntimeError):
    """A replayed agent behaved differently from its record."""


class EnvCheckError(EvertError, RuntimeError):
    """``check_env`` found that an environment breaks a rule."""


def text_of(error: BaseException) -> str:
    """Return an exception's message, or a note if its ``__str__`` raises."""
    try:
        return str(error)
    except BaseException as broken:  # an agent's own exception may do anything
        return f"(its message cannot be read: {type(broken).__name__})"


def repr_of(value: object) -> str:
    """Return the first 200 characters of a value's ``repr``, or a note if its ``repr`` raises."""
    try:
        return f"{value!r:.200}"
    except Exception as broken:
        return f"something whose repr() raises {type(broken).__name__}"


class AgentAborted(BaseException):
    """Ends an agent that keeps calling after its Env was closed."""
