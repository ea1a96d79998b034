"""``ChatAgentEnv``: an agent function as a ``tinker_cookbook.rl.types.Env``.

The Env starts the agent (``switch.py``), hands out its first call as the observation
(``lineage.py``), gives it the reply that ``step`` brings, and so on to its end. This file is the
order of these steps, and the rules for every way an episode can end:

    the agent returns                 reward, ``stop/completed``
    the agent raises                  ``AgentError``, or ``on_agent_error`` as the reward
    no call and no end in time        ``AgentTimeoutError``, the agent is cancelled
    ``limits.max_turns`` calls made   ``stop/max_turns``
    prompt over the token budget      the agent gets a 400; if it does not cope,
                                      ``stop/context_overflow`` and ``context_overflow_reward``
    tool calls over the budget        ``stop/max_tool_calls``
    reply not in the format asked     asked again ``format_retries`` times, then delivered as it is
    parse error under a policy        ``stop/parse_error`` (without one, the agent gets the text)
    ``close()``                       the agent is cancelled, whatever waits is told
"""

import asyncio
import logging
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
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

from evert.bridge.actions import FormatRetries, ParseErrors, ToolBudget, Verdict, read_action
from evert.bridge.agent import NO_TASK, Agent, inspect_agent, outcome_of
from evert.bridge.conversation import Conversation
from evert.bridge.diagnosis import CALLER, DRIFT, LINEAGE, ToolCounts
from evert.bridge.endings import Ending, comes_from, end_with, take_notes
from evert.bridge.errors import AgentError, AgentTimeoutError, EnvClosedError, EnvStateError
from evert.bridge.faces import takeover
from evert.bridge.faces.client import AgentClient, BlockingAgentClient
from evert.bridge.faces.endpoint import Endpoint
from evert.bridge.limits import NO_LIMITS, LiveLimits, longest_prompt
from evert.bridge.lineage import ConversationBook, Drift
from evert.bridge.messages import Reply
from evert.bridge.models import FrozenModel, frozen_models
from evert.bridge.rendering import prompt_renderer
from evert.bridge.requests import ChatRequest
from evert.bridge.switch import AgentEnd, AgentRun, ParkedCall, give_threads

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

DEFAULT_MODEL_NAME = "policy"
"""What the policy is called when nobody names it."""

PEER_STOPPED = "peer_stopped"
"""Stop reason of a seat whose episode was ended at another seat (``seats.py``)."""

LONG_TEXT = 20_000
"""Characters of new text that take a tokenizer some milliseconds: more is rendered off the loop."""

MAX_REFUSALS = 8
"""Requests refused one after the other before we hold that the agent cannot cope."""


class EnvOptions(TypedDict, total=False):
    """Options of ``ChatAgentEnv`` that a group builder passes on (see there)."""

    renderer: Renderer | None
    model_name: str
    limits: RolloutLimits | None
    agent_timeout: float | None
    on_agent_error: float | None
    on_truncation: Literal["deliver", "end"]
    parse_error_policy: ParseErrorPolicy | None
    context_overflow_reward: float
    close_timeout: float
    models: Mapping[str, FrozenModel] | None
    format_retries: int


@dataclass(slots=True)
class _Outstanding:
    """The observation the trainer holds: the parked call and its conversation."""

    call: ParkedCall
    conversation: Conversation


