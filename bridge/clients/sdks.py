"""OpenAI's, Anthropic's and Google's SDKs over a rollout's transport: the genuine classes.

They open no socket, never retry and never time out: a call is answered when the trainer has
sampled, once.
"""

import importlib
import ssl
from functools import cache
from typing import Any

from evert.bridge.clients.httpx_transport import Transport
from evert.bridge.errors import MissingPackageError


def open_sdk(package: str, client: str, transport: Transport) -> Any:
    """A client of an SDK whose calls are the rollout's."""
    library = _import(package, package)
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


def open_genai(transport: Transport) -> Any:
    """Google's client, blocking and async in one, whose calls are the rollout's."""
    genai = _import("google.genai", "google-genai")
    # The SDK builds its HTTP clients itself, of whichever library its version is based on.
    arguments = {"transport": transport, "trust_env": False, "verify": _no_tls()}
    return genai.Client(
        vertexai=False,
        api_key="evert",
        http_options={
            "base_url": transport.root_url,
            "client_args": arguments,
            "async_client_args": {**arguments, "ssl": _no_tls()},  # for its web sockets
        },
    )


@cache
def _no_tls() -> ssl.SSLContext:
    """Without certificates: to load the system's takes each client 0.1 s."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"The agent asks for a client of the package {package}, which is not there ({error}). "
            f"Install it: pip install {package}."
        ) from error
