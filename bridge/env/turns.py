"""Turns: processes an action and returns the next prompt or the end of the episode.

``resume`` parses an action and passes the reply to the agent, or asks the policy to try again. It
returns the next ``Outstanding`` call with its prompt, or an ``Ending``. ``_stop_reason`` checks the
budgets before every prompt, including retries. The runner samples all prompts except the prompts of
concurrent calls (``open_calls.py``).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import openai
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.types import Observation, StopReason

from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.matching import ConversationBook
from evert.bridge.env.endings import MAX_REFUSALS, PEER_STOPPED, Account, Ending
from evert.bridge.env.limits import Budget
from evert.bridge.env.open_calls import OpenCalls
from evert.bridge.env.options import EnvSettings
from evert.bridge.env.pending import GIVEN_UP, UNTRAINED, EnvState, Outstanding, Standing, Turn
from evert.bridge.env.reply_policies import FormatRetries, ParseErrors, ToolBudget, Verdict
from evert.bridge.episode.episode import Episode, EpisodeState
from evert.bridge.episode.inbox import AgentEnd, Inbox, ParkedCall
from evert.bridge.errors import AgentTimeoutError, EnvClosedError, EnvStateError
from evert.bridge.tokens.actions import Problem, read_action
from evert.bridge.tokens.logprobs import with_logprobs
from evert.bridge.tokens.loop_budget import LongTexts, check_tokens
from evert.bridge.tokens.renderer import PromptRenderer

logger = logging.getLogger(__name__)

Upcoming: TypeAlias = Outstanding | Ending


class Turns:
    """The turns of one Env.

    ``share`` extracts this Env's share of the agent's return value.

    Attributes:
        episode: The episode, or None before it starts.
        standing: The state of the Env.
    """

    def __init__(
        self,
        agent: str,
        settings: EnvSettings,
        renderer: PromptRenderer,
        share: Callable[[Any], Any],
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._renderer = renderer
        self._formats = FormatRetries(settings.format_retries)
        self._refusals = 0
        self._share = share
        self.parse_errors = ParseErrors(settings.parse_error_policy)
        self.tool_budget = ToolBudget(settings.limits.max_tool_calls)
        self.budget = Budget(settings.limits, settings.context_length)
        self.book = ConversationBook(
            renderer, self.budget.prompt, keeps_completed=settings.keep_completed_arguments
        )
        self.account = Account(agent, self.book, settings, self.budget)
        self.episode: Episode | None = None
        self.standing = Standing()
        self.open_calls = OpenCalls(self.account, self.standing)
        self._long_texts = LongTexts(renderer, self.budget.prompt.tokens)

    async def begin(self, episode: Episode, inbox: Inbox[Outstanding]) -> Upcoming:
        """Return the first prompt of an episode, or its ending."""
        self.episode, self.account.inbox = episode, inbox
        inbox.watch(self._on_call)
        self.account.hints = episode.hints
        return await self._advance()

    # -- the observation -------------------------------------------------------------------------

    def hand_out(self, outstanding: Outstanding) -> tuple[Observation, StopCondition]:
        """Return an observation to the runner and mark it as outstanding."""
        self.standing.change(outstanding)
        return outstanding.observation(self._renderer)

    def take_back(self) -> Outstanding:
        """Take the outstanding observation back from the runner.

        Raises:
            EnvStateError: No observation is outstanding.
            EnvClosedError: The Env was closed.
        """
        self.check_usable()
        outstanding = self.standing.outstanding
        if outstanding is None:
            raise EnvStateError(
                "No observation is outstanding. Call initial_observation() first, then call step() "
                "once per observation. Don't call step() after episode_done (a hook cannot "
                "continue an episode whose agent has ended)."
            )
        self.standing.change(EnvState.OPEN)
        return outstanding

    def _on_call(self) -> None:
        outstanding = self.standing.outstanding
        if outstanding is not None:  # otherwise, the running step will take the call
            self.open_calls.submit_arrivals(outstanding)

    # -- the action ------------------------------------------------------------------------------

    async def resume(self, outstanding: Outstanding, turn: Turn) -> Upcoming:
        """Pass on the reply or ask the policy again. Return the next prompt or the ending."""
        self.account.turns += 1
        self.account.sampled += len(turn.tokens)
        call = outstanding.call
        if not call.request.train:
            turn.metrics |= UNTRAINED
        upcoming = await self._answer(outstanding, turn)
        if call.is_given_up:
            turn.metrics |= {**UNTRAINED, GIVEN_UP: 1.0}
            self.account.given_up += 1
            if isinstance(upcoming, Ending):
                upcoming.metrics |= self.account.report()
        return upcoming

    async def _answer(self, outstanding: Outstanding, turn: Turn) -> Upcoming:
        call = outstanding.call
        row = call if self.open_calls.overlap else None
        self.account.was_cut = turn.truncated
        reply, problem = await self._long_texts.render(partial(self._read, outstanding, turn))
        if not call.is_waiting:  # the agent will never read the reply, so don't check it
            turn.metrics |= UNTRAINED
            return await self._advance()
        if turn.truncated and self._settings.on_truncation == "end":
            await self._end()
            return self.account.cut()
        self.account.tools.count(call.request, reply)
        self.account.was_cut = reply.finish_reason == "length"
        one_call = call.request.one_call
        verdict = self.parse_errors.judge(reply, problem, turn, row, one_call=one_call)
        if verdict is Verdict.END:
            return await self._stop(StopReason.PARSE_ERROR)
        if verdict is Verdict.ASK_AGAIN and problem is not None:
            correction = self.parse_errors.correction(problem)
            return await self._ask_again(outstanding, turn, reply, correction)
        if call.request.format is not None:
            reply, complaint = self._formats.judge(reply, call.request.format, turn, row)
            if complaint is not None:
                return await self._ask_again(outstanding, turn, reply, complaint)
        reply, cut = self.tool_budget.allow(reply)
        if cut:
            self.account.stop_reason = StopReason.MAX_TOOL_CALLS
        outstanding.conversation.record(turn.tokens, reply, self._renderer)
        self._deliver(call, reply, turn)
        await self.open_calls.react()
        return await self._advance()

    def _deliver(self, call: ParkedCall, reply: Reply, turn: Turn) -> None:
        if self.open_calls.overlap and self.account.inbox is not None:
            self.account.inbox.notes.note_reply(call.speaker, self.account.turns - 1)
        if call.request.tokens and turn.tokens:
            reply = replace(reply, tokens=tuple(turn.tokens[: call.request.max_tokens]))
        try:
            if call.request.logprobs:
                reply = with_logprobs(reply, turn.tokens, turn.logprobs, self._renderer)
        except openai.BadRequestError as error:
            turn.metrics |= UNTRAINED
            call.refuse(error)
        else:
            call.answer(reply)

    def _read(
        self, outstanding: Outstanding, turn: Turn, renderer: PromptRenderer, limit: int | None
    ) -> tuple[Reply, Problem | None]:
        """Parse an action, truncating the reply at the agent's ``max_tokens``."""
        check_tokens(len(turn.tokens), limit)
        request = outstanding.call.request
        conversation, cap = outstanding.conversation, request.max_tokens

        def read(tokens: list[int], truncated: bool) -> tuple[Reply, Problem | None]:
            return read_action(
                tokens,
                renderer,
                request,
                truncated=truncated,
                call_ids=f"call-{self.account.turns - 1}",
                prompt_tokens=conversation.length,
                opened=conversation.opened,
            )

        reply, problem = read(turn.tokens, turn.truncated)
        if cap is None or len(turn.tokens) <= cap:
            return reply, problem
        # The runner applies its own limits and does not know the agent's max_tokens.
        short, _ = read(turn.tokens[:cap], truncated=True)
        return replace(short, parsed=reply.parsed), None

    async def _ask_again(
        self, outstanding: Outstanding, turn: Turn, reply: Reply, correction: Message
    ) -> Upcoming:
        """Add an invalid action and a correction to the prompt. The agent sees neither."""
        if (reason := self._stop_reason()) is not None:
            return await self._stop(reason)
        conversation = outstanding.conversation
        conversation.record(turn.tokens, reply, self._renderer, is_seen=False)
        await self._long_texts.render(partial(self.book.inject, conversation, [correction]))
        longest = self.budget.prompt.longest(conversation.first)
        if longest is not None and conversation.length > longest:
            await self._end()
            return self.account.overflown()
        retry = Outstanding(outstanding.call, conversation)
        return await self._advance() if self.open_calls.submit(retry) else retry

    # -- waiting for the next call ---------------------------------------------------------------

    async def _advance(self) -> Upcoming:
        episode, inbox = self.episode, self.account.inbox
        if episode is None or inbox is None:
            raise EnvStateError("The episode has not started. Call initial_observation() first.")
        while True:
            try:
                event = await inbox.take(self._settings.agent_timeout, self.open_calls.max_calls)
            except AgentTimeoutError as error:
                await self._end()
                return self.account.of_timeout(error)
            except EnvClosedError:
                if self.standing.is_closed:
                    raise
                return self.account.ending(PEER_STOPPED)
            if episode.life is EpisodeState.CLOSED and not self.standing.is_closed:
                await episode.release()
                return self.account.ending(PEER_STOPPED)
            if isinstance(event, AgentEnd):
                await episode.release()
                share = None if event.error is not None else self._share(event.value)
                return self.account.of_agent(event.error, share)
            if isinstance(event, Outstanding):
                reason = self._stop_reason()
                return event if reason is None else await self._stop(reason)
            upcoming = await self._prepare(event)
            if isinstance(upcoming, Outstanding) and self.open_calls.submit(upcoming):
                continue
            if upcoming is not None:
                return upcoming

    async def _prepare(self, call: ParkedCall) -> Upcoming | None:
        """Return a call's prompt, or the ending if the episode ends.

        Returns None if the call was refused and the agent continues.
        """
        if (reason := self._stop_reason()) is not None:
            return await self._stop(reason)
        try:
            self.check_usable()
            observe = partial(self.book.observe, call.request, call.caller)
            conversation = await self._long_texts.render(observe, call.request)
        except openai.BadRequestError as error:
            return await self._refuse(call, error)
        self._refusals, self.account.overflow = 0, None
        return Outstanding(call, conversation, self.book.latest_drift)

    def _stop_reason(self) -> StopReason | None:
        """Return the reason why the episode must stop, or None if another turn is allowed."""
        if self.account.stop_reason is None and not self.budget.has_turn(self.account.turns):
            return StopReason.MAX_TURNS
        return self.account.stop_reason

    async def _refuse(self, call: ParkedCall, error: openai.BadRequestError) -> Ending | None:
        """Refuse a call. If there were too many refusals, return the ending."""
        self._refusals += 1
        is_overflow = error.code == "context_length_exceeded"
        self.account.overflow = error if is_overflow else None
        if self._refusals < MAX_REFUSALS:
            call.refuse(error)
            return None
        await self._end()
        return self.account.overflown() if is_overflow else self.account.of_refusals(error)

    # -- the end ---------------------------------------------------------------------------------

    async def _stop(self, reason: StopReason) -> Ending:
        await self._end()
        return self.account.ending(reason)

    def check_usable(self) -> None:
        """Check that the Env is still open and is used on the right event loop.

        Raises:
            EnvClosedError: The Env was closed.
            EnvStateError: This is not the Env's event loop.
        """
        if self.standing.is_closed:
            raise EnvClosedError(
                f"This ChatAgentEnv for {self._agent} was closed. Create a new one to play again."
            )
        if self.episode is not None and self.episode.loop is not asyncio.get_running_loop():
            raise EnvStateError(
                "A ChatAgentEnv was stepped on a different event loop from the one it was started "
                "on. Run each episode within a single asyncio.run(...)."
            )

    async def close(self, episode: Episode | None = None) -> None:
        """Abort ``episode``, which may have been started by another seat.

        See ``ChatAgentEnv.close``.
        """
        self.episode = self.episode or episode
        self.standing.change(EnvState.CLOSED)
        await self._end()

    async def _end(self) -> None:
        episode, patience = self.episode, self._settings.close_timeout
        if episode is None:
            return
        if not episode.loop.is_running():
            episode.abandon()
            return
        if episode.loop is asyncio.get_running_loop():
            has_ended = await self._close(episode)
        else:
            closing = asyncio.run_coroutine_threadsafe(self._close(episode), episode.loop)
            has_ended = await asyncio.wrap_future(closing)
        if not has_ended:
            reason = "It swallows cancellation or is blocked in a thread."
            message = "The agent %s was cancelled, but is still running after %s s. %s"
            logger.error(message, self._agent, 2 * patience, reason)

    async def _close(self, episode: Episode) -> bool:
        self._long_texts.stop()
        self.open_calls.stop()
        return await episode.close(self._settings.close_timeout)

    def forget(self) -> None:
        """Free the conversations and stop sampling, because no more prompts will follow."""
        self.book.forget()
        self.open_calls.stop()
