"""``ReplayPolicy`` plays back a record instead of calling a model. ``replay`` tests an agent.

Every call is answered with the action recorded for its prompt. Calls are matched by prompt, because
concurrent calls may arrive in a different order. If a prompt is not in the record, the agent has
changed: it made a different call even though it got the same replies.
"""

import asyncio
from collections.abc import Sequence
from typing import Unpack

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert.bridge.conversations.differences import as_text, excerpt, in_field, in_messages
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.env.parallel import MAX_CALLS, do_parallel_rollout
from evert.bridge.env.policy_queue import PolicyQueue
from evert.bridge.episode.agent import NO_TASK, Agent
from evert.bridge.errors import RecordError, ReplayError
from evert.bridge.records.record import RolloutRecord
from evert.bridge.records.rows import Row, as_message
from evert.bridge.records.sequences import shared
from evert.bridge.tokens.token_log import FlatPrompt, flatten

MOMENT = 0.01
"""Seconds between checks for whether the agent has given up a call."""

GIVING_UP = 5.0
"""Seconds to wait for the agent to give up a concurrent call that is not in the record. Calls that
were given up before the reply was sampled are not recorded, so the agent must give them up again.
"""


class ReplayPolicy(TokenCompleter):
    """A policy that returns the actions of a recorded rollout instead of calling a model.

    If ``env`` is passed, calls that are sampled concurrently (``do_parallel_rollout``) are answered
    in the recorded order.

    Args:
        record: The recorded rollout.
        env: The Env that is played. If it is passed, errors show which message differs, and a call
            that was given up in the record waits until the agent gives it up again. If ``env`` is
            omitted, only tokens are compared.

    Attributes:
        record: The recorded rollout.
        left: The turns that have not been played yet, in order.
    """

    def __init__(self, record: RolloutRecord, env: ChatAgentEnv | None = None) -> None:
        self.record = record
        self.left = list(range(record.turns))
        self._unanswered = set(self.left)
        self._moved = asyncio.Condition()
        self._env = env
        if env is not None and _has_met(record, 0):
            env.open_calls.expect_overlap()

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Return the recorded action for this prompt, with log-probabilities and stop reason.

        Raises:
            ReplayError: The record has no unplayed call with this prompt, or (with concurrent
                calls) an earlier call was not made within the Env's ``agent_timeout``.
        """
        open_calls = None if self._env is None else self._env.open_calls
        if open_calls is not None and open_calls.queue is None:
            open_calls = None  # calls are sampled sequentially
        try:
            turn = self.find(model_input)
        except ReplayError:
            if open_calls is not None and _has_met(self.record, *range(self.record.turns)):
                await asyncio.sleep(min(GIVING_UP, (self._patience or 2 * GIVING_UP) / 2))
            raise
        self.left.remove(turn)
        if open_calls is not None:
            if _has_met(self.record, turn, turn + 1):  # ``turn + 1``: the next call waits, too
                open_calls.expect_overlap()
            if open_calls.overlap:
                await self._wait_for_turn(turn)
        self._unanswered.remove(turn)
        async with self._moved:
            self._moved.notify_all()
        await self._until_given_up(turn, model_input)
        return self.record.action(turn)

    async def _until_given_up(self, turn: int, model_input: tinker.ModelInput) -> None:
        """If the agent gave up this call in the record, wait until it gives it up again."""
        if self._env is None or not self.record.is_given_up(turn):
            return
        call = self._env.open_calls.call_of(model_input)
        if call is None:
            return
        try:
            async with asyncio.timeout(self._patience):
                while call.is_waiting:  # noqa: ASYNC110 (its thread sets no event)
                    await asyncio.sleep(MOMENT)
        except TimeoutError:
            raise ReplayError(
                f"The agent differs from its record at turn {turn}: in the record, it gave up the "
                f"call{_quoted(self._messages_before(turn))}. Now it is still waiting for the "
                f"reply after agent_timeout={self._patience} s."
            ) from None

    async def _wait_for_turn(self, turn: int) -> None:
        try:
            async with asyncio.timeout(self._patience), self._moved:
                await self._moved.wait_for(lambda: min(self._unanswered) == turn)
        except TimeoutError:
            missing = min(self._unanswered)
            raise ReplayError(
                f"The agent differs from its record at turn {missing}: it did not make the "
                f"call{_quoted(self._messages_before(missing))} within "
                f"agent_timeout={self._patience} s."
            ) from None

    @property
    def _patience(self) -> float | None:
        return None if self._env is None else self._env._settings.agent_timeout

    def queue(self) -> PolicyQueue:
        """Return a queue for all of the agent's calls, in which each call waits for its turn."""
        return PolicyQueue(self, max(MAX_CALLS, self.record.turns), is_timed=False)

    def find(self, model_input: tinker.ModelInput) -> int:
        """Return the first unplayed turn with this prompt, or raise ReplayError."""
        prompt, prompts = flatten(model_input.chunks), self.record.prompts
        for turn in self.left:
            if prompts[turn] == prompt:
                return turn
        raise ReplayError(self._difference(prompt, model_input))

    def check_at(self, turn: int, model_input: tinker.ModelInput) -> None:
        """Raise ReplayError if the turn's recorded prompt is different."""
        prompt = flatten(model_input.chunks)
        if prompt != self.record.prompts[turn]:
            raise ReplayError(self._difference(prompt, model_input))

    def check_over(self) -> None:
        """Raise ReplayError if the agent did not make all recorded calls."""
        for turn in self.left[:1]:
            raise ReplayError(
                f"The agent differs from its record at turn {turn}: it finished. In the record, it "
                f"called the model{_quoted(self._messages_before(turn))}."
            )

    def _difference(self, prompt: FlatPrompt, model_input: tinker.ModelInput) -> str:
        request = self._env.request_of(model_input) if self._env is not None else None
        now = [*map(as_message, request.messages)] if request is not None else []
        if not self.left:
            turns = self.record.turns
            return (
                f"The agent differs from its record at turn {turns}: it called the model again"
                f"{_quoted(now)}. In the record, it finished after {turns} calls."
            )
        turn = self.left[0]
        where = f"The agent differs from its record at turn {turn} (of {self.record.turns})"
        then, tokens = self._messages_before(turn), _in_tokens(self.record.prompts[turn], prompt)
        if request is None:
            return f"{where}: {tokens}"
        tools = self.record.tools(turn) if then else []
        if difference := in_messages(then, now) or in_field("tools", tools, request.tools):
            return f"{where}: {difference} {_ADVICE}"
        row = self.record.row
        return (
            f"{where}: the messages match the record, but the tokens are different. Expected the "
            f"renderer {row['renderer']} for {row['tokenizer']}; pass it as renderer=... along "
            f"with the options that were used for the recorded Env. {tokens}"
        )

    def _messages_before(self, turn: int) -> list[Row]:
        return self.record.asked(turn) if "call" in self.record.row["steps"][turn] else []


