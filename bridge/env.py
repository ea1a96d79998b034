"""``ChatAgentEnv``: an agent function as a ``tinker_cookbook.rl.types.Env``.

The Env starts the agent (``episode.py``), hands out its first call as the observation
(``lineage.py``), gives it the reply that ``step`` brings, and so on to its end (``endings.py``).
This file is the order of these steps. Every prompt that a trainer gets has passed one gate
(``_offer``), those of retries too, so that budgets hold for all of them.
"""

import asyncio
import logging
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Unpack

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    InitialObservationOverflow,
    Logs,
    Metrics,
    Observation,
    StepResult,
    StopReason,
)

from evert.bridge.actions import (
    FormatRetries,
    ParseErrors,
    Problem,
    ToolBudget,
    Verdict,
    read_action,
)
from evert.bridge.agent import NO_TASK, Agent, inspect_agent
from evert.bridge.conversation import Conversation
from evert.bridge.diagnosis import CALLER, DRIFT, LINEAGE, ToolCounts
from evert.bridge.endings import PEER_STOPPED, Account, Ending
from evert.bridge.episode import Episode, Life, give_threads
from evert.bridge.errors import AgentError, AgentTimeoutError, EnvClosedError, EnvStateError
from evert.bridge.faces import takeover
from evert.bridge.faces.client import AgentClient, BlockingAgentClient
from evert.bridge.faces.endpoint import Endpoint
from evert.bridge.inbox import AgentEnd, Inbox, ParkedCall
from evert.bridge.limits import NO_LIMITS, LiveLimits, longest_prompt
from evert.bridge.lineage import ConversationBook, Drift
from evert.bridge.messages import Reply
from evert.bridge.models import frozen_models
from evert.bridge.options import EnvOptions, settings_of
from evert.bridge.rendering import prompt_renderer
from evert.bridge.requests import ChatRequest
from evert.bridge.routes import policy_names

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

LONG_TEXT = 20_000
"""Characters of new text that take a tokenizer some milliseconds: more is rendered off the loop."""

MAX_REFUSALS = 8
"""Requests refused one after the other before we hold that the agent cannot cope."""


@dataclass(slots=True)
class _Outstanding:
    """The observation the trainer holds: the parked call, its conversation, the drift it met."""

    call: ParkedCall
    conversation: Conversation
    drift: Drift | None = None


@dataclass(slots=True)
class _Turn:
    """One action on its way to the agent, and what its transition carries."""

    tokens: list[int]
    truncated: bool
    logs: Logs
    metrics: Metrics = field(default_factory=dict)
    reward: float = 0.0


