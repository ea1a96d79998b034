"""The handle an agent calls the model through.

``AgentClient`` is what async agents get, ``BlockingAgentClient`` what plain functions get. Both
answer ``client.chat.completions.create(messages=[...])`` natively, shaped like the OpenAI SDK but
without HTTP; both give the genuine SDKs (``openai``, ``anthropic``), a transport for frameworks and
an address for other processes; both take rewards, logs and metrics from inside the agent.
"""

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any

from openai.types.chat import ChatCompletion

from evert.bridge.agent import reward_of
from evert.bridge.dialects.chat_completions import completion, read
from evert.bridge.errors import InvalidAgentError
from evert.bridge.faces.endpoint import Endpoint
from evert.bridge.faces.transport import Transport
from evert.bridge.messages import Reply
from evert.bridge.requests import ChatRequest, bad_request
from evert.bridge.switch import AgentRun, seat_model, seat_name

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI

    from evert.bridge.faces.server import Address


class _Handle:
    """What both clients share: who they speak for, and the notes an agent makes."""

    def __init__(self, run: AgentRun, model: str, endpoint: Endpoint) -> None:
        self._run = run
        self._endpoint = endpoint
        self._addresses: dict[str, Address] = {}
        self._numbers = itertools.count()
        self.model = model

    def reward(self, reward: float) -> None:
        """Add to the reward of the transition just taken (of the first one, before any call).

        Raises:
            RewardError: It is no finite number.
        """
        value = reward_of(reward, "The reward given to client.reward")
        self._run.rewarded = True
        self._run.notes.append(("reward", "", value))

    def log(self, **values: str | int | float) -> None:
        """Note values for people: they go to the transition's logs."""
        for key, value in values.items():
            self._run.notes.append(("log", key, value))

    def metric(self, key: str, value: float) -> None:
        """Note a number for curves: it goes to the transition's metrics.

        Raises:
            RewardError: It is no finite number.
        """
        self._run.notes.append(("metric", key, reward_of(value, f"The metric {key!r}")))

    def _completion(self, reply: Reply, request: ChatRequest) -> ChatCompletion:
        return completion(reply, id=f"chatcmpl-evert-{next(self._numbers)}", model=request.model)

    def _of_seat(self, name: str) -> "tuple[AgentRun, str, Endpoint]":
        model = seat_model(name)
        run = self._run.seats.get(model)
        if run is None:
            raise InvalidAgentError(
                f"There is no seat {name!r} in this episode. Its seats: "
                f"{', '.join(map(seat_name, self._run.seats)) or 'none; give the builder seats='}."
            )
        return run, model, Endpoint(run, model, self._endpoint.renderer)

    # -- real SDKs and endpoints -----------------------------------------------------------------

    @cached_property
    def transport(self) -> Transport:
        """For frameworks that take an ``httpx`` or ``httpx2`` client, sync or async."""
        return Transport(self._endpoint)

    def serve(self, host: str = "127.0.0.1") -> "Address":
        """An HTTP address of this rollout, for agents in other processes; once a host.

        Args:
            host: Interface to listen on. Another than loopback lets other machines in, over plain
                HTTP.

        Raises:
            OSError: The interface cannot be listened on.
        """
        from evert.bridge.faces.server import serve

        if host not in self._addresses:
            self._addresses[host] = serve(self._endpoint, host)
        return self._addresses[host]

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
        from evert.bridge.faces import sdks

        return sdks.async_openai(self.transport)

    @cached_property
    def openai_sync(self) -> "OpenAI":
        """The OpenAI SDK's blocking client, for threads."""
        from evert.bridge.faces import sdks

        return sdks.blocking_openai(self.transport)

    @cached_property
    def anthropic(self) -> "AsyncAnthropic":
        """The Anthropic SDK's async client.

        Raises:
            MissingPackageError: The Anthropic SDK is not installed.
        """
        from evert.bridge.faces import sdks

        return sdks.async_anthropic(self.transport)

    @cached_property
    def anthropic_sync(self) -> "Anthropic":
        """The Anthropic SDK's blocking client, for threads.

        Raises:
            MissingPackageError: The Anthropic SDK is not installed.
        """
        from evert.bridge.faces import sdks

        return sdks.blocking_anthropic(self.transport)


