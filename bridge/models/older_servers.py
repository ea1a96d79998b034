"""Support for self-hosted Tinker servers that are older than the SDK.

SkyRL's server 0.4.0 was written for SDK 0.25. Two things do not work with SDK 0.38:

    sampling        the SDK expects the sequence ids in the server's first response
    a saved state   the SDK creates a client and loads its weights in a single request

``complete_client`` adds the missing ids, and loads weights in two requests if the server rejects
the single request. It has no effect on the hosted service or on servers that support both.
"""

from typing import Any
from urllib.parse import urlsplit

HOSTED = "thinkingmachines.dev"  # the domain of the hosted service

LOAD = "_create_training_client_via_load_weights_submit"
"""The SDK method that creates a training client from a saved state."""

_completed: set[str] = set()  # server URLs for which ``complete_client`` was called


def complete_client(base_url: str | None) -> None:
    """Make the SDK in this process work with an older server. Can be called repeatedly.

    Workers call this with ``address_of(client)`` before they use a client from another process.
    """
    if not base_url or is_hosted(base_url):
        return
    from tinker.lib.base_url import resolve_base_url
    from tinker.lib.public_interfaces.sampling_client import SamplingClient
    from tinker.lib.public_interfaces.service_client import ServiceClient

    if not _completed:
        _complete_sampling(SamplingClient)
        _complete_loading(ServiceClient)
    _completed.add(resolve_base_url(base_url))


def is_hosted(base_url: str) -> bool:
    """Whether a URL belongs to the hosted service."""
    host = urlsplit(base_url).hostname or ""
    return host == HOSTED or host.endswith(f".{HOSTED}")


def address_of(client: Any) -> str | None:
    """Return the server URL of an SDK client, or None for any other object."""
    address: str | None = getattr(getattr(client, "holder", None), "_base_url", None)
    return address


def _complete_sampling(sampling_client: Any) -> None:
    ask = sampling_client._send_asample_request

    async def ask_and_complete(self: Any, request_id: int, num_samples: int, *args: Any) -> Any:
        promise = await ask(self, request_id, num_samples, *args)  # None if the server is busy
        if promise is None or promise.sample_sequence_ids is not None:
            return promise
        if address_of(self) not in _completed:
            return promise
        ids = [f"{promise.request_id}-{number}" for number in range(num_samples)]
        return promise.model_copy(update={"sample_sequence_ids": ids})

    sampling_client._send_asample_request = ask_and_complete


def _complete_loading(service_client: Any) -> None:
    from tinker import UnprocessableEntityError
    from tinker.lib.public_interfaces.rest_client import RestClient

    load = getattr(service_client, LOAD, None)
    if load is None:  # the class was replaced by the embedded engine
        return

    def load_in_two(self: Any, path: str, optimizer: bool, *arguments: Any, **options: Any) -> Any:
        if address_of(self) not in _completed:
            return load(self, path, optimizer, *arguments, **options)

        async def loaded() -> Any:
            try:
                return await load(self, path, optimizer, *arguments, **options)
            except UnprocessableEntityError:  # the server requires the name of the base model
                info = await RestClient(self.holder).get_weights_info_by_tinker_path(path)
            base, metadata = options.get("base_model"), options.get("user_metadata")
            client = await self.create_lora_training_client(
                base or info.base_model, info.lora_rank, user_metadata=metadata
            )
            await client._load_state_impl(path, optimizer, None)  # the public method is deprecated
            return client

        return self.holder.run_coroutine_threadsafe(loaded())

    setattr(service_client, LOAD, load_in_two)
