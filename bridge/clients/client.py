"""The client through which an agent calls the model.

Async agents get an ``AgentClient``, plain functions a ``BlockingAgentClient``. Both have
``client.chat.completions.create(messages=[...])``, with the OpenAI SDK's types but without HTTP.
Both offer the real SDKs (``openai``, ``anthropic``, ``genai``), a transport for frameworks
and a URL for other processes. Both record the agent's rewards, logs and metrics.
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
        """Add a reward to the latest transition; before the first call, to the first transition.

        The Cookbook sums a trajectory's rewards and subtracts the group's mean. So with its
        advantages, a reward counts equally for all tokens of the episode, whichever transition has
        it.

        Raises:
            RewardError: The reward is not a finite number.
        """
        value = reward_of(reward, "The reward given to client.reward")
        self._endpoint.notes.add("reward", "", value)

    def log(self, **values: str | int | float) -> None:
        """Record values in the transition's logs, for people to read."""
        for key, value in values.items():
            self._endpoint.notes.add("log", key, value)

    def metric(self, key: str, value: float) -> None:
        """Record a number in the transition's metrics, for plots.

        Raises:
            RewardError: The value is not a finite number.
        """
        self._endpoint.notes.add("metric", str(key), reward_of(value, f"The metric {key!r}"))

    def seat(self, name: str) -> Self:
        """Return the client of a seat. Its calls, rewards and notes belong to that seat.

        Raises:
            InvalidAgentError: The episode has no such seat.
        """
        return type(self)(self._endpoint.seat(name))

    @property
    def untrained(self) -> Self:
        """A client whose calls are not trained on, for summaries, checks or judgements.

        The policy samples their replies as usual, but the tokens have no weight in the training
        data. This also applies to the client's ``openai``, ``anthropic``, ``transport`` and
        ``base_url``. For a single call, pass ``extra_body={"evert": {"train": False}}``.
        """
        return type(self)(self._endpoint.untrained)

    # -- random numbers --------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The episode's seed, for the agent's own random generators: from 0 to 2**32 - 1.

        A dataset derives it from the dataset's seed, the step, the task and the episode's number in
        its group. An Env without a seed chooses a random seed.
        """
        return self._endpoint.episode.seed

    @property
    def rng(self) -> random.Random:
        """A generator seeded with ``seed``. All clients of an episode share it.

        It is a ``random.Random``: agents put random numbers into messages and tool calls, and JSON
        has no NumPy numbers. For arrays, use ``numpy.random.default_rng(client.seed)``.
        Threads share its sequence.
        """
        return self._endpoint.episode.rng

    # -- real SDKs and endpoints -----------------------------------------------------------------

    @cached_property
    def transport(self) -> Transport:
        """A transport for frameworks that take an ``httpx`` or ``httpx2`` client, sync or async."""
        return Transport(self._endpoint)

    def serve(self, host: str = "127.0.0.1") -> "Address":
        """Return this rollout's HTTP address on a host, for agents in other processes.

        Args:
            host: Interface to listen on, with a free port or a fixed one ("0.0.0.0:8443"). Except
                on loopback, other machines can connect, over plain HTTP. An absolute path names a
                Unix socket to create; its clients connect to a relay on their loopback port 47113.

        Raises:
            OSError: The server cannot listen on the interface.
            EnvClosedError, EpisodeEndedError: The episode is over.
        """
        from evert.bridge.clients.http.server import serve

        return serve(self._endpoint, host)

    @property
    def base_url(self) -> str:
        """Base URL of this rollout, for an OpenAI client in any process on this machine."""
        return self.serve().base_url

    @property
    def api_key(self) -> str:
        """The API key for ``base_url``."""
        return self.serve().api_key

    @cached_property
    def openai(self) -> "AsyncOpenAI":
        """The OpenAI SDK's async client; this rollout answers its calls, without a socket."""
        return open_sdk("openai", "AsyncOpenAI", self.transport)  # type: ignore[no-any-return]

    @cached_property
    def openai_sync(self) -> "OpenAI":
        """The OpenAI SDK's blocking client, for threads."""
        return open_sdk("openai", "OpenAI", self.transport)  # type: ignore[no-any-return]

    @cached_property
    def anthropic(self) -> "AsyncAnthropic":
        """The Anthropic SDK's async client (``MissingPackageError`` where it is not installed)."""
        return open_sdk("anthropic", "AsyncAnthropic", self.transport)  # type: ignore[no-any-return]

    @cached_property
    def anthropic_sync(self) -> "Anthropic":
        """The Anthropic SDK's blocking client, for threads."""
        return open_sdk("anthropic", "Anthropic", self.transport)  # type: ignore[no-any-return]

    @cached_property
    def genai(self) -> "GenaiClient":
        """Google's ``genai.Client``: ``.aio`` for async agents, the client itself for threads."""
        return open_genai(self.transport)  # type: ignore[no-any-return]