class AgentClient(_Handle):
    """The async handle; usable from any task of the agent, on any event loop.

    Attributes:
        model: The policy's name; what ``create`` uses when it is given no model.
        chat: ``chat.completions.create(...)``, as in ``openai.AsyncOpenAI``.
        blocking: The same client for the agent's threads.
    """

    def __init__(self, run: AgentRun, model: str, endpoint: Endpoint) -> None:
        super().__init__(run, model, endpoint)
        self.chat = AsyncChat(self)

    def seat(self, name: str) -> "AgentClient":
        """The client of one of the agent's trained roles; its rewards and notes are the role's.

        Raises:
            InvalidAgentError: The episode has no such seat.
        """
        return AgentClient(*self._of_seat(name))

    @property
    def blocking(self) -> "BlockingAgentClient":
        """A blocking client of the same run, for tools that run in threads."""
        return BlockingAgentClient(self._run, self.model, self._endpoint)


class BlockingAgentClient(_Handle):
    """The blocking handle, for plain functions and for threads.

    Attributes:
        model: The policy's name; what ``create`` uses when it is given no model.
        chat: ``chat.completions.create(...)``, as in ``openai.OpenAI``.
    """

    def __init__(self, run: AgentRun, model: str, endpoint: Endpoint) -> None:
        super().__init__(run, model, endpoint)
        self.chat = BlockingChat(self)

    def seat(self, name: str) -> "BlockingAgentClient":
        """The client of one of the agent's trained roles; see ``AgentClient.seat``.

        Raises:
            InvalidAgentError: The episode has no such seat.
        """
        return BlockingAgentClient(*self._of_seat(name))


class AsyncChat:
    """``client.chat``."""

    def __init__(self, client: AgentClient) -> None:
        self.completions = AsyncCompletions(client)


class AsyncCompletions:
    """``client.chat.completions``."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client

    async def create(self, **fields: Any) -> ChatCompletion:
        """Ask the policy; the arguments are those of OpenAI's chat completions.

        Suspends the agent until the trainer has sampled. Which fields count is written in
        ``evert.bridge.dialects.chat_completions``.

        Raises:
            openai.BadRequestError: The request cannot be served as it is, or the prompt is too
                long (code ``context_length_exceeded``).
            EnvClosedError: The rollout was given up.
            EpisodeEndedError: The agent function has already returned.
        """
        client = self._client
        request = _read(fields, client.model)
        return client._completion(await client._run.call(request), request)


class BlockingChat:
    """``client.chat``."""

    def __init__(self, client: BlockingAgentClient) -> None:
        self.completions = BlockingCompletions(client)


class BlockingCompletions:
    """``client.chat.completions``."""

    def __init__(self, client: BlockingAgentClient) -> None:
        self._client = client

    def create(self, **fields: Any) -> ChatCompletion:
        """Ask the policy and block until it has answered.

        Raises:
            openai.BadRequestError, EnvClosedError, EpisodeEndedError: As ``AsyncCompletions``.
            BlockingCallError: Called on the Env's own event loop, which has to answer it.
        """
        client = self._client
        request = _read(fields, client.model)
        return client._completion(client._run.call_blocking(request), request)


def _read(fields: dict[str, Any], model: str) -> ChatRequest:
    stream = fields.get("stream")
    if stream is True:
        raise bad_request(
            "'stream'=True: this handle answers at once and whole. Take client.openai, the SDK's "
            "own client, to stream.",
            param="stream",
        )
    return read(fields, model, strict=True)
