"""Creates real OpenAI, Anthropic and Google SDK clients that use a rollout's transport.

These clients don't open sockets, retry or time out. A call waits until the reply is sampled.
"""

import importlib
import ssl
from functools import cache
from typing import Any

from evert.bridge.clients.httpx_transport import Transport
from evert.bridge.errors import MissingPackageError


def open_sdk(package: str, client: str, transport: Transport) -> Any:
    """Create an OpenAI or Anthropic client whose calls are answered by the rollout."""
    library = client_package(package, package)
    kind = "DefaultAsyncHttpxClient" if client.startswith("Async") else "DefaultHttpxClient"
    # The transport supports both httpx and httpx2, so it inherits from neither's base class.
    http = getattr(library, kind)(transport=transport, trust_env=False)
    url = transport.base_url if package == "openai" else transport.root_url
    return getattr(library, client)(
        base_url=url,
        http_client=http,
        api_key="evert",  # required by the SDKs
        max_retries=0,
        timeout=None,
    )


def open_genai(transport: Transport) -> Any:
    """Create a (blocking and async) Google client whose calls are answered by the rollout."""
    genai = client_package("google.genai", "google-genai")
    # The SDK creates its own HTTP clients. Which HTTP library it uses depends on its version.
    arguments = {"transport": transport, "trust_env": False, "verify": _no_tls()}
    return genai.Client(
        vertexai=False,
        api_key="evert",
        http_options={
            "base_url": transport.root_url,
            "client_args": arguments,
            "async_client_args": {**arguments, "ssl": _no_tls()},  # ``ssl`` is for WebSockets
        },
    )


@cache
def _no_tls() -> ssl.SSLContext:
    """Return an SSL context without CA certificates, since loading them takes 0.1 s."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_package(module: str, package: str) -> Any:
    """Import an SDK used by an agent.

    Raises:
        MissingPackageError: The SDK cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"The agent uses the package {package}, which could not be imported: {error}. "
            f"Install it with: pip install {package}."
        ) from error
