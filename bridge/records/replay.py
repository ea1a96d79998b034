"""``ReplayPolicy``: a record in place of a model. ``replay`` checks an agent against its record.

Each call gets the action that was recorded for its prompt. Calls are matched by their prompts,
since concurrent calls may arrive in a different order. A prompt that is not in the record means
that the agent differs: it made a different call although it had got the same replies.
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
"""Seconds between checks of whether an agent has given up a call."""

GIVING_UP = 5.0
"""Seconds that the agent has to give up a concurrent call that is not in its record. A call that
was given up before its reply is not recorded, so the agent must give it up again."""


class ReplayPolicy(TokenCompleter):
    """Returns the actions of a recorded rollout, without a model.

    If ``env`` is passed, calls that a runner samples concurrently (``do_parallel_rollout``) get
    their replies in the recorded order.

    Args:
        record: The recorded rollout.
        env: The Env that is played. With it, errors name the message that differs, and a call that
            was given up in the record waits until the agent gives it up again. None: compare only
            tokens.

    Attributes:
        record: The recorded rollout.
        left: The turns that are not yet played, in order.
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
            ReplayError: The record has no unplayed call with this prompt; or calls are sampled
                concurrently, and an earlier call is not made within the Env's ``agent_timeout``.
        """
        open_calls = None if self._env is None else self._env.open_calls
        if open_calls is not None and open_calls.queue is None:
            open_calls = None  # the runner samples one call at a time
        try:
            turn = self.find(model_input)
        except ReplayError:
            if open_calls is not None and _has_met(self.record, *range(self.record.turns)):
                await asyncio.sleep(min(GIVING_UP, (self._patience or 2 * GIVING_UP) / 2))
            raise
        self.left.remove(turn)
        if open_calls is not None:
            if _has_met(self.record, turn, turn + 1):  # the next call must also wait for its turn
                open_calls.expect_overlap()
            if open_calls.overlap:
                await self._wait_for_turn(turn)
        self._unanswered.remove(turn)
        async with self._moved:
            self._moved.notify_all()
        await self._until_given_up(turn, model_input)
        return self.record.action(turn)

    async def _until_given_up(self, turn: int, model_input: tinker.ModelInput) -> None:
        """If the agent gave up this call in the record, wait until it does so again."""
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
                f"The agent differs from its record at turn {turn}: in the record it gave that "
                f"call up{_quoted(self._messages_before(turn))}; now it still waits for the reply "
                f"after agent_timeout={self._patience} s."
            ) from None

    async def _wait_for_turn(self, turn: int) -> None:
        try:
            async with asyncio.timeout(self._patience), self._moved:
                await self._moved.wait_for(lambda: min(self._unanswered) == turn)
        except TimeoutError:
            missing = min(self._unanswered)
            raise ReplayError(
                f"The agent differs from its record at turn {missing}: it does not make that "
                f"call{_quoted(self._messages_before(missing))} within "
                f"agent_timeout={self._patience} s."
            ) from None

    @property
    def _patience(self) -> float | None:
        return None if self._env is None else self._env._settings.agent_timeout

    def queue(self) -> PolicyQueue:
        """Return a queue that takes all of the agent's calls; each call waits for its turn."""
        return PolicyQueue(self, max(MAX_CALLS, self.record.turns), is_timed=False)

    def find(self, model_input: tinker.ModelInput) -> int:
        """Return the first unplayed turn with this prompt, or raise a ReplayError."""
        prompt, prompts = flatten(model_input.chunks), self.record.prompts
        for turn in self.left:
            if prompts[turn] == prompt:
                return turn
        raise ReplayError(self._difference(prompt, model_input))

    def check_at(self, turn: int, model_input: tinker.ModelInput) -> None:
        """Check that this is the prompt of a turn; else raise a ReplayError."""
        prompt = flatten(model_input.chunks)
        if prompt != self.record.prompts[turn]:
            raise ReplayError(self._difference(prompt, model_input))

    def check_over(self) -> None:
        """Check that the agent made all recorded calls; else raise a ReplayError."""
        for turn in self.left[:1]:
            raise ReplayError(
                f"The agent differs from its record at turn {turn}: it ended; in the record it "
                f"called the model{_quoted(self._messages_before(turn))}."
            )

    def _difference(self, prompt: FlatPrompt, model_input: tinker.ModelInput) -> str:
        request = self._env.request_of(model_input) if self._env is not None else None
        now = [*map(as_message, request.messages)] if request is not None else []
        if not self.left:
            turns = self.record.turns
            return (
                f"The agent differs from its record at turn {turns}: it calls the model once more"
                f"{_quoted(now)}; in the record it ended after {turns} calls."
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
            f"{where}: its messages equal those of the record, but the tokens differ. Expected "
            f"the renderer {row['renderer']} of {row['tokenizer']}; pass it (renderer=) and the "
            f"options that the Env had. {tokens}"
        )

    def _messages_before(self, turn: int) -> list[Row]:
        return self.record.asked(turn) if "call" in self.record.row["steps"][turn] else []


def _has_met(record: RolloutRecord, *turns: int) -> bool:
    """Return whether calls overlapped and were sampled concurrently at one of these turns."""
    steps = record.row["steps"]
    return any(steps[turn].get("call", {}).get("met") for turn in turns if turn < record.turns)


def check_seatless(record: RolloutRecord) -> None:
    """Raise a RecordError if the record belongs to a seat."""
    if (seat := record.row["seat"]) is not None:
        raise RecordError(
            f"The record belongs to the seat {seat!r}. An episode with seats cannot be replayed or "
            "branched: the replies of its other seats are in other records."
        )


async def replay(
    record: RolloutRecord,
    agent: Agent,
    task: object = NO_TASK,
    **options: Unpack[EnvOptions],
) -> Trajectory:
    """Play an agent again without a model, with the recorded replies and seed.

    Calls that were sampled concurrently get their replies in the order of the record.

    Args:
        record: The recorded rollout.
        agent: The agent to check.
        task: The task; by default the recorded task.
        **options: Options of ``ChatAgentEnv``; ``renderer`` must be the recorded one.

    Returns:
        The recorded prompts and actions, with the new rewards, as a trajectory.

    Raises:
        ReplayError: The agent makes a different call; the message names the first such turn.
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


_ADVICE = "The replies were the same: look at the agent's other inputs (time, randomness, a tool)."


def _quoted(messages: Sequence[Row]) -> str:
    return f", with {excerpt(as_text(messages[-1].get('content')))}" if messages else ""


def _in_tokens(then: FlatPrompt, now: FlatPrompt) -> str:
    return (
        f"Its prompt has {len(now)} tokens, the record's {len(then)}; the first "
        f"{shared(then, now)} are equal. evert.replay and ReplayPolicy(record, env) also say which "
        "message differs."
    )
