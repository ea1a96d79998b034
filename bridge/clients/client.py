"""The client that agents use to call the model.

Async agents get an ``AgentClient``, and regular functions get a ``BlockingAgentClient``. Both
support ``client.chat.completions.create(messages=[...])``, which returns the OpenAI SDK's types but
does not use HTTP. They also provide real SDK clients (``openai``, ``anthropic``, ``genai``), a
transport for frameworks, a URL for other processes, and methods to record rewards, logs and
metrics.
"""

import random
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from openai.types.chat import ChatCompletion

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.fields import read_object
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.chat_completions import FIELDS, completion, read
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.clients.httpx_transport import Transport
from evert.bridge.clients.sdks import open_genai, open_sdk
from evert.bridge.episode.agent import reward_of
from evert.bridge.tokens.renderer import PromptRenderer

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from google.genai import Client as GenaiClient
    from openai import AsyncOpenAI, OpenAI

    from evert.bridge.clients.http.server import Address


class _Handle:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.model = endpoint.model

    def reward(self, reward: float) -> None:
        """Add a reward to the latest transition or, if there are none yet, to the first one.

        The Cookbook computes advantages from the sum of a trajectory's rewards minus the group
        mean. With these advantages, it does not matter which transition gets the reward: it counts
        equally for all tokens of the episode.

        Raises:
            RewardError: The reward is not a finite number.
        """
        value = reward_of(reward, "The reward passed to client.reward")
        self._endpoint.notes.add("reward", "", value)

    def log(self, **values: str | int | float) -> None:
        """Add human-readable values to the latest transition's logs."""
        for key, value in values.items():
            self._endpoint.notes.add("log", key, value)

    def metric(self, key: str, value: float) -> None:
        """Add a number to the latest transition's metrics, for plotting.

        Raises:
            RewardError: The value is not a finite number.
        """
        self._endpoint.notes.add("metric", str(key), reward_of(value, f"The metric {key!r}"))

    def seat(self, name: str) -> Self:
        """Return a client for a seat. Its calls, rewards, metrics and logs belong to that seat.

        Raises:
            InvalidAgentError: The seat does not exist.
        """
        return type(self)(self._endpoint.seat(name))

    @property
    def untrained(self) -> Self:
        """A client for calls that should not be trained on, such as summaries or checks.

        The policy samples replies as usual, but the tokens get zero weight in the training data.
        This also applies to calls made through this client's ``openai``, ``anthropic``,
        ``transport`` and ``base_url``. To exclude a single call, pass
        ``extra_body={"evert": {"train": False}}`` instead.
        """
        return type(self)(self._endpoint.untrained)

    # -- random numbers --------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The episode's seed (0 to 2**32 - 1), for the agent's own random number generators.

        A dataset derives this seed from the dataset's seed, the step, the task and the episode's
        index in its group. If an Env is created without a seed, its episode's seed is random.
        """
        return self._endpoint.episode.seed

    @property
    def rng(self) -> random.Random:
        """A random number generator seeded with ``seed``, shared by all clients of an episode.

        This is a ``random.Random``, because agents use random numbers in messages and tool calls,
        and NumPy numbers are not JSON-serializable. For arrays, use
        ``numpy.random.default_rng(client.seed)``. All threads draw from the same sequence.
        """
        return self._endpoint.episode.rng

    # -- real SDKs and endpoints -----------------------------------------------------------------

    @cached_property
    def transport(self) -> Transport:
        """A transport for frameworks that accept a sync or async ``httpx`` or ``httpx2`` client."""
        return Transport(self._endpoint)

    def serve(self, host: str = "127.0.0.1") -> "Address":
        """Serve this rollout over HTTP for agents in other processes, and return its address.

        Args:
            host: The interface to listen on, optionally with a port ("0.0.0.0:8443"). By default, a
                free port is used. Unless this is a loopback interface, other machines can connect
                over plain HTTP. If this is an absolute path, a Unix socket is created there
                instead. Each client then connects to a relay on its own loopback port 47113.

        Raises:
            OSError: The server cannot listen on the interface.
            EnvClosedError, EpisodeEndedError: The episode is over.
        """
        from evert.bridge.clients.http.server import serve

        return serve(self._endpoint, host)

    @property
    def base_url(self) -> str:
        """Base URL for OpenAI clients in any process on this machine."""
        return self.serve().base_url

    @property
    def api_key(self) -> str:
        """The API key for ``base_url``."""
        return self.serve().api_key

    @cached_property
    def openai(self) -> "AsyncOpenAI":
        """The OpenAI SDK's async client. Calls are answered in process by this rollout."""
        return open_sdk("openai", "AsyncOpenAI", self.transport)  # type: ignore[no-any-return]

    @cached_property
    def openai_sync(self) -> "OpenAI":
        """The OpenAI SDK's blocking client, for threads."""
        return open_sdk("openai", "OpenAI", self.transport)  # type: ignore[no-any-return]

    @cached_property
    def anthropic(self) -> "AsyncAnthropic":
        """The Anthropic SDK's async client. Raises ``MissingPackageError`` if not installed."""
        return open_sdk("anthropic", "AsyncAnthropic", self.transport)  # type: ignore[no-any-return]

    @cached_property
    def anthropic_sync(self) -> "Anthropic":
        """The Anthropic SDK's blocking client, for threads."""
        return open_sdk("anthropic", "Anthropic", self.transport)  # type: ignore[no-any-return]

    @cached_property
    def genai(self) -> "GenaiClient":
        """Google's ``genai.Client``. Async agents should use its ``.aio``."""
        return open_genai(self.transport)  # type: ignore[no-any-return]


