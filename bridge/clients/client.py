"""The handle an agent calls the model through.

``AgentClient`` is what async agents get, ``BlockingAgentClient`` what plain functions get. Both
answer ``client.chat.completions.create(messages=[...])`` natively, shaped like the OpenAI SDK but
without HTTP; both give the genuine SDKs (``openai``, ``anthropic``, ``genai``), a transport for
frameworks and an address for other processes; both take rewards, logs and metrics from inside the
agent.
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
        """Add to the reward of the transition just taken (of the first one, before any call).

        The Cookbook sums a trajectory's rewards and centres the sum in its group, so that under
        its advantages a reward counts alike for all tokens of the episode, wherever it was given.

        Raises:
            RewardError: It is no finite number.
        """
        value = reward_of(reward, "The reward given to client.reward")
        self._endpoint.inbox.notes.add("reward", "", value)

    def log(self, **values: str | int | float) -> None:
        """Note values for people: they go to the transition's logs."""
        for key, value in values.items():
            self._endpoint.inbox.notes.add("log", key, value)

    def metric(self, key: str, value: float) -> None:
        """Note a number for curves: it goes to the transition's metrics.

        Raises:
            RewardError: It is no finite number.
        """
        self._endpoint.inbox.notes.add("metric", str(key), reward_of(value, f"The metric {key!r}"))

    def seat(self, name: str) -> Self:
        """The client of one of the agent's trained roles; its rewards and notes are the role's.

        Raises:
            InvalidAgentError: The episode has no such seat.
        """
        return type(self)(self._endpoint.seat(name))

    @property
    def untrained(self) -> Self:
        """This client, for calls that are not to be learned from: a summary, a check, a judgement.

        The policy samples them as any other, but their tokens have no weight in the training data.
        All that is made of it (``openai``, ``anthropic``, ``transport``, ``base_url``) does the
        same. One call alone: ``extra_body={"evert": {"train": False}}``.
        """
        return type(self)(self._endpoint.untrained)

    # -- what it draws ---------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The episode's seed, for generators of the agent's own: at least 0, below 2**32.

        A dataset makes it of its own seed, the step, the task and the number of the episode in its
        group; an Env that was given none draws one.
        """
        return self._endpoint.episode.draws.seed

    @property
    def rng(self) -> random.Random:
        """A generator that begins with ``seed``: one an episode, whichever client is asked.

        It is ``random.Random``, since agents draw from lists and put what they draw into messages
        and tool calls, where NumPy's numbers are no JSON. For arrays there is
        ``numpy.random.default_rng(client.seed)``. Threads that share it share the order, too.
        """
        return self._endpoint.episode.draws.rng

    # -- real SDKs and endpoints -----------------------------------------------------------------

    @cached_property
    def transport(self) -> Transport:
        """For frameworks that take an ``httpx`` or ``httpx2`` client, sync or async."""
        return Transport(self._endpoint)

    def serve(self, host: str = "127.0.0.1") -> "Address":
        """An HTTP address of this rollout, for agents in other processes; once a host.

        Args:
            host: Interface to listen on, on a free port or, as "0.0.0.0:8443", on that one.
                Another than loopback lets other machines in, over plain HTTP. An absolute path is
                that of a Unix socket to make, whose clients reach it by a relay on port 47113 of a
                loopback of their own.

        Raises:
            OSError: The interface cannot be listened on.
            EnvClosedError, EpisodeEndedError: The episode is over.
        """
        from evert.bridge.clients.http.server import serve

        return serve(self._endpoint, host)

    @property
    def base_url(self) -> str:
        """Base URL of this rollout for an OpenAI client in any process on this machine."""
        return self.serve().base_url

    @property
    def api_key(self) -> str:
        """The key that goes with ``base_url``."""
        return self.serve().api_key

    @cached_property
    def openai(self) -> "AsyncOpenAI":
        """The OpenAI SDK's async client; its calls are this rollout's, and open no socket."""
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
    """The async handle; usable from any task of the agent, on any event loop.

    Attributes:
        model: The policy's name; what ``create`` uses when it is given no model.
        chat: ``chat.completions.create(...)``, as in ``openai.AsyncOpenAI``.
        blocking: The same client for the agent's threads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.chat = AsyncChat(endpoint)

    @property
    def blocking(self) -> "BlockingAgentClient":
        """A blocking client of the same run, for tools that run in threads."""
        return BlockingAgentClient(self._endpoint)


class BlockingAgentClient(_Handle):
    """The blocking handle, for plain functions and for threads.

    Attributes:
        model: The policy's name; what ``create`` uses when it is given no model.
        chat: ``chat.completions.create(...)``, as in ``openai.OpenAI``.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.chat = BlockingChat(endpoint)


class _Chat:
    """``client.chat``, and ``client.chat.completions`` too."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def completions(self) -> Self:
        """The same: ``client.chat.completions.create(...)``."""
        return self

    def _completion(self, reply: Reply, request: ChatRequest) -> ChatCompletion:
        number = self._endpoint.new_id()
        return completion(reply, id=f"chatcmpl-{number}", model=request.model)


class AsyncChat(_Chat):
    """``client.chat`` of an async agent."""

    async def create(self, **fields: Any) -> ChatCompletion:
        """Ask the policy; the arguments are those of OpenAI's chat completions.

        Suspends the agent until the trainer has sampled. Which fields count is written in
        ``docs/requests.md``.

        Raises:
            openai.BadRequestError: The request cannot be served as it is, or the prompt is too
                long (code ``context_length_exceeded``).
            EnvClosedError: The rollout was given up.
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
        """Ask the policy and block until it has answered.

        Raises:
            openai.BadRequestError, EnvClosedError, EpisodeEndedError: As ``AsyncChat.create``.
            BlockingCallError: Called on the Env's own event loop, which has to answer it.
        """
        episode = self._endpoint.episode
        try:
            request = _read(fields, self._endpoint)
        except Exception as error:
            episode.refusals.hold_back_blocking(error)
            raise
        return self._completion(episode.call_blocking(request), request)


async def ask(client: AgentClient, request: ChatRequest, **changes: Any) -> Reply:
    """What the policy of a client replies to a request of no model yet.

    Raises:
        openai.BadRequestError, EnvClosedError, EpisodeEndedError: As ``AsyncChat.create``.
    """
    endpoint = client._endpoint
    asked = endpoint.asked(replace(request, model=client.model, **changes))
    return await endpoint.episode.call(asked)


def renderer_of(client: AgentClient) -> PromptRenderer:
    """The renderer of a client's policy."""
    return client._endpoint.renderer


def _read(fields: dict[str, Any], endpoint: Endpoint) -> ChatRequest:
    if fields.get("stream") is True:
        raise bad_request(
            "'stream'=True: this handle answers at once and whole. Take client.openai, the SDK's "
            "own client, to stream.",
            param="stream",
        )
    if extra := read_object(fields.get("extra_body"), "extra_body"):
        FIELDS.check(fields, strict=True)
        fields = {**fields, **extra}  # as the SDK does
    return endpoint.asked(read(fields, endpoint.model, strict=not extra))
