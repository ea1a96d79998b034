"""Tinker servers of one's own, and what the SDK wants of them that older ones do not send.

From 0.38 on the SDK takes the ids of sampled sequences from the answer that promises them. SkyRL's
server 0.4.0 was made for SDK 0.25 and sends none: all works with it but sampling.
``complete_client`` adds ids for such a server, and for no other: the hosted service is never
touched, and an id that a server does send stays as it is.
"""

from typing import Any
from urllib.parse import urlsplit

HOSTED = "thinkingmachines.dev"
"""The hosted service is in this domain."""

_completed: set[str] = set()
"""Addresses of the servers whose promises are completed."""


def complete_client(base_url: str | None) -> None:
    """Let the SDK of this process sample from an older server; calling it again changes nothing.

    A worker in another process calls it before it samples with a client that it was sent
    (``address_of``).

    Args:
        base_url: The server's address; None, or the hosted service's: nothing is done.
    """
    if not base_url or is_hosted(base_url):
        return
    from tinker import SamplingClient
    from tinker.lib.base_url import resolve_base_url

    if not _completed:
        _wrap(SamplingClient)
    _completed.add(resolve_base_url(base_url))


def is_hosted(base_url: str) -> bool:
    """Whether an address is the hosted service's."""
    host = urlsplit(base_url).hostname or ""
    return host == HOSTED or host.endswith(f".{HOSTED}")


def address_of(client: Any) -> str | None:
    """Address of the server that the SDK's sampling client samples from; None for any other."""
    address: str | None = getattr(getattr(client, "holder", None), "_base_url", None)
    return address


def _wrap(sampling_client: Any) -> None:
    ask = sampling_client._send_asample_request

    async def ask_and_complete(self: Any, request_id: int, num_samples: int, *rest: Any) -> Any:
        promise = await ask(self, request_id, num_samples, *rest)  # None: the server is busy
        if promise is None or promise.sample_sequence_ids is not None:
            return promise
        if address_of(self) not in _completed:
            return promise
        ids = [f"{promise.request_id}-{number}" for number in range(num_samples)]
        return promise.model_copy(update={"sample_sequence_ids": ids})

    sampling_client._send_asample_request = ask_and_complete
