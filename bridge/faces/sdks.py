"""The OpenAI and Anthropic SDKs over a rollout's transport: the genuine classes, no socket.

They never retry and never time out: a call is answered when the trainer has sampled, once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evert.bridge.errors import MissingPackageError
from evert.bridge.faces.transport import Transport

if TYPE_CHECKING:
    import anthropic
    import openai

_ONCE: Any = {"api_key": "evert", "max_retries": 0, "timeout": None}
"""Some key, since the SDKs want one; no retry, no timeout."""


def async_openai(transport: Transport) -> "openai.AsyncOpenAI":
    """An ``openai.AsyncOpenAI`` whose calls are the rollout's."""
    import openai

    http = _over(transport, openai.DefaultAsyncHttpxClient)
    return openai.AsyncOpenAI(base_url=transport.base_url, http_client=http, **_ONCE)


def blocking_openai(transport: Transport) -> "openai.OpenAI":
    """An ``openai.OpenAI`` whose calls are the rollout's."""
    import openai

    http = _over(transport, openai.DefaultHttpxClient)
    return openai.OpenAI(base_url=transport.base_url, http_client=http, **_ONCE)


def async_anthropic(transport: Transport) -> "anthropic.AsyncAnthropic":
    """An ``anthropic.AsyncAnthropic`` whose calls are the rollout's.

    Raises:
        MissingPackageError: The Anthropic SDK is not installed.
    """
    _require_anthropic()
    import anthropic

    http = _over(transport, anthropic.DefaultAsyncHttpxClient)
    return anthropic.AsyncAnthropic(base_url=transport.root_url, http_client=http, **_ONCE)


def blocking_anthropic(transport: Transport) -> "anthropic.Anthropic":
    """An ``anthropic.Anthropic`` whose calls are the rollout's.

    Raises:
        MissingPackageError: The Anthropic SDK is not installed.
    """
    _require_anthropic()
    import anthropic

    http = _over(transport, anthropic.DefaultHttpxClient)
    return anthropic.Anthropic(base_url=transport.root_url, http_client=http, **_ONCE)


def _over(transport: Transport, client: Callable[..., Any]) -> Any:
    # The transport is of no library's base class: it has to serve clients of both.
    return client(transport=transport, trust_env=False)


def _require_anthropic() -> None:
    try:
        import anthropic  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"The agent asks for an Anthropic client, and the package is not there ({error}). "
            "Install it: pip install anthropic."
        ) from error
