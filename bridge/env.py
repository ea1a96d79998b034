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
    parse error under a policy        ``stop/parse_error`` (without one, the agent gets the text)
    ``close()``                       the agent is cancelled, whatever waits is told
"""

import asyncio
import logging
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import (
    Message,
    ParseFailureKind,
    ParseTermination,
    classify_parse_failure,
)
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.types import (
    PARSE_ERROR_MASKED_METRIC_KEY,
    STOP_METRIC_PREFIX,
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

from evert.bridge.agent import NO_TASK, Agent, inspect_agent, outcome_of
from evert.bridge.client import AgentClient, BlockingAgentClient
from evert.bridge.conversation import Conversation
from evert.bridge.errors import AgentError, AgentTimeoutError, EnvClosedError, EnvStateError
from evert.bridge.lineage import ConversationBook, Drift
from evert.bridge.messages import Reply, read_reply
from evert.bridge.rendering import prompt_renderer
from evert.bridge.switch import AgentEnd, AgentRun, ParkedCall

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

DEFAULT_MODEL_NAME = "policy"
"""What the policy is called when nobody names it."""

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


@dataclass(slots=True)
class _Ending:
    """How an episode ended."""

    reward: float
    metrics: Metrics
    logs: Logs


@dataclass(slots=True)
class _Outstanding:
    """The observation the trainer holds: the parked call and its conversation."""

    call: ParkedCall
    conversation: Conversation


class _LiveLimits:
    """The Env's ``RolloutLimits`` as the runner reads them, with the present call's own token cap.

    A runner takes them once and reads them every turn; ``RolloutLimits`` itself is frozen.
    """

    def __init__(self, env: "ChatAgentEnv") -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env._limits, name)

    @property
    def max_turn_tokens(self) -> int | None:
        """The smaller of the run's cap on a reply and the one the agent asked for."""
        outstanding = self._env._outstanding
        own = outstanding.call.request.max_tokens if outstanding is not None else None
        caps = [cap for cap in (own, self._env._limits.max_turn_tokens) if cap is not None]
        return min(caps, default=None)


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

    Raises:
        InvalidAgentError: ``agent`` is no agent, or does not take these arguments.
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
        }
        self.agent = agent
        self._task = task
        self._renderer = prompt_renderer(renderer)
        self._model_name = model_name
        self._limits = limits if limits is not None else _NO_LIMITS
        self._agent_timeout = agent_timeout
        self._on_agent_error = on_agent_error
        self._on_truncation = on_truncation
        self._parse_errors = parse_error_policy
        self._context_overflow_reward = context_overflow_reward
        self._close_timeout = close_timeout
        self._max_tool_calls = self._limits.max_tool_calls
        self._book = ConversationBook(self._renderer, _max_prompt(self._limits))
        self._run: AgentRun | None = None
        self._outstanding: _Outstanding | None = None
        self._closed = False
        self._tool_calls = 0
        self._parse_errors_in_a_row = 0
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
        run = self._run = AgentRun(self._form, asyncio.get_running_loop())
        client_type = AgentClient if self._form.is_async else BlockingAgentClient
        client = client_type(run, self._model_name)
        run.start(self.agent, (client, self._task) if self._form.takes_task else (client,))
        ending = await self._advance()
        if ending is None:
            return self._observation()
        if self._overflow is None:
            ending.metrics["no_llm_call"] = 1.0
        return InitialObservationOverflow(ending.reward, ending.metrics, ending.logs)

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
        metrics: Metrics = {}
        logs: Logs = {}
        self.turn_lineages.append(outstanding.conversation.lineage)
        self.turn_callers.append(outstanding.call.caller)
        if truncated and self._on_truncation == "end":
            return self._last_step(await self._stop_truncated(), metrics, logs)
        reply, problem = self._parse(list(action), outstanding, truncated)
        if problem is not None:
            metrics["parse_error"] = 1.0
            logs["parse_error"] = problem[1]
            if self._parse_errors is not None:
                handled = await self._apply_parse_policy(
                    problem, list(action), reply, outstanding, metrics, logs
                )
                if handled is not None:
                    return handled
        elif not truncated:
            self._parse_errors_in_a_row = 0
        reply = self._within_tool_budget(reply)
        if outstanding.call.is_waiting:
            outstanding.conversation.record(list(action), reply, self._renderer)
            outstanding.call.answer(reply)
        ending = await self._advance()
        if ending is not None:
            return self._last_step(ending, metrics, logs)
        reward = self._collect_notes(metrics, logs)
        if self._book.latest_drift is not None:
            logs["drift"] = str(self._book.latest_drift)
        observation, stop = self._observation()
        return StepResult(reward, False, observation, stop, metrics, logs)

    async def inject_messages(
        self, messages: Sequence[Message]
    ) -> tuple[Observation, StopCondition]:
        """Add messages to the outstanding prompt that the agent does not know of (a hook's seam).

        Raises:
            EnvStateError: No observation is outstanding.
        """
        outstanding = self._take_outstanding()
        self._book.inject(outstanding.conversation, messages, self._renderer)
        self._outstanding = outstanding
        return self._observation()

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Take a runner's policy for replies that do not parse."""
        self._parse_errors = policy

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Take a runner's cap on tool calls; the tighter of two caps holds."""
        caps = [max_tool_calls, self._max_tool_calls]
        self._max_tool_calls = min(cap for cap in caps if cap is not None)

    @property
    def rollout_limits(self) -> Any:
        """The limits a runner keeps, read anew each turn; the agent's ``max_tokens`` included."""
        return _LiveLimits(self)

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

    def _observation(self) -> tuple[Observation, StopCondition]:
        assert self._outstanding is not None
        stop: StopCondition = list(self._renderer.stop)  # type: ignore[assignment]
        wanted = self._outstanding.call.request.stop
        if wanted:  # token ids and strings cannot be mixed: write the renderer's stops as text
            own = [s if isinstance(s, str) else self._renderer.decode([s]) for s in stop]
            stop = [*own, *wanted]
        return self._outstanding.conversation.prompt(), stop

    async def _advance(self) -> _Ending | None:
        """Wait for the agent's next call, which becomes the outstanding one; or for its ending."""
        run = self._run
        assert run is not None
        while True:
            try:
                event = await run.next_event(self._agent_timeout)
            except AgentTimeoutError:
                await self.close()
                raise
            if isinstance(event, AgentEnd):
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
            self._outstanding = _Outstanding(event, conversation)
            return None

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

    # -- reading an action -----------------------------------------------------------------------

    def _parse(
        self, action: list[int], outstanding: _Outstanding, truncated: bool
    ) -> tuple[Reply, tuple[ParseFailureKind, str] | None]:
        """The reply an action stands for, and what is wrong with it, if anything is."""
        stop = outstanding.call.request.stop
        ended = action + self._renderer.missing_end(action) if truncated or stop else action
        try:
            parsed, termination = self._renderer.parse(ended)
        except RendererError:
            text = self._renderer.decode(action)
            parsed = Message(role="assistant", content=text)
            termination = ParseTermination.MALFORMED
        reply = read_reply(
            parsed,
            truncated=truncated,
            call_ids=f"call-{self.turns}",
            prompt_tokens=outstanding.conversation.length,
            completion_tokens=len(action),
        )
        cuts = [reply.text.index(s) for s in stop if s in reply.text]
        if cuts:
            reply = replace(reply, text=reply.text[: min(cuts)])
        problem = None if truncated else classify_parse_failure(parsed, termination)
        return reply, problem

    async def _apply_parse_policy(
        self,
        problem: tuple[ParseFailureKind, str],
        action: list[int],
        reply: Reply,
        outstanding: _Outstanding,
        metrics: Metrics,
        logs: Logs,
    ) -> StepResult | None:
        """The Cookbook's policy: end on broken framing; ask again on broken tool calls.

        None: the reply holds good tool calls beside the broken ones, and goes to the agent.
        """
        policy = self._parse_errors
        assert policy is not None
        kind, detail = problem
        if kind is ParseFailureKind.CONTENT and reply.tool_calls:
            self._parse_errors_in_a_row = 0
            return None
        logs["parse_failure_kind"] = str(kind)
        if policy.mask_error_turns:
            metrics[PARSE_ERROR_MASKED_METRIC_KEY] = 1.0
        self._parse_errors_in_a_row += 1
        retry = kind is ParseFailureKind.CONTENT
        if not retry or self._parse_errors_in_a_row > policy.max_consecutive:
            ending = await self._stop(StopReason.PARSE_ERROR)
            ending.reward += policy.terminal_reward
            return self._last_step(ending, metrics, logs)
        correction = Message(
            role="user", content=policy.retry_message_template.format(details=detail)
        )
        outstanding.conversation.record(action, reply, self._renderer)
        self._book.inject(outstanding.conversation, [correction], self._renderer)
        outstanding.conversation.reply = None  # the agent has not seen it and cannot send it back
        self._outstanding = outstanding
        observation, stop = self._observation()
        return StepResult(-policy.penalty_per_error, False, observation, stop, metrics, logs)

    def _within_tool_budget(self, reply: Reply) -> Reply:
        """The reply with the tool calls the budget allows; the last one if any are cut."""
        if not reply.tool_calls:
            return reply
        allowed = len(reply.tool_calls)
        if self._max_tool_calls is not None:
            allowed = min(allowed, self._max_tool_calls - self._tool_calls)
        self._tool_calls += allowed
        if allowed < len(reply.tool_calls):
            self._stop_reason = StopReason.MAX_TOOL_CALLS
            return replace(reply, tool_calls=reply.tool_calls[:allowed])
        return reply

    # -- endings ---------------------------------------------------------------------------------

    def _collect_notes(self, metrics: Metrics, logs: Logs) -> float:
        """Move what the agent noted since the last call into a transition; its reward."""
        assert self._run is not None
        notes = self._run.notes
        reward = 0.0
        for _ in range(len(notes)):
            kind, key, value = notes.pop(0)
            if kind == "reward":
                reward += value
            elif kind == "metric":
                metrics[key] = value
            else:
                logs[key] = value
        return reward

    def _last_step(self, ending: _Ending, metrics: Metrics, logs: Logs) -> StepResult:
        return StepResult(
            reward=ending.reward,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=list(self._renderer.stop),  # type: ignore[arg-type]
            metrics={**metrics, **ending.metrics},
            logs={**logs, **ending.logs},
        )

    def _end_with(self, reason: str, reward: float = 0.0) -> _Ending:
        """An ending with the episode's report: stop reason, lineages, drift."""
        metrics: Metrics = {f"{STOP_METRIC_PREFIX}{reason}": 1.0}
        logs: Logs = {}
        reward += self._collect_notes(metrics, logs)
        metrics["lineages"] = self._book.lineages
        metrics["drift"] = self._book.drift.total()
        for cause, count in self._book.drift.items():
            metrics[f"drift/{cause}"] = count
        return _Ending(reward, metrics, logs)

    async def _stop(self, reason: StopReason) -> _Ending:
        """End an episode whose agent would go on."""
        await self.close()
        return self._end_with(reason)

    async def _stop_truncated(self) -> _Ending:
        ending = await self._stop(StopReason.MAX_TOKENS)
        ending.metrics["max_tokens_reached"] = 1.0
        ending.reward += self._context_overflow_reward
        return ending

    async def _stop_overflown(self) -> _Ending:
        await self.close()
        return self._overflown()

    def _overflown(self) -> _Ending:
        reason = StopReason.CONTEXT_OVERFLOW if self.turns else StopReason.MAX_TOKENS
        ending = self._end_with(reason, self._context_overflow_reward)
        ending.metrics["context_overflow" if self.turns else "max_tokens_reached"] = 1.0
        ending.logs["context_overflow"] = str(self._overflow)
        return ending

    def _ending(self, end: AgentEnd) -> _Ending:
        """The ending that an agent's return or exception stands for.

        Raises:
            AgentError, RewardError: See ``step``.
        """
        assert self._run is not None
        error = end.error
        if error is None:
            outcome = outcome_of(end.value, self._form.name, rewarded=self._run.rewarded)
            ending = self._end_with(self._stop_reason or StopReason.COMPLETED)
            ending.reward += outcome.reward or 0.0
            ending.metrics.update(outcome.metrics)
            ending.logs.update(outcome.logs)
            return ending
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        if self._overflow is not None and _comes_from(error, self._overflow):
            return self._overflown()
        if self._on_agent_error is None:
            raise AgentError(
                f"The agent {self._form.name} raised {type(error).__name__} after {self.turns} "
                f"model calls: {error}"
            ) from error
        ending = self._end_with("agent_error", self._on_agent_error)
        ending.logs["agent_error"] = f"{type(error).__name__}: {error}"
        return ending


_NO_LIMITS = RolloutLimits()


def _max_prompt(limits: RolloutLimits) -> int | None:
    """Longest prompt that leaves room for two tokens, which is what a runner needs to sample."""
    budget = limits.max_trajectory_tokens
    return None if budget is None else budget - 2


def _comes_from(error: BaseException | None, origin: BaseException) -> bool:
    """Whether ``origin`` is ``error`` itself or among its causes."""
    seen = 0
    while error is not None and seen < 32:
        if error is origin:
            return True
        error = error.__cause__ or error.__context__
        seen += 1
    return False


@cache
def _long_text_threads() -> ThreadPoolExecutor:
    # Of our own: the loop's default executor may be full of agents' threads that wait for us.
    return ThreadPoolExecutor(2, thread_name_prefix="evert tokenizer")


@cache
def _bad_request_error() -> "type[openai.BadRequestError]":
    import openai

    return openai.BadRequestError