def _has_met(record: RolloutRecord, *turns: int) -> bool:
    """Return whether overlapping calls were sampled concurrently at any of these turns."""
    steps = record.row["steps"]
    return any(steps[turn].get("call", {}).get("met") for turn in turns if turn < record.turns)


def check_seatless(record: RolloutRecord) -> None:
    """Raise RecordError if the record belongs to a seat."""
    if (seat := record.row["seat"]) is not None:
        raise RecordError(
            f"The record belongs to the seat {seat!r}. Episodes with seats cannot be replayed or "
            "branched because the replies of the other seats are in different records."
        )


async def replay(
    record: RolloutRecord,
    agent: Agent,
    task: object = NO_TASK,
    **options: Unpack[EnvOptions],
) -> Trajectory:
    """Run an agent again with the recorded seed, and recorded replies instead of a model.

    Calls that were sampled concurrently are answered in the recorded order.

    Args:
        record: The recorded rollout.
        agent: The agent to test.
        task: The task (default: the recorded task).
        **options: Options for ``ChatAgentEnv``. ``renderer`` must match the recorded renderer.

    Returns:
        A trajectory with the recorded prompts and actions, and the new rewards.

    Raises:
        ReplayError: The agent made a different call. The message shows the first difference.
        RecordError: The task was not recorded, or the record belongs to a seat.
        AgentError, AgentTimeoutError, RewardError: See ``ChatAgentEnv.step``.
    """
    check_seatless(record)
    task = record.task if task is NO_TASK else task
    env = ChatAgentEnv(agent, task, seed=record.row["seed"], **options)
    policy = ReplayPolicy(record, env)
    try:
        if _has_met(record, *range(record.turns)):
            trajectory = await do_parallel_rollout(policy.queue(), env)
        else:
            trajectory = await do_single_rollout(policy, env)
    finally:
        await env.close()
    policy.check_over()
    return trajectory


_ADVICE = "The replies were the same, so check the agent's other inputs (time, randomness, tools)."


def _quoted(messages: Sequence[Row]) -> str:
    return f", with {excerpt(as_text(messages[-1].get('content')))}" if messages else ""


def _in_tokens(then: FlatPrompt, now: FlatPrompt) -> str:
    return (
        f"The prompt has {len(now)} tokens and the recorded prompt has {len(then)}; the first "
        f"{shared(then, now)} tokens match. To see which message differs, use evert.replay or "
        "ReplayPolicy(record, env)."
    )
