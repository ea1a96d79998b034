"""The OpenAI and Anthropic SDKs over a rollout's transport: the genuine classes, no socket.

They never retry and never time out: a call is answered when the trainer has sampled, once.
"""

from typing import TYPE_CHECKING, Any

from evert.bridge.errors import MissingPackageError
from evert.bridge.faces.transport import Transport

if TYPE_CHECKING:
    import anthropic
    import openai

_KEY = "evert"  # the SDKs want one


def async_openai(transport: Transport) -> "openai.AsyncOpenAI":
    """An ``openai.AsyncOpenAI`` whose calls are the rollout's."""
    import openai

    return openai.AsyncOpenAI(
        api_key=_KEY,
        base_url=transport.base_url,
        http_client=openai.DefaultAsyncHttpxClient(transport=_typed(transport), trust_env=False),
        max_retries=0,
        timeout=None,
    )


def blocking_openai(transport: Transport) -> "openai.OpenAI":
    """An ``openai.OpenAI`` whose calls are the rollout's."""
    import openai

    return openai.OpenAI(
        api_key=_KEY,
        base_url=transport.base_url,
        http_client=openai.DefaultHttpxClient(transport=_typed(transport), trust_env=False),
        max_retries=0,
        timeout=None,
    )


def async_anthropic(transport: Transport) -> "anthropic.AsyncAnthropic":
    """An ``anthropic.AsyncAnthropic`` whose calls are the rollout's.

    Raises:
        MissingPackageError: The Anthropic SDK is not installed.
    """
    _require_anthropic()
    import anthropic

    return anthropic.AsyncAnthropic(
        api_key=_KEY,
        base_url=transport.root_url,
        http_client=anthropic.DefaultAsyncHttpxClient(transport=_typed(transport), trust_env=False),
        max_retries=0,
        timeout=None,
    )


def blocking_anthropic(transport: Transport) -> "anthropic.Anthropic":
    """An ``anthropic.Anthropic`` whose calls are the rollout's.

    Raises:
        MissingPackageError: The Anthropic SDK is not installed.
    """
    _require_anthropic()
    import anthropic

    return anthropic.Anthropic(
        api_key=_KEY,
        base_url=transport.root_url,
        http_client=anthropic.DefaultHttpxClient(transport=_typed(transport), trust_env=False),
        max_retries=0,
        timeout=None,
    )


def _require_anthropic() -> None:
    try:
        import anthropic  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"The agent asks for an Anthropic client, and the package is not there ({error}). "
            "Install it: pip install anthropic."
        ) from error


def _typed(transport: Transport) -> Any:
    # of no library's base class: it has to serve clients of both
    return transport
