"""The OpenAI and Anthropic SDKs over a rollout's transport: the genuine classes, no socket.

They never retry and never time out: a call is answered when the trainer has sampled, once.
"""

import importlib
from typing import Any

from evert.bridge.errors import MissingPackageError
from evert.bridge.faces.transport import Transport


def open_sdk(package: str, client: str, transport: Transport) -> Any:
    """A client of an SDK whose calls are the rollout's.

    Args:
        package: "openai" or "anthropic".
        client: Name of the class: "AsyncOpenAI", "Anthropic", ...
        transport: The rollout's.

    Raises:
        MissingPackageError: The SDK is not installed.
    """
    try:
        library = importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"The agent asks for a client of the package {package}, which is not there ({error}). "
            f"Install it: pip install {package}."
        ) from error
    kind = "DefaultAsyncHttpxClient" if client.startswith("Async") else "DefaultHttpxClient"
    # The transport is of no library's base class: it has to serve clients of both.
    http = getattr(library, kind)(transport=transport, trust_env=False)
    url = transport.base_url if package == "openai" else transport.root_url
    return getattr(library, client)(
        base_url=url,
        http_client=http,
        api_key="evert",  # some key, since the SDKs want one
        max_retries=0,
        timeout=None,
    )
