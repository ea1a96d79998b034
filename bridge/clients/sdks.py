"""The real OpenAI, Anthropic and Google SDK clients over a rollout's transport.

They open no socket, never retry and never time out. A call waits until the trainer has sampled.
"""

import importlib
import ssl
from functools import cache
from typing import Any

from evert.bridge.clients.httpx_transport import Transport
from evert.bridge.errors import MissingPackageError


def open_sdk(package: str, client: str, transport: Transport) -> Any:
    """Return an SDK's client whose calls the rollout answers."""
    library = client_package(package, package)
    kind = "DefaultAsyncHttpxClient" if client.startswith("Async") else "DefaultHttpxClient"
    # The transport has neither library's base class, since it serves both httpx and httpx2.
    http = getattr(library, kind)(transport=transport, trust_env=False)
    url = transport.base_url if package == "openai" else transport.root_url
    return getattr(library, client)(
        base_url=url,
        http_client=http,
        api_key="evert",  # the SDKs require a key
        max_retries=0,
        timeout=None,
    )


def open_genai(transport: Transport) -> Any:
    """Return Google's client, both blocking and async, whose calls the rollout answers."""
    genai = client_package("google.genai", "google-genai")
    # The SDK builds its HTTP clients itself, with the HTTP library of its version.
    arguments = {"transport": transport, "trust_env": False, "verify": _no_tls()}
    return genai.Client(
        vertexai=False,
        api_key="evert",
        http_options={
            "base_url": transport.root_url,
            "client_args": arguments,
            "async_client_args": {**arguments, "ssl": _no_tls()},  # ``ssl`` is for web sockets
        },
    )


@cache
def _no_tls() -> ssl.SSLContext:
    """Return a context without certificates, since loading them takes 0.1 s per client."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_package(module: str, package: str) -> Any:
    """Import an SDK that an agent uses.

    Raises:
        MissingPackageError: The SDK cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"The agent uses the package {package}, which cannot be imported: {error}. "
            f"Install it: pip install {package}."
        ) from error