class AgentClient(_Handle):
    """The async client, for any task of the agent, on any event loop.

    Attributes:
        model: The policy's name, and the default of ``create``.
        chat: ``chat.completions.create(...)``, as in ``openai.AsyncOpenAI``.
        blocking: The same client for the agent's threads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.chat = AsyncChat(endpoint)

    @property
    def blocking(self) -> "BlockingAgentClient":
        """A blocking client of the same episode, for tools that run in threads."""
        return BlockingAgentClient(self._endpoint)


class BlockingAgentClient(_Handle):
    """The blocking client, for plain functions and for threads.

    Attributes:
        model: The policy's name, and the default of ``create``.
        chat: ``chat.completions.create(...)``, as in ``openai.OpenAI``.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.chat = BlockingChat(endpoint)


class _Chat:
    """Both ``client.chat`` and ``client.chat.completions``."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def completions(self) -> Self:
        """This object, as in ``client.chat.completions.create(...)``."""
        return self

    def _completion(self, reply: Reply, request: ChatRequest) -> ChatCompletion:
        number = self._endpoint.new_id()
        return completion(reply, id=f"chatcmpl-{number}", model=request.model)


class AsyncChat(_Chat):
    """``client.chat`` of an async agent."""

    async def create(self, **fields: Any) -> ChatCompletion:
        """Call the policy with the arguments of OpenAI's chat completions.

        The agent waits until the trainer has sampled. ``docs/requests.md`` lists the fields.

        Raises:
            openai.BadRequestError: The request cannot be served, or the prompt is too long (code
                ``context_length_exceeded``).
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
    """``client.chat`` of a plain function."""

    def create(self, **fields: Any) -> ChatCompletion:
        """Call the policy and block until it has replied.

        Raises:
            openai.BadRequestError, EnvClosedError, EpisodeEndedError: See ``AsyncChat.create``.
            BlockingCallError: The call would block the Env's event loop, which has to answer it.
        """
        episode = self._endpoint.episode
        try:
            request = _read(fields, self._endpoint)
        except Exception as error:
            episode.refusals.hold_back_blocking(error)
            raise
        return self._completion(episode.call_blocking(request), request)


async def ask(client: AgentClient, request: ChatRequest, **changes: Any) -> Reply:
    """Return the reply of a client's model to ``request`` with ``changes``.

    Raises:
        openai.BadRequestError, EnvClosedError, EpisodeEndedError: See ``AsyncChat.create``.
    """
    endpoint = client._endpoint
    model_request = endpoint.adapt(replace(request, model=client.model, **changes))
    return await endpoint.episode.call(model_request)


def renderer_of(client: AgentClient) -> PromptRenderer:
    """Return the renderer of a client's policy."""
    return client._endpoint.renderer


def _read(fields: dict[str, Any], endpoint: Endpoint) -> ChatRequest:
    if fields.get("stream") is True:
        raise bad_request(
            "'stream'=True is not supported here; this client returns complete replies. To stream, "
            "use client.openai, the SDK's own client.",
            param="stream",
        )
    if extra := read_object(fields.get("extra_body"), "extra_body"):
        FIELDS.check(fields, strict=True)
        fields = {**fields, **extra}  # as the SDK does
    return endpoint.adapt(read(fields, endpoint.model, strict=not extra))
