"""Blocks connections to other machines while the embedded engine is in use.

Inside ``no_network()``, Python's sockets reject all addresses except loopback and Unix sockets,
and the Hugging Face Hub is in offline mode, so that cached models still load. Blocks can be
nested, and everything is restored when the last one exits. The guard is meant to prevent accidents,
such as an SDK falling back to a production host. It is not a sandbox: child processes, and C
extensions that open their own sockets, can bypass it. The only thing blocked in child processes is
the Tinker SDK: they inherit a TINKER_BASE_URL that makes creating a client fail.
"""

import ipaddress
import multiprocessing.spawn
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub.constants
from tinker.lib.base_url import resolve_base_url
from tinker.lib.internal_client_holder import InternalClientHolder

from evert.bridge.ownership import current_owner
from evert.trainers.engine.common.errors import NetworkRefusedError

_NO_ADDRESS = (
    "http://localhost:The parent process uses evert's embedded engine, which is only available "
    "in that process. Pass a sampling client to this process as an argument (it can be "
    "pickled), let evert's workers play the episodes (PoolRollouts, rollouts=pool), or enter "
    "embedded_engine here as well."
)
"""A URL that contains a message in place of the port.

The SDK rejects the URL without connecting, and quotes the URL in its error.
"""

_REFUSING = {"TINKER_BASE_URL": _NO_ADDRESS, "TINKER_CREDENTIAL_CMD": "false"}
"""Environment variables that make the SDK fail in child processes. The command never runs, but
without it, the SDK's error would be about a missing API key and would not quote the URL."""

_METHODS = ("connect", "connect_ex", "sendto", "sendmsg")

_lock = threading.Lock()
_active: list["_AllowedHosts"] = []
_guard = ExitStack()


class _AllowedHosts:
    def __init__(self, hosts: Collection[str]) -> None:
        self.hosts = frozenset(hosts)
        self.addresses: set[str] = set()


@contextmanager
def no_network(allow_hosts: Collection[str] = ()) -> Iterator[None]:
    """Reject connections to other machines inside the block, in all threads.

    ``allow_hosts`` stay reachable. If blocks are nested, all of them must allow a host.
    """
    allowed = _AllowedHosts(allow_hosts)
    with _lock:
        if not _active:
            _start_guard(offline_hub="huggingface.co" not in allowed.hosts)
        _active.append(allowed)
    try:
        yield
    finally:
        with _lock:
            _active.remove(allowed)
            if not _active:
                _guard.close()


def network_is_refused(host: str) -> bool:
    """Return whether the guard is active and blocks ``host``."""
    return not _is_this_machine(host) and not all(
        host in allowed.hosts or host in allowed.addresses for allowed in list(_active)
    )


def allowed_hosts() -> frozenset[str] | None:
    """Return the hosts that the guard allows, or None if it is not active."""
    blocks = [allowed.hosts for allowed in list(_active)]
    return frozenset.intersection(*blocks) if blocks else None


def _start_guard(*, offline_hub: bool) -> None:
    for name in _METHODS:
        _replace(socket.socket, name, _guarded_method(name))
    _replace(socket, "getaddrinfo", _guarded_getaddrinfo(socket.getaddrinfo))
    if offline_hub:
        _replace(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    # The SDK retries failed connections for five minutes, so we raise an error as soon as a
    # client is created. All SDK clients connect through this class.
    guarded = _guarded_sdk_init(InternalClientHolder.__init__, resolve_base_url())
    _replace(InternalClientHolder, "__init__", guarded)
    _refuse_in_children()


def _refuse_in_children() -> None:
    for name, value in _REFUSING.items():
        _guard.callback(_set_variable, name, os.environ.get(name))
        os.environ[name] = value
    original = multiprocessing.spawn.get_preparation_data

    def with_environment(name: str) -> dict[str, Any]:
        return {**original(name), "evert": _SetsEnvironment()}

    _replace(multiprocessing.spawn, "get_preparation_data", with_environment)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


class _SetsEnvironment:
    """Sets the environment variables when unpickled.

    A fork server's children need this, because they inherit the environment that the server was
    started with.
    """

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, (f"import os; os.environ.update({_REFUSING!r})",)


def _replace(owner: Any, name: str, value: Any) -> None:
    # socket.socket inherits these methods from its C base class, so we restore them by deleting
    # our overrides.
    inherited = name not in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, value)
    if inherited:
        _guard.callback(delattr, owner, name)
    else:
        _guard.callback(setattr, owner, name, original)


def _guarded_method(name: str) -> Callable[..., Any]:
    original = getattr(socket.socket, name)

    def method(self: socket.socket, *args: Any) -> Any:
        # Signatures: connect(address), connect_ex(address), sendto(data[, flags], address),
        # sendmsg(buffers[, ancillary, flags, address]), where address may be None.
        address = args[-1] if len(args) > (3 if name == "sendmsg" else 0) else None
        if address is not None and self.family in (socket.AF_INET, socket.AF_INET6):
            _check(address[0])
        return original(self, *args)

    return method


def _guarded_getaddrinfo(original: Callable[..., Any]) -> Callable[..., Any]:
    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        _check(host)
        entries = original(host, *args, **kwargs)
        for allowed in list(_active):
            if _text(host) in allowed.hosts:
                allowed.addresses.update(str(entry[4][0]) for entry in entries)
        return entries

    return getaddrinfo


def _guarded_sdk_init(original: Callable[..., Any], default: str) -> Callable[..., Any]:
    def init(self: Any, *args: Any, base_url: Any = None, **kwargs: Any) -> None:
        address = base_url or default
        _check(urlsplit(str(address)).hostname)
        original(self, *args, base_url=address, **kwargs)

    return init


def _check(host: Any) -> None:
    if network_is_refused(_text(host)):
        raise NetworkRefusedError(
            f"A connection to {_text(host)!r} was blocked: while evert's embedded engine is in "
            "use, only connections to this machine (loopback) are allowed. Connect outside the "
            "engine's `with` block, or add the host to `allow_hosts`."
            f"{_advice()}"
        )


def _advice() -> str:
    if current_owner() is None:
        return ""
    return (
        " If this was the agent's model call: only calls made through httpx, aiohttp or lm15 are "
        "redirected to the policy. With another HTTP client, use client.base_url and "
        "client.api_key."
    )


def _text(host: Any) -> str:
    if isinstance(host, bytes | bytearray):
        return host.decode("ascii", "replace")
    return "" if host is None else str(host)


def _is_this_machine(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    # Servers bind to the unspecified address (0.0.0.0). Connections to it stay on this machine.
    return bool(mapped.is_loopback or mapped.is_unspecified)