class AgentClient(_Handle):
    """The client for async agents. It can be used from any task and event loop.

    Attributes:
        model: The policy's name, which is the default model for ``create``.
        chat: Provides ``chat.completions.create(...)``, like ``openai.AsyncOpenAI``.
        blocking: A blocking version of this client, for threads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.chat = AsyncChat(endpoint)

    @property
    def blocking(self) -> "BlockingAgentClient":
        """A blocking client for the same episode, for tools that run in threads."""
        return BlockingAgentClient(self._endpoint)


class BlockingAgentClient(_Handle):
    """The client for regular functions and threads.

    Attributes:
        model: The policy's name, which is the default model for ``create``.
        chat: Provides ``chat.completions.create(...)``, like ``openai.OpenAI``.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.chat = BlockingChat(endpoint)


class _Chat:
    """Implements both ``client.chat`` and ``client.chat.completions``."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def completions(self) -> Self:
        """This object itself, to support ``client.chat.completions.create(...)``."""
        return self

    def _completion(self, reply: Reply, request: ChatRequest) -> ChatCompletion:
        number = self._endpoint.new_id()
        return completion(reply, id=f"chatcmpl-{number}", model=request.model)


class AsyncChat(_Chat):
    """``client.chat`` for async agents."""

    async def create(self, **fields: Any) -> ChatCompletion:
        """Call the policy, with the same arguments as OpenAI's Chat Completions API.

        This waits for the trainer to sample a reply. See ``docs/requests.md`` for the supported
        fields.

        Raises:
            openai.BadRequestError: The request is invalid or not supported, or the prompt is too
                long (code ``context_length_exceeded``).
            EnvClosedError: The rollout was aborted.
            EpisodeEndedError: The agent function has already returned.
        """
        episode = self._endpoint.episode
        try:
            request = _read(fields, self._endpoint)
        except Exception as error:
            await episode.refusals.hold_back(error)
            raise
        return self._completion(await episode.call(request), request)


class BlockingChat(_Chat):
    """``client.chat`` for regular functions."""

    def create(self, **fields: Any) -> ChatCompletion:
        """Call the policy and block until it replies.

        Raises:
            openai.BadRequestError, EnvClosedError, EpisodeEndedError: See ``AsyncChat.create``.
            BlockingCallError: The call was made on the Env's event loop, which would deadlock.
        """
        episode = self._endpoint.episode
        try:
            request = _read(fields, self._endpoint)
        except Exception as error:
            episode.refusals.hold_back_blocking(error)
            raise
        return self._completion(episode.call_blocking(request), request)


async def ask(client: AgentClient, request: ChatRequest, **changes: Any) -> Reply:
    """Send ``request``, with ``changes`` applied, to a client's model and return the reply.

    Raises:
        openai.BadRequestError, EnvClosedError, EpisodeEndedError: See ``AsyncChat.create``.
    """
    endpoint = client._endpoint
    model_request = endpoint.adapt(replace(request, model=client.model, **changes))
    return await endpoint.episode.call(model_request)


def renderer_of(client: AgentClient) -> PromptRenderer:
    """Return the renderer used by a client's policy."""
    return client._endpoint.renderer


def _read(fields: dict[str, Any], endpoint: Endpoint) -> ChatRequest:
    if fields.get("stream") is True:
        raise bad_request(
            "'stream'=True is not supported by this client, which returns complete replies. To "
            "stream, use client.openai, which is a real OpenAI SDK client.",
            param="stream",
        )
    if extra := read_object(fields.get("extra_body"), "extra_body"):
        FIELDS.check(fields, strict=True)
        fields = {**fields, **extra}  # same as in the SDK
    return endpoint.adapt(read(fields, endpoint.model, strict=not extra))
