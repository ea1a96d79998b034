"""``AgentMessageEnv``: an agent as a ``MessageEnv`` of the Cookbook's.

    env = EnvFromMessageEnv(renderer, AgentMessageEnv(agent, task))

The agent's calls are the observations, as messages; ``step`` brings the reply as a message. There
are no tokens here, so nothing of them is kept: whoever renders the messages makes all prompts anew,
as the Cookbook does. The agent's life, notes and endings are those of a ``ChatAgentEnv``.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

import openai
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import (
    Message,
    ParseTermination,
    classify_parse_failure,
)
from tinker_cookbook.rl.message_env import MessageEnv, MessageStepResult
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy

from evert.bridge.actions import Problem, as_asked
from evert.bridge.agent import NO_TASK, Agent
from evert.bridge.conversation import Conversation
from evert.bridge.endings import NO_CALL, Ending
from evert.bridge.env import ChatAgentEnv
from evert.bridge.errors import EnvStateError, RendererMismatchError
from evert.bridge.inbox import ParkedCall
from evert.bridge.index import Key, key_as_reply
from evert.bridge.lineage import read_all
from evert.bridge.messages import Reply, read_reply, read_tools
from evert.bridge.options import EnvOptions, EnvSettings
from evert.bridge.outstanding import Outstanding
from evert.bridge.rendering import PromptRenderer
from evert.bridge.requests import ChatRequest, bad_request
from evert.bridge.turns import Turn, Turns, Upcoming


class AgentMessageEnv(MessageEnv):
    """One episode of a chat agent, as a message-level environment.

    Args:
        agent: As ``ChatAgentEnv``'s.
        task: Handed to the agent. Left out: the agent takes the client only.
        seed: Of what the agent draws; None: another each time.
        **options: Of ``ChatAgentEnv``. ``renderer`` is that of whoever renders the messages; it is
            needed where the agent offers tools or stop strings, which are in its own format.

    A reply with thinking or tool calls is what the renderer parsed, and is shown so again. What a
    message cannot carry is refused with a 400 (``logprobs``, a reply that the agent begins), or is
    the business of whoever samples (``max_tokens``). A cut reply ends the episode, as it does by
    default in ``EnvFromMessageEnv``.

    The Cookbook does not tell a ``MessageEnv`` that its rollout was given up: ``close()`` it where
    that may be (``EnvGroupBuilder.cleanup``, say), else the agent waits until it is collected.

    Raises:
        InvalidAgentError, InvalidModelError, RendererMismatchError, TypeError, ValueError: As
            ``ChatAgentEnv``.
    """

    def __init__(
        self,
        agent: Agent,
        task: object = NO_TASK,
        *,
        seed: int | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        self._env = _Carrier(agent, task, seed=seed, **options)

    async def initial_observation(self) -> list[Message]:
        """Start the agent; the messages of its first call.

        Raises:
            EnvStateError: It ended without a call, or this was called twice.
            AgentError, AgentTimeoutError, RewardError, EnvClosedError: As ``step``.
        """
        upcoming = await self._env.begin()
        if isinstance(upcoming, Ending):
            raise EnvStateError(
                "The agent ended before its first model call (reward "
                f"{upcoming.reward}, {upcoming.logs}), and a MessageEnv cannot end at its start. "
                f"Take this task out, or use ChatAgentEnv, which says so ({NO_CALL})."
            )
        return self._env.lend(upcoming)

    async def step(self, message: Message) -> MessageStepResult:
        """Resume the agent with a reply and return at its next call or its end.

        Raises:
            AgentError: The agent raised (unless ``on_agent_error`` scores that).
            AgentTimeoutError: It neither called nor ended within ``agent_timeout``.
            RewardError: It ended without a reward, or with something that is none.
            EnvStateError: No observation is outstanding.
            EnvClosedError: The Env was closed before or meanwhile.
        """
        turn = _Said([], False, {}, message=message)
        upcoming = await self._env.resume(turn)
        if isinstance(upcoming, Ending):
            last = upcoming.as_step(turn.metrics, turn.logs, [])
            return MessageStepResult(
                last.reward + turn.reward, True, [], _without_tokens(last.metrics), last.logs
            )
        turn.reward += self._env.take_notes(turn)
        messages, stop = self._env.lend(upcoming), self._env.stop_of(upcoming)
        return MessageStepResult(turn.reward, False, messages, turn.metrics, turn.logs, stop)

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Take a runner's cap on tool calls; the tighter of two caps holds."""
        self._env.set_max_tool_calls(max_tool_calls)

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Take a runner's policy for replies that do not parse."""
        self._env.set_parse_error_policy(policy)

    async def close(self) -> None:
        """Give the episode up: cancel the agent, run its ``finally`` blocks, join its thread."""
        await self._env.close()


def _without_tokens(metrics: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if key not in ("lineages", "drift")}


@dataclass(slots=True, kw_only=True)
class _Said(Turn):
    """A reply on its way to the agent, as a message."""

    message: Message


@dataclass(slots=True)
class _Told:
    """What an agent's call tells the policy, in place of a conversation in tokens.

    Attributes:
        messages: All.
        hidden: The last of them, which the agent does not know of.
    """

    messages: list[Message]
    hidden: list[Message]

    def record(self, tokens: object, reply: object, renderer: object) -> None:
        pass


