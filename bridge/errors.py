"""Every error evert raises, under one root; each class names the boundary that was crossed.

Three ends are three classes: *ended* (the agent is done), *closed* (somebody gave up on it) and
*broken* (it raised). Each keeps a standard-library parent, pickles, and says what we got, what was
expected and what to do next. Requests that the Env cannot serve reach the agent as the OpenAI
SDK's own ``BadRequestError`` (``chat/bad_requests.py``), because that is what agents catch.

``AgentAborted`` stands outside: it is a ``BaseException``, raised inside an agent that goes on
calling after it was closed, so that ``except Exception`` loops end too.
"""

from functools import cache
from typing import Any, ClassVar


class EvertError(Exception):
    """Root of every error that evert raises on purpose."""


class InvalidAgentError(EvertError, TypeError):
    """The object given as an agent cannot be run as one."""


class RewardError(EvertError, ValueError):
    """An agent's reward is missing, not finite, or not a number."""


class AgentError(EvertError, RuntimeError):
    """The agent raised; ``__cause__`` is the agent's exception with its traceback.

    What is raised is of a subclass named after the exception's class (``AgentError.KeyError``),
    since the Cookbook counts errors by the name of their class.
    """

    cause_name: ClassVar[str] = ""

    @staticmethod
    def of(cause_name: str, message: str) -> "AgentError":
        """The error for an exception of the class ``cause_name``."""
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
    """A command that is an agent could not be run."""


class EnvStateError(EvertError, RuntimeError):
    """A method of an Env was called in a state that does not allow it."""


class EnvClosedError(EvertError, RuntimeError):
    """The Env was closed; its agent can call no more and it can be stepped no more."""


class EpisodeEndedError(EvertError, RuntimeError):
    """A model call arrived after the agent function had already ended."""


class BlockingCallError(EvertError, RuntimeError):
    """A blocking model call was made on the event loop that has to answer it."""


class RendererMismatchError(EvertError, ValueError):
    """The renderer cannot be used, or cannot express what the conversation contains."""


class InvalidActionError(EvertError, ValueError):
    """What was given to ``step`` are no token ids."""


class UnsupportedPromptError(EvertError, ValueError):
    """A prompt holds more than token ids, where nothing else can be passed on."""


class InvalidModelError(EvertError, TypeError):
    """What was given as a frozen model is none, or is named like the policy."""


class MissingPackageError(EvertError, ImportError):
    """An optional package is not installed."""


class InvalidDatasetError(EvertError, ValueError):
    """The tasks or sizes given do not make a dataset."""


class AdvantagesError(EvertError, ValueError):
    """Advantages do not have the shape of the episodes they are for, or are no numbers."""


class RecordError(EvertError, ValueError):
    """What was read is no record of a rollout, or one of another version."""


class ReplayError(EvertError, RuntimeError):
    """An agent that is played again differs from its record."""


class EnvCheckError(EvertError, RuntimeError):
    """``check_env`` found that an environment breaks a rule."""


def text_of(error: BaseException) -> str:
    """An exception's message, also where its own ``__str__`` raises."""
    try:
        return str(error)
    except BaseException as broken:  # an agent's own exception may do anything
        return f"(its message cannot be read: {type(broken).__name__})"


def repr_of(value: object) -> str:
    """The beginning of a value's ``repr``, also where that raises."""
    try:
        return f"{value!r:.200}"
    except Exception as broken:
        return f"something whose repr() raises {type(broken).__name__}"


class AgentAborted(BaseException):
    """Ends an agent that ignores every refusal after its Env was closed."""