class ChatAgentEnv(Env):
    """One episode of a chat agent, as a token-level environment.

    Args:
        agent: ``(client)`` or ``(client, task)``; ``async def`` or a plain function, which then
            runs in a thread of its own. Its return value is the reward (or an ``Outcome``).
        task: Handed to the agent. Left out: the agent takes the client only.
        renderer: A Cookbook renderer. None: the shipped base's tokenizer and chat format.
        model_name: What the agent calls the policy.
        limits: The Cookbook's budgets. ``max_turns`` and ``max_trajectory_tokens`` are kept by the
            Env, so that the agent learns of them; a runner keeps the others.
        agent_timeout: Seconds the agent may take between two calls. None: for ever.
        on_agent_error: Reward of an episode whose agent raised. None: ``step`` raises
            ``AgentError`` from the agent's exception.
        on_truncation: What to do with a reply cut at its token cap: "deliver" it to the agent
            with ``finish_reason="length"``, or "end" the episode as ``EnvFromMessageEnv`` does.
        parse_error_policy: The Cookbook's policy for replies that do not parse. None: the agent
            gets the text as it is, and the transition is marked with ``parse_error``.
        context_overflow_reward: Added when an episode ends because its prompt grew too long.
        close_timeout: Seconds that ``close`` waits for the agent, twice.
        models: Models that the agent may call beside the policy, by name (``models.py``).
        format_retries: How often a reply is asked for again that is not as ``response_format`` or
            a forced ``tool_choice`` has it; each time is a transition.

    Raises:
        InvalidAgentError: ``agent`` is no agent, or does not take these arguments.
        InvalidModelError: One of ``models`` is none.
        RendererMismatchError: ``renderer`` is no renderer.

    Like every Env it is single-use. When a rollout is given up, call ``close()`` (a group builder's
    ``cleanup`` does).
    """

    def __init__(
        self,
        agent: Agent,
        task: object = NO_TASK,
        *,
        renderer: Renderer | None = None,
        model_name: str = DEFAULT_MODEL_NAME,
        limits: RolloutLimits | None = None,
        agent_timeout: float | None = 600.0,
        on_agent_error: float | None = None,
        on_truncation: Literal["deliver", "end"] = "deliver",
        parse_error_policy: ParseErrorPolicy | None = None,
        context_overflow_reward: float = -0.1,
        close_timeout: float = 1.0,
        models: Mapping[str, FrozenModel] | None = None,
        format_retries: int = 2,
    ) -> None:
        self._form = inspect_agent(agent, task)
        self._options: EnvOptions = {
            "renderer": renderer,
            "model_name": model_name,
            "limits": limits,
            "agent_timeout": agent_timeout,
            "on_agent_error": on_agent_error,
            "on_truncation": on_truncation,
            "parse_error_policy": parse_error_policy,
            "context_overflow_reward": context_overflow_reward,
            "close_timeout": close_timeout,
            "models": models,
            "format_retries": format_retries,
        }
        self.agent = agent
        self._task = task
        self._renderer = prompt_renderer(renderer)
        self._model_name = model_name
        self._limits = limits if limits is not None else NO_LIMITS
        self._agent_timeout = agent_timeout
        self._on_agent_error = on_agent_error
        self._on_truncation = on_truncation
        self._parse_errors = ParseErrors(parse_error_policy)
        self._context_overflow_reward = context_overflow_reward
        self._close_timeout = close_timeout
        self._frozen = frozen_models(models or {}, model_name, self._renderer)
        self._formats = FormatRetries(format_retries)
        self._tool_counts = ToolCounts()
        self._tool_budget = ToolBudget(self._limits.max_tool_calls)
        self._book = ConversationBook(self._renderer, longest_prompt(self._limits))
        self._run: AgentRun | None = None
        self._outstanding: _Outstanding | None = None
        self._closed = False
        self._refusals = 0
        self._overflow: openai.BadRequestError | None = None
        self._stop_reason: StopReason | None = None
        self.turn_lineages: list[int] = []
        """Token sequence that each action so far belongs to, in order of the actions."""
        self.turn_callers: list[str] = []
        """Task or thread that made the call which each action answered."""

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
        if self._run is not None:
            raise EnvStateError(
                "initial_observation() was called twice on one ChatAgentEnv. An Env is one "
                "episode: make a new one for the next."
            )
        self._refuse_if_closed()
        run = self._run = AgentRun(self._form, asyncio.get_running_loop(), self._frozen)
        await self._begin(run, self._model_name)
        upcoming = await self._advance()
        if isinstance(upcoming, _Outstanding):
            return self._hand_out(upcoming)
        ending = upcoming
        if self._overflow is None:
            ending.metrics["no_llm_call"] = 1.0
        return ending.as_overflow()

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
        call, conversation = outstanding.call, outstanding.conversation
        tokens = list(action)
        truncated = (extra or {}).get("stop_reason") == "length"
        metrics: Metrics = {}
        logs: Logs = {}
        logs[CALLER], logs[LINEAGE] = call.caller, conversation.lineage
        call_ids = f"call-{self.turns}"
        self.turn_lineages.append(conversation.lineage)
        self.turn_callers.append(call.caller)
        if truncated and self._on_truncation == "end":
            return self._last_step(await self._stop_truncated(), metrics, logs)
        reply, problem = read_action(
            tokens,
            self._renderer,
            truncated=truncated,
            stop=call.request.stop,
            call_ids=call_ids,
            prompt_tokens=conversation.length,
        )
        self._tool_counts.count(call.request, reply)
        verdict = self._parse_errors.judge(reply, problem, metrics, logs)
        if verdict is Verdict.END:
            return self._last_step(await self._stop_unparsed(), metrics, logs)
        if verdict is Verdict.ASK_AGAIN:
            assert problem is not None
            correction = self._parse_errors.correction(problem)
            self._ask_again(conversation, tokens, reply, correction)
            return self._next_step(outstanding, metrics, logs, self._penalty())
        if call.request.format is not None:
            reply, complaint = self._formats.judge(reply, call.request.format, metrics, logs)
            if complaint is not None and call.is_waiting:
                self._ask_again(conversation, tokens, reply, complaint)
                return self._next_step(outstanding, metrics, logs)
        reply, cut = self._tool_budget.allow(reply)
        if cut:
            self._stop_reason = StopReason.MAX_TOOL_CALLS
        if call.is_waiting:
            conversation.record(tokens, reply, self._renderer)
            call.answer(reply)
        upcoming = await self._advance()
        if isinstance(upcoming, Ending):
            return self._last_step(upcoming, metrics, logs)
        if self._book.latest_drift is not None:
            logs[DRIFT] = str(self._book.latest_drift)
        return self._next_step(upcoming, metrics, logs)

    def _ask_again(
        self, conversation: Conversation, action: list[int], reply: Reply, correction: Message
    ) -> None:
        """Put an action that the agent never sees, and what was wrong with it, into the prompt."""
        conversation.record(action, reply, self._renderer)
        self._book.inject(conversation, [correction], self._renderer)
        conversation.reply = None  # the agent cannot send it back

    async def inject_messages(
        self, messages: Sequence[Message]
    ) -> tuple[Observation, StopCondition]:
        """Add messages to the outstanding prompt that the agent does not know of (a hook's seam).

        Raises:
            EnvStateError: No observation is outstanding.
        """
        outstanding = self._take_outstanding()
        self._book.inject(outstanding.conversation, messages, self._renderer)
        return self._hand_out(outstanding)

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Take a runner's policy for replies that do not parse."""
        self._parse_errors = ParseErrors(policy)

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Take a runner's cap on tool calls; the tighter of two caps holds."""
        self._tool_budget.tighten(max_tool_calls)

    @property
    def rollout_limits(self) -> LiveLimits:
        """The limits a runner keeps, read anew each turn; the agent's ``max_tokens`` included."""
        return LiveLimits(self._limits, self._present_cap)

    def _present_cap(self) -> int | None:
        return self.request.max_tokens if self.request is not None else None

    # -- what users read -------------------------------------------------------------------------

    def renewed(self) -> "ChatAgentEnv":
        """A new episode of the same agent, task and options."""
        return ChatAgentEnv(self.agent, self._task, **self._options)

    @property
    def renderer(self) -> Renderer:
        """The Cookbook renderer in use."""
        return self._renderer.renderer

    @property
    def is_running(self) -> bool:
        """Whether the agent was started and has not ended."""
        return self._run is not None and not self._run.is_over

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

    async def close(self) -> None:
        """Give the episode up: cancel the agent, run its ``finally`` blocks, join its thread.

        Idempotent, and safe while a ``step`` is waiting, which then raises ``EnvClosedError``.
        From another event loop it works as long as the Env's own is running; once that is gone, a
        thread that still waits is released.
        """
        self._closed = True
        self._outstanding = None
        run = self._run
        if run is None or run.is_over:
            return
        if not run.loop.is_running():
            run.abandon()
            return
        if run.loop is asyncio.get_running_loop():
            ended = await run.close(self._close_timeout)
        else:
            elsewhere = run.close(self._close_timeout)
            ended = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(elsewhere, run.loop))
        if not ended:
            logger.error(
                "The agent %s did not end within %s s of being cancelled; it is left behind. It "
                "swallows cancellation, or blocks in a thread.",
                self._form.name,
                2 * self._close_timeout,
            )

    def __del__(self) -> None:
        run = getattr(self, "_run", None)
        if run is not None and not run.is_over and not run.form.is_async:
            run.abandon()  # else its thread would wait for ever
            warnings.warn(
                f"A ChatAgentEnv of {run.form.name} was dropped while its agent was running; call "
                "close().",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    # -- from one call to the next ---------------------------------------------------------------

    async def _begin(self, run: AgentRun, model: str) -> None:
        """Start the agent; its calls are ``run``'s, and go to ``model`` unless they name one."""
        form = self._form
        endpoint = Endpoint(run, model, self._renderer)
        client_type = AgentClient if form.is_async else BlockingAgentClient
        client = client_type(run, model, endpoint)
        arguments = (client,) * form.takes_client + (self._task,) * form.takes_task
        takeover.install()
        give_threads(run.loop)
        run.start(self.agent, arguments, takeover.agent_context(endpoint))

    def _own_share(self, value: Any) -> Any:
        """The part of the agent's return value that is this Env's: all of it."""
        return value

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EnvClosedError(
                f"This ChatAgentEnv of {self._form.name} was closed; make a new one for a new "
                "episode."
            )

    def _take_outstanding(self) -> _Outstanding:
        self._refuse_if_closed()
        outstanding, self._outstanding = self._outstanding, None
        if self._run is not None and self._run.loop is not asyncio.get_running_loop():
            raise EnvStateError(
                "A ChatAgentEnv was stepped on another event loop than the one it was started on. "
                "Play an episode within one asyncio.run(...)."
            )
        if outstanding is None:
            raise EnvStateError(
                "No observation is outstanding. Call initial_observation() first, then step() once "
                "for each observation, and no more after episode_done; got a step out of turn."
            )
        return outstanding

    def _hand_out(self, outstanding: _Outstanding) -> tuple[Observation, StopCondition]:
        """Make this call the outstanding one; its prompt and where to stop."""
        self._outstanding = outstanding
        stop = self._renderer.stop_with(outstanding.call.request.stop)
        return outstanding.conversation.prompt(), stop

    def _next_step(
        self, upcoming: _Outstanding, metrics: Metrics, logs: Logs, reward: float = 0.0
    ) -> StepResult:
        assert self._run is not None
        reward += take_notes(self._run, metrics, logs)
        observation, stop = self._hand_out(upcoming)
        return StepResult(reward, False, observation, stop, metrics, logs)

    def _last_step(self, ending: Ending, metrics: Metrics, logs: Logs) -> StepResult:
        return ending.as_step(metrics, logs, self._renderer.stop)

    async def _advance(self) -> "_Outstanding | Ending":
        """Wait for the agent's next call that can be served, or for its ending."""
        run = self._run
        assert run is not None
        while True:
            try:
                event = await run.next_event(self._agent_timeout)
            except AgentTimeoutError:
                await self.close()
                raise
            except EnvClosedError:
                if self._closed:
                    raise
                return self._end_with(PEER_STOPPED)
            if run.is_closed and not self._closed:
                await run.release()
                return self._end_with(PEER_STOPPED)
            if isinstance(event, AgentEnd):
                await run.release()
                return self._ending(event)
            reason = self._stop_reason
            if self._limits.max_turns is not None and self.turns >= self._limits.max_turns:
                reason = reason or StopReason.MAX_TURNS
            if reason is not None:
                return await self._stop(reason)
            try:
                conversation = await self._observe(event)
            except _bad_request_error() as error:
                if await self._refuse(event, error):
                    continue
                return await self._stop_overflown()
            self._refusals = 0
            return _Outstanding(event, conversation)

    @property
    def turns(self) -> int:
        """Number of actions taken so far."""
        return len(self.turn_lineages)

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
        self._overflow = error if error.code == "context_length_exceeded" else None
        if self._refusals < MAX_REFUSALS:
            call.refuse(error)
            return True
        if self._overflow is not None:
            return False
        await self.close()
        raise AgentError(
            f"The agent {self._form.name} made {self._refusals} requests in a row that were "
            f"refused; the last refusal: {error}"
        ) from error

    # -- endings ---------------------------------------------------------------------------------

    def _end_with(self, reason: str, reward: float = 0.0) -> Ending:
        assert self._run is not None
        ending = end_with(reason, self._run, self._book, reward)
        self._tool_counts.report(ending.metrics)
        return ending

    def _penalty(self) -> float:
        policy = self._parse_errors.policy
        return 0.0 if policy is None else -policy.penalty_per_error

    async def _stop_unparsed(self) -> Ending:
        ending = await self._stop(StopReason.PARSE_ERROR)
        if self._parse_errors.policy is not None:
            ending.reward += self._parse_errors.policy.terminal_reward
        return ending

    async def _stop(self, reason: StopReason) -> Ending:
        """End an episode whose agent would go on."""
        await self.close()
        return self._end_with(reason)

    async def _stop_truncated(self) -> Ending:
        ending = await self._stop(StopReason.MAX_TOKENS)
        ending.metrics["max_tokens_reached"] = 1.0
        ending.reward += self._context_overflow_reward
        return ending

    async def _stop_overflown(self) -> Ending:
        await self.close()
        return self._overflown()

    def _overflown(self) -> Ending:
        reason = StopReason.CONTEXT_OVERFLOW if self.turns else StopReason.MAX_TOKENS
        ending = self._end_with(reason, self._context_overflow_reward)
        ending.metrics["context_overflow" if self.turns else "max_tokens_reached"] = 1.0
        ending.logs["context_overflow"] = str(self._overflow)
        return ending

    def _ending(self, end: AgentEnd) -> Ending:
        """The ending that an agent's return or exception stands for.

        Raises:
            AgentError, RewardError: See ``step``.
        """
        assert self._run is not None
        error = end.error
        if error is None:
            value = self._own_share(end.value)
            outcome = outcome_of(value, self._form.name, rewarded=self._run.rewarded)
            ending = self._end_with(self._stop_reason or StopReason.COMPLETED)
            ending.reward += outcome.reward or 0.0
            ending.metrics.update(outcome.metrics)
            ending.logs.update(outcome.logs)
            return ending
        if isinstance(error, KeyboardInterrupt):
            raise error
        if self._overflow is not None and comes_from(error, self._overflow):
            return self._overflown()
        if self._on_agent_error is None:
            raise AgentError(
                f"The agent {self._form.name} raised {type(error).__name__} after {self.turns} "
                f"model calls: {error}"
            ) from error
        ending = self._end_with("agent_error", self._on_agent_error)
        ending.logs["agent_error"] = f"{type(error).__name__}: {error}"
        return ending


@cache
def _long_text_threads() -> ThreadPoolExecutor:
    # Of our own: the loop's default executor may be full of agents' threads that wait for us.
    return ThreadPoolExecutor(2, thread_name_prefix="evert tokenizer")


@cache
def _bad_request_error() -> "type[openai.BadRequestError]":
    import openai

    return openai.BadRequestError