class _Carrier(ChatAgentEnv):
    """A ``ChatAgentEnv`` that is stepped by messages."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns: _MessageTurns = _MessageTurns(self._form.name, self._settings, self._renderer)

    async def begin(self) -> Upcoming:
        if self._turns.episode is not None:
            raise EnvStateError(
                "initial_observation() was called twice on one AgentMessageEnv. It is one episode: "
                "make a new one for the next."
            )
        self._turns.check_usable()
        return await self._turns.begin(*await self._begin())

    async def resume(self, turn: _Said) -> Upcoming:
        upcoming = await self._turns.resume(self._turns.take_back(), turn)
        if isinstance(upcoming, Ending):
            self._turns.forget()
        return upcoming

    def lend(self, outstanding: Outstanding) -> list[Message]:
        self._turns.outstanding = outstanding
        return [*outstanding.conversation.messages]

    def take_notes(self, turn: Turn) -> float:
        return self._turns.account.take_notes(turn.metrics, turn.logs)

    def stop_of(self, outstanding: Outstanding) -> list[str] | list[int] | None:
        wanted = outstanding.call.request.stop
        given = self._settings.renderer is not None
        return self._renderer.stop_with(wanted) if wanted and given else None


class _MessageTurns(Turns):
    """The turns of an Env without tokens: calls are told, and replies read, as messages."""

    def __init__(self, agent: str, settings: EnvSettings, renderer: PromptRenderer) -> None:
        super().__init__(agent, settings, renderer)
        self._teller = settings.renderer
        self._replies: defaultdict[Key, list[tuple[Reply, list[Message]]]] = defaultdict(list)

    async def _offer(self, call: ParkedCall) -> Upcoming | None:
        if (reason := self._spent()) is not None:
            return await self._stop(reason)
        try:
            await self.images.fetch(call.request.messages)
            told = _Told(*self._messages(call.request))
            told.messages = await self.images.all_shown(told.messages)
        except openai.BadRequestError as error:
            self.check_usable()
            await self._refuse(call, error)
            return None
        self.check_usable()
        self._refusals = 0
        return Outstanding(call, cast("Conversation", told))

    def _messages(self, request: ChatRequest) -> tuple[list[Message], list[Message]]:
        """What a call tells, and what of it the agent does not know of."""
        for name, value in (("logprobs", request.logprobs), ("prefill", request.prefill)):
            if value:
                raise bad_request(
                    f"'{name}' cannot be served by messages alone, as AgentMessageEnv has them. "
                    "Leave it out, or play the agent by ChatAgentEnv.",
                    param=name,
                )
        messages = self._shown_again(read_all(request.messages, 0, {}), request.messages)
        if request.tools:
            messages = self._with_tools(request.tools, messages)
        hidden = [] if request.format is None else [request.format.request()]
        hidden = [] if hidden and hidden[0] in messages else hidden
        return messages + hidden, hidden

    def _shown_again(self, messages: list[Message], sent: Sequence[Any]) -> list[Message]:
        """Messages of a request, with its replies as they were said, and what came before them."""
        met: Counter[Key] = Counter()
        shown: list[Message] = []
        for message, original in zip(messages, sent, strict=True):
            key = key_as_reply(message)
            said = self._replies.get(key) if message["role"] == "assistant" else None
            if said:
                reply, hidden = said[min(met[key], len(said) - 1)]
                met[key] += 1
                if reply.is_sent_back_as(original):
                    shown += [*hidden, reply.parsed]
                    continue
            shown.append(message)
        return shown

    def _with_tools(self, tools: list[Any], messages: list[Message]) -> list[Message]:
        if self._teller is None:
            raise bad_request(
                "The agent offers tools, which a MessageEnv has in its messages, in the format of "
                "whoever renders them. Make it with that renderer: AgentMessageEnv(..., "
                "renderer=renderer).",
                param="tools",
            )
        system, rest = "", messages
        if rest[0]["role"] == "system" and isinstance(rest[0]["content"], str):
            system, rest = rest[0]["content"], rest[1:]
        return [*_tool_prefix(self._teller, tools, system), *rest]

    def _read(
        self, outstanding: Outstanding, turn: Turn, renderer: PromptRenderer, most: int | None
    ) -> tuple[Reply, Problem | None]:
        message, number = cast("_Said", turn).message, self.account.turns - 1
        read = read_reply(
            message,
            truncated=False,
            call_ids=f"call-{number}",
            prompt_tokens=0,
            completion_tokens=0,
        )
        reply = as_asked(read, outstanding.call.request)
        hidden = cast("_Told", outstanding.conversation).hidden
        self._replies[reply.key].append((reply, hidden))
        problem = classify_parse_failure(message, ParseTermination.STOP_SEQUENCE)
        return reply, problem

    async def _ask_again(
        self, outstanding: Outstanding, turn: Turn, reply: Reply, correction: Message
    ) -> Upcoming:
        if (reason := self._spent()) is not None:
            return await self._stop(reason)
        told, more = cast("_Told", outstanding.conversation), [reply.parsed, correction]
        again = _Told(told.messages + more, told.hidden + more)
        return Outstanding(outstanding.call, cast("Conversation", again))


def _tool_prefix(renderer: Renderer, tools: list[Any], system: str) -> list[Message]:
    try:
        return renderer.create_conversation_prefix_with_tools(read_tools(tools), system)
    except (NotImplementedError, RendererError, RendererMismatchError) as error:
        raise bad_request(
            f"The renderer cannot offer these tools: {type(renderer).__name__} {error}",
            param="tools",
        ) from error