class ChatAgentEnv(Env):
    """One episode of a chat agent, as a token-level environment.

    Args:
        agent: ``(client)`` or ``(client, task)``; ``async def`` or a plain function, which then
            runs in a thread of its own. Its return value is the reward (or an ``Outcome``).
        task: Handed to the agent. Left out: the agent takes the client only.
        **options: ``renderer``, ``model_name``, ``limits``, ``agent_timeout``, ``on_agent_error``,
            ``on_truncation``, ``parse_error_policy``, ``context_overflow_reward``,
            ``close_timeout``, ``models``, ``format_retries``: see ``evert.bridge.options``.

    Attributes:
        turn_lineages: Token sequence that each action so far belongs to, in their order.
        turn_callers: Task or thread that made the call which each action answered.

    Raises:
        InvalidAgentError: ``agent`` is no agent, or does not take these arguments.
        InvalidModelError: One of ``models`` is none, or ``model_name`` is no name.
        RendererMismatchError: ``renderer`` is no renderer.
        TypeError, ValueError: There is no such option, or not such a value.

    Like every Env it is single-use. When a rollout is given up, call ``close()`` (a group builder's
    ``cleanup`` does).
    """

    def __init__(self, agent: Agent, task: object = NO_TASK, **options: Unpack[EnvOptions]) -> None:
        self._form = inspect_agent(agent, task)
        self.agent = agent
        self._task = task
        self._options = options
        self._settings = settings = settings_of(options)
        self._renderer = prompt_renderer(settings.renderer)
        self._names = policy_names(settings.model_name)
        self._frozen = frozen_models(settings.models or {}, self._names, self._renderer)
        self._limits = settings.limits if settings.limits is not None else NO_LIMITS
        self._parse_errors = ParseErrors(settings.parse_error_policy)
        self._formats = FormatRetries(settings.format_retries)
        self._tool_budget = ToolBudget(self._limits.max_tool_calls)
        self._book = ConversationBook(self._renderer, longest_prompt(self._limits))
        self._account = Account(
            self._form.name,
            self._book,
            ToolCounts(),
            settings.context_overflow_reward,
            settings.on_agent_error,
        )
        self._episode: Episode | None = None
        self._outstanding: _Outstanding | None = None
        self._closed = False
        self._refusals = 0
        self.turn_lineages: list[int] = []
        self.turn_callers: list[str] = []

    # -- what the Cookbook calls -----------------------------------------------------------------

    async def initial_observation(
        self,
    ) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        """Start the agent and return the prompt of its first model call.

        An agent that ends without calling, or whose first prompt is over the budget, gives an
        ``InitialObservationOverflow`` with its reward.

        Raises:
            AgentError, AgentTimeoutError, RewardError, EnvClosedError: As ``step``.
            EnvStateError: The Env was used before.
        """
        if self._episode is not None:
            raise EnvStateError(
                "initial_observation() was called twice on one ChatAgentEnv. An Env is one "
                "episode: make a new one for the next."
            )
        self._refuse_if_closed()
        self._episode, self._account.inbox = await self._begin()
        upcoming = await self._advance()
        if isinstance(upcoming, _Outstanding):
            return self._hand_out(upcoming)
        if self._account.overflow is None:
            upcoming.metrics["no_llm_call"] = 1.0
        return upcoming.as_overflow()

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Resume the agent with a sampled action and return at its next call or its end.

        Args:
            action: Token ids as sampled; they are kept exactly.
            extra: ``stop_reason`` "length" says the action was cut at its token cap.

        Raises:
            AgentError: The agent raised (unless ``on_agent_error`` scores that).
            AgentTimeoutError: It neither called nor ended within ``agent_timeout``.
            RewardError: It ended without a reward, or with something that is none.
            EnvStateError: No observation is outstanding.
            EnvClosedError: The Env was closed before or meanwhile.
        """
        outstanding = self._take_outstanding()
        truncated = (extra or {}).get("stop_reason") == "length"
        caller, lineage = outstanding.call.caller, outstanding.conversation.lineage
        turn = _Turn(list(action), truncated, {CALLER: caller, LINEAGE: lineage})
        self.turn_lineages.append(lineage)
        self.turn_callers.append(caller)
        self._account.turns += 1
        upcoming = await self._resume(outstanding, turn)
        if isinstance(upcoming, Ending):
            upcoming.reward += turn.reward
            return upcoming.as_step(turn.metrics, turn.logs, self._renderer.stop)
        if upcoming.drift is not None:
            turn.logs[DRIFT] = str(upcoming.drift)
        turn.reward += self._account.take_notes(turn.metrics, turn.logs)
        observation, stop = self._hand_out(upcoming)
        return StepResult(turn.reward, False, observation, stop, turn.metrics, turn.logs)

    # -- the seams of the Cookbook's runner ------------------------------------------------------

    async def inject_messages(
        self, messages: Sequence[Message]
    ) -> tuple[Observation, StopCondition]:
        """Add messages to the outstanding prompt that the agent does not know of (a hook's seam).

        Raises:
            EnvStateError: No observation is outstanding.
            RendererMismatchError, ValueError: The renderer cannot show the messages; the
                observation stands as it was.
        """
        outstanding = self._take_outstanding()
        try:
            self._book.inject(outstanding.conversation, messages, self._renderer)
        finally:
            handed_out = self._hand_out(outstanding)
        return handed_out

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Take a runner's policy for replies that do not parse."""
        self._parse_errors = ParseErrors(policy)

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Take a runner's cap on tool calls; the tighter of two caps holds."""
        self._tool_budget.tighten(max_tool_calls)

    @property
    def rollout_limits(self) -> LiveLimits:
        """The limits a runner keeps, read anew each turn; the agent's ``max_tokens`` included."""
        return LiveLimits(
            self._limits, lambda: None if self.request is None else self.request.max_tokens
        )

    # -- what users read -------------------------------------------------------------------------

    def renewed(self) -> "ChatAgentEnv":
        """A new episode of the same agent, task and options."""
        return ChatAgentEnv(self.agent, self._task, **self._options)

    @property
    def renderer(self) -> Renderer:
        """The Cookbook renderer in use."""
        return self._renderer.renderer

    @property
    def turns(self) -> int:
        """Number of actions taken so far."""
        return self._account.turns

    @property
    def is_running(self) -> bool:
        """Whether the agent was started and has not ended."""
        return self._episode is not None and not self._episode.is_over

    @property
    def request(self) -> ChatRequest | None:
        """The agent's call that waits for a reply; None when there is none."""
        return self._outstanding.call.request if self._outstanding is not None else None

    @property
    def conversation(self) -> Conversation | None:
        """The conversation of the outstanding observation; None when there is none."""
        return self._outstanding.conversation if self._outstanding is not None else None

    @property
    def drift(self) -> Counter[Drift]:
        """How often a conversation could not go on token for token, by cause."""
        return self._book.drift

    def report(self) -> Metrics:
        """Lineages, drift and tool calls so far, as the last transition carries them."""
        return self._account.report()

    # -- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Give the episode up: cancel the agent, run its ``finally`` blocks, join its thread.

        Idempotent, and safe while a ``step`` is waiting, which then raises ``EnvClosedError``.
        From another event loop it works as long as the Env's own is running; once that is gone, a
        thread that still waits is released.
        """
        self._closed = True
        self._outstanding = None
        episode, patience = self._episode, self._settings.close_timeout
        if episode is None:
            return
        if not episode.loop.is_running():
            episode.abandon()
            return
        if episode.loop is asyncio.get_running_loop():
            ended = await episode.close(patience)
        else:
            elsewhere = asyncio.run_coroutine_threadsafe(episode.close(patience), episode.loop)
            ended = await asyncio.wrap_future(elsewhere)
        if not ended:
            logger.error(
                "The agent %s did not end within %s s of being cancelled; it is left behind. It "
                "swallows cancellation, or blocks in a thread.",
                self._form.name,
                2 * patience,
            )

    def __del__(self) -> None:
        episode = getattr(self, "_episode", None)
        if episode is not None and not self._closed and not episode.is_over:
            episode.drop()  # else its thread would wait for ever
            warnings.warn(
                f"A ChatAgentEnv of {episode.form.name} was dropped while its agent was running; "
                "call close().",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EnvClosedError(
                f"This ChatAgentEnv of {self._form.name} was closed; make a new one for a new "
                "episode."
            )

    # -- beginning, and handing out --------------------------------------------------------------

    async def _begin(self) -> tuple[Episode, Inbox]:
        """Start the agent; the episode, and the inbox that this Env reads."""
        episode = Episode(self._form, asyncio.get_running_loop(), [self._names], self._frozen)
        self._start(episode, self._names[0])
        return episode, episode.inboxes[0]

    def _start(self, episode: Episode, model: str) -> None:
        """Start the agent; its calls go to ``model`` unless they name one."""
        form = self._form
        endpoint = Endpoint(episode, episode.inboxes[0], model, self._renderer)
        client = (AgentClient if form.is_async else BlockingAgentClient)(endpoint)
        arguments = (client,) * form.takes_client + (self._task,) * form.takes_task
        takeover.install()
        give_threads(episode.loop)
        episode.start(self.agent, arguments, takeover.agent_context(endpoint))

    def _running(self) -> tuple[Episode, Inbox]:
        if self._episode is None or self._account.inbox is None:
            raise EnvStateError("This ChatAgentEnv was not started; call initial_observation().")
        return self._episode, self._account.inbox

    def _own_share(self, value: Any) -> Any:
        """The part of the agent's return value that is this Env's: all of it."""
        return value

    def _take_outstanding(self) -> _Outstanding:
        self._refuse_if_closed()
        if self._episode is not None and self._episode.loop is not asyncio.get_running_loop():
            raise EnvStateError(
                "A ChatAgentEnv was stepped on another event loop than the one it was started on. "
                "Play an episode within one asyncio.run(...)."
            )
        outstanding, self._outstanding = self._outstanding, None
        if outstanding is None:
            raise EnvStateError(
                "No observation is outstanding. Call initial_observation() first, then step() once "
                "for each observation, and no more after episode_done (an episode whose agent has "
                "ended cannot be continued, by a hook neither); got a step out of turn."
            )
        return outstanding

    def _hand_out(self, outstanding: _Outstanding) -> tuple[Observation, StopCondition]:
        """Make this call the outstanding one; its prompt and where to stop."""
        self._outstanding = outstanding
        stop = self._renderer.stop_with(outstanding.call.request.stop)
        return outstanding.conversation.prompt(), stop

    # -- the action ------------------------------------------------------------------------------

    async def _resume(self, outstanding: _Outstanding, turn: _Turn) -> "_Outstanding | Ending":
        """Give the agent the reply, or ask for another one; on to the next prompt or the end."""
        call, conversation = outstanding.call, outstanding.conversation
        if turn.truncated and self._settings.on_truncation == "end":
            await self.close()
            return self._account.cut()
        reply, problem = self._read(outstanding, turn)
        self._account.tools.count(call.request, reply)
        verdict = self._parse_errors.judge(reply, problem, turn.metrics, turn.logs)
        if verdict is Verdict.END:
            policy = self._parse_errors.policy
            turn.reward += 0.0 if policy is None else policy.terminal_reward
            return await self._stop(StopReason.PARSE_ERROR)
        if verdict is Verdict.ASK_AGAIN and problem is not None and call.is_waiting:
            policy = self._parse_errors.policy
            turn.reward -= 0.0 if policy is None else policy.penalty_per_error
            correction = self._parse_errors.correction(problem)
            return await self._ask_again(outstanding, turn, reply, correction)
        if call.request.format is not None:
            wanted = call.request.format
            reply, complaint = self._formats.judge(reply, wanted, turn.metrics, turn.logs)
            if complaint is not None and call.is_waiting:
                return await self._ask_again(outstanding, turn, reply, complaint)
        reply, cut = self._tool_budget.allow(reply)
        if cut:
            self._account.stop_reason = StopReason.MAX_TOOL_CALLS
        if call.is_waiting:
            conversation.record(turn.tokens, reply, self._renderer)
            call.answer(reply)
        return await self._advance()

    def _read(self, outstanding: _Outstanding, turn: _Turn) -> tuple[Reply, Problem | None]:
        """The reply of an action, no longer than the agent asked for."""
        request = outstanding.call.request

        def read(tokens: list[int], truncated: bool) -> tuple[Reply, Problem | None]:
            return read_action(
                tokens,
                self._renderer,
                truncated=truncated,
                stop=request.stop,
                call_ids=f"call-{self._account.turns - 1}",
                prompt_tokens=outstanding.conversation.length,
            )

        reply, problem = read(turn.tokens, turn.truncated)
        cap = request.max_tokens
        if cap is None or len(turn.tokens) <= cap:
            return reply, problem
        # A runner with limits of its own did not know of the agent's cap.
        short, _ = read(turn.tokens[:cap], True)
        return replace(short, parsed=reply.parsed), None

    async def _ask_again(
        self, outstanding: _Outstanding, turn: _Turn, reply: Reply, correction: Message
    ) -> "_Outstanding | Ending":
        """Put an action that the agent never sees, and what was wrong with it, into the prompt."""
        conversation = outstanding.conversation
        if (reason := self._spent()) is not None:
            return await self._stop(reason)
        conversation.record(turn.tokens, reply, self._renderer)
        self._book.inject(conversation, [correction], self._renderer)
        conversation.reply = None  # the agent cannot send it back
        longest = longest_prompt(self._limits)
        if longest is not None and conversation.length > longest:
            await self.close()
            return self._account.overflown()
        return _Outstanding(outstanding.call, conversation)

    # -- from one call to the next ---------------------------------------------------------------

    async def _advance(self) -> "_Outstanding | Ending":
        """Wait for the agent's next call that can be served, or for its ending."""
        episode, inbox = self._running()
        while True:
            try:
                event = await inbox.take(self._settings.agent_timeout)
            except AgentTimeoutError:
                await self.close()
                raise
            except EnvClosedError:
                if self._closed:
                    raise
                return self._account.ending(PEER_STOPPED)
            if episode.life is Life.CLOSED and not self._closed:
                await episode.release()
                return self._account.ending(PEER_STOPPED)
            if isinstance(event, AgentEnd):
                await episode.release()
                share = None if event.error is not None else self._own_share(event.value)
                return self._account.of_agent(event.error, share)
            if (reason := self._spent()) is not None:
                return await self._stop(reason)
            try:
                conversation = await self._observe(event)
            except _bad_request_error() as error:
                if await self._refuse(event, error):
                    continue
                await self.close()
                return self._account.overflown()
            self._refuse_if_closed()
            self._refusals, self._account.overflow = 0, None
            return _Outstanding(event, conversation, self._book.latest_drift)

    def _spent(self) -> StopReason | None:
        """Why there may be no further turn; None: there may."""
        limit = self._limits.max_turns
        if limit is not None and self._account.turns >= limit:
            return self._account.stop_reason or StopReason.MAX_TURNS
        return self._account.stop_reason

    async def _stop(self, reason: StopReason) -> Ending:
        """End an episode whose agent would go on."""
        await self.close()
        return self._account.ending(reason)

    async def _observe(self, call: ParkedCall) -> Conversation:
        if self._book.new_text(call.request, call.caller) <= LONG_TEXT:
            return self._book.observe(call.request, call.caller, self._renderer)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            _long_text_threads(),
            lambda: self._book.observe(call.request, call.caller, self._renderer.off_loop),
        )

    async def _refuse(self, call: ParkedCall, error: "openai.BadRequestError") -> bool:
        """Give a call its 400; False when it is the last of too many, all too long.

        Raises:
            AgentError: The last of too many, for other reasons.
        """
        self._refusals += 1
        is_overflow = error.code == "context_length_exceeded"
        self._account.overflow = error if is_overflow else None
        if self._refusals < MAX_REFUSALS:
            call.refuse(error)
            return True
        if is_overflow:
            return False
        await self.close()
        raise AgentError.of(
            type(error).__name__,
            f"The agent {self._form.name} made {self._refusals} requests in a row that were "
            f"refused; the last refusal: {error}",
        ) from error


@cache
def _long_text_threads() -> ThreadPoolExecutor:
    # Of our own: the loop's default executor may be full of agents' threads that wait for us.
    return ThreadPoolExecutor(2, thread_name_prefix="evert tokenizer")


@cache
def _bad_request_error() -> "type[openai.BadRequestError]":
    import openai

    return openai.BadRequestError
