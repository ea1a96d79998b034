"""``EvertError``, the root of all of evert's errors, and the errors of the bridge.

An agent can end in three ways: it returned (a later call is an ``EpisodeEndedError``), its Env was
closed (``EnvClosedError``), or it raised (``AgentError``). Each class has a standard-library
parent, can be pickled, and says what we got, what was expected and what to do next. For a request
that the Env cannot serve, the agent gets the OpenAI SDK's own ``BadRequestError``
(``chat/bad_requests.py``), because that is what agents catch.

``AgentAborted`` is not an ``EvertError`` but a ``BaseException``, so that it also ends an agent
that keeps calling in a loop with ``except Exception`` after its Env was closed.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any, ClassVar

NEEDS_UNIX = "needs Linux or macOS, and this is Windows. Run evert in WSL."
"""Follows the name of what Windows lacks."""

SIMILAR = 0.5
"""Similarity (``difflib``'s ratio) from which a hint names the name that was probably meant."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the most similar name; "" if none is similar."""
    return next(iter(get_close_matches(name, [*names], n=1, cutoff=SIMILAR)), "")


def did_you_mean(name: str, names: Iterable[str], form: str = "{!r}") -> str:
    """Return " Did you mean 'NAME'?" with the most similar name; "" if none is similar.

    ``form`` is how the name is typed: "env={}".
    """
    match = nearest(name, names)
    return f" Did you mean {form.format(match)}?" if match else ""


class EvertError(Exception):
    """Root of every error that evert raises on purpose."""


class InvalidAgentError(EvertError, TypeError):
    """An object cannot be run as an agent."""


class RewardError(EvertError, ValueError):
    """An agent's reward is missing, not finite, or not a number."""


class AgentError(EvertError, RuntimeError):
    """The agent raised; ``__cause__`` is the agent's exception with its traceback.

    Its class is named after that exception (``AgentError.KeyError``): the Cookbook counts these.
    """

    cause_name: ClassVar[str] = ""

    @staticmethod
    def of(cause_name: str, message: str) -> "AgentError":
        """The error for an agent's exception of the class ``cause_name``."""
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
    """An agent that is a command could not be run."""


class McpError(EvertError, RuntimeError):
    """An MCP server could not be started, failed, or did not answer in time."""


class EnvStateError(EvertError, RuntimeError):
    """A method of an Env was called in a state that does not allow the call."""


class EnvClosedError(EvertError, RuntimeError):
    """The Env was closed: its agent cannot call the model, and it cannot be stepped."""


class EpisodeEndedError(EvertError, RuntimeError):
    """A model call arrived after the agent function had already ended."""


class BlockingCallError(EvertError, RuntimeError):
    """A blocking model call was made on the event loop that must answer it."""


class RendererMismatchError(EvertError, ValueError):
    """The renderer cannot be used, or cannot express what the conversation contains."""


class InvalidActionError(EvertError, ValueError):
    """The action of a ``step`` does not consist of token ids."""


class UnsupportedPromptError(EvertError, ValueError):
    """A prompt or a stop condition has a form, for example an image, that cannot be passed on."""


class InvalidModelError(EvertError, TypeError):
    """A model is of the wrong kind, has the policy's name, or cannot be loaded."""


class MissingPackageError(EvertError, ImportError):
    """An optional package is not installed."""


class InvalidDatasetError(EvertError, ValueError):
    """The tasks or sizes of a dataset are invalid."""


class AdvantagesError(EvertError, ValueError):
    """Advantages do not have the shape of their episodes, or are not numbers."""


class RecordError(EvertError, ValueError):
    """The data is not a record of a rollout, or has a different version."""


class ReplayError(EvertError, RuntimeError):
    """A replayed agent differs from its record."""


class EnvCheckError(EvertError, RuntimeError):
    """``check_env`` found that an environment breaks a rule."""


def text_of(error: BaseException) -> str:
    """An exception's message; if its ``__str__`` raises, a note that says so."""
    try:
        return str(error)
    except BaseException as broken:  # an agent's own exception may do anything
        return f"(its message cannot be read: {type(broken).__name__})"


def repr_of(value: object) -> str:
    """The first 200 characters of a value's ``repr``; if that raises, a note that says so."""
    try:
        return f"{value!r:.200}"
    except Exception as broken:
        return f"something whose repr() raises {type(broken).__name__}"


class AgentAborted(BaseException):
    """Ends an agent that keeps calling after its Env was closed."""
