"""``ReplayPolicy``: a record in the place of a model, and ``replay``: an agent against its record.

Each call gets the tokens that its prompt got then. Calls that an agent makes side by side may come
in another order, and are found by their prompts. A prompt that the record does not have is where
the agent itself differs: with the same replies, it asked for something else.
"""

import asyncio
from collections.abc import Sequence
from typing import Unpack

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert.bridge.chat.request import ChatRequest
from evert.bridge.conversations.differences import in_field, in_messages, shortened, words
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.env.parallel import MAX_CALLS, do_parallel_rollout
from evert.bridge.episode.agent import NO_TASK, Agent
from evert.bridge.errors import ReplayError
from evert.bridge.records.record import RolloutRecord
from evert.bridge.records.rows import Row, as_message
from evert.bridge.records.sequences import shared
from evert.bridge.tokens.token_log import FlatPrompt, flatten


class ReplayPolicy(TokenCompleter):
    """Says what was said in a recorded rollout; samples nothing, needs no model.

    Args:
        record: Of the rollout.
        env: That it plays, to name the message that differs; None: only tokens are compared.

    Attributes:
        record: As given.
        left: Turns that were not played yet, in their order.
    """

    def __init__(self, record: RolloutRecord, env: ChatAgentEnv | None = None) -> None:
        self.record = record
        self.left = list(range(record.turns))
        self._env = env

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """What was sampled for this prompt, as it was: log-probabilities and stop reason too.

        Raises:
            ReplayError: The record has no such call, or none any more.
        """
        turn = self.find(model_input)
        self.left.remove(turn)
        return self.record.action(turn)

    def find(self, model_input: tinker.ModelInput) -> int:
        """The turn that has this prompt, of those that were not played; or a ReplayError."""
        prompt, prompts = flatten(model_input.chunks), self.record.prompts
        for turn in self.left:
            if prompts[turn] == prompt:
                return turn
        request = self._env.request_of(model_input) if self._env is not None else None
        raise ReplayError(self._difference(prompt, request))

    def check_over(self) -> None:
        """Check that the agent made all of its calls; else a ReplayError."""
        for turn in self.left[:1]:
            raise ReplayError(
                f"The agent differs from its record at turn {turn}: it ended, where then it called "
                f"the model{_quoted(self._asked(turn))}."
            )

    def _difference(self, prompt: FlatPrompt, request: ChatRequest | None) -> str:
        now = [*map(as_message, request.messages)] if request is not None else []
        if not self.left:
            turns = self.record.turns
            return (
                f"The agent differs from its record at turn {turns}: it calls the model once more, "
                f"where then it ended after {turns} calls{_quoted(now)}."
            )
        turn = self.left[0]
        where = f"The agent differs from its record at turn {turn} (of {self.record.turns})"
        then, tokens = self._asked(turn), _in_tokens(self.record.prompts[turn], prompt)
        if request is None:
            return f"{where}: {tokens}"
        tools = self.record.tools(turn) if then else []
        if found := in_messages(then, now) or in_field("tools", tools, request.tools):
            return f"{where}: {found} {_ADVICE}"
        row = self.record.row
        return (
            f"{where}: its messages are those of the record, and their tokens are not. Expected "
            f"the renderer {row['renderer']} of {row['tokenizer']}; pass that one (renderer=), and "
            f"the options that the Env had. {tokens}"
        )

    def _asked(self, turn: int) -> list[Row]:
        return self.record.asked(turn) if "call" in self.record.row["steps"][turn] else []


class _InOrder(ReplayPolicy):
    """The same for calls made at the same time: they are answered in the recorded order."""

    def __init__(self, record: RolloutRecord, env: ChatAgentEnv) -> None:
        super().__init__(record, env)
        self._overlap = env._turns.overlap
        self._patience = env._settings.agent_timeout
        self._answered, self._moved = 0, asyncio.Condition()

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        turn = self.find(model_input)
        self.left.remove(turn)
        self._overlap.is_met |= _has_met(self.record, turn)
        try:
            async with asyncio.timeout(self._patience), self._moved:
                await self._moved.wait_for(lambda: self._answered == turn)
                self._answered += 1
                self._moved.notify_all()
        except TimeoutError:
            missing = self._answered
            raise ReplayError(
                f"The agent differs from its record at turn {missing}: it does not make that "
                f"call{_quoted(self._asked(missing))} within agent_timeout={self._patience} s."
            ) from None
        return self.record.action(turn)


def _has_met(record: RolloutRecord, turn: int) -> bool:
    """Whether calls made at the same time were sampled so when a turn was played."""
    return bool(record.row["steps"][turn].get("call", {}).get("met"))


async def replay(
    record: RolloutRecord,
    agent: Agent,
    task: object = NO_TASK,
    **options: Unpack[EnvOptions],
) -> Trajectory:
    """Play an agent again, with the replies and the seed that it got then and no model.

    Calls that were sampled at the same time get their replies in the order in which they got them.

    Args:
        record: Of the rollout.
        agent: As it is now.
        task: Left out: the record's.
        **options: Of ``ChatAgentEnv``; ``renderer`` as it was then.

    Returns:
        What was played: the prompts and actions of the record, and what they earn now.

    Raises:
        ReplayError: The agent differs: the first turn at which it asks for something else.
        RecordError: The record does not hold its task.
        AgentError, AgentTimeoutError, RewardError: As ``ChatAgentEnv.step``.
    """
    task = record.task if task is NO_TASK else task
    env = ChatAgentEnv(agent, task, seed=record.row["seed"], **options)
    met = any(_has_met(record, turn) for turn in range(record.turns))
    policy = _InOrder(record, env) if met else ReplayPolicy(record, env)
    most = max(MAX_CALLS, record.turns)
    try:
        trajectory = await (
            do_parallel_rollout(policy, env, most) if met else do_single_rollout(policy, env)
        )
    finally:
        await env.close()
    policy.check_over()
    return trajectory


_ADVICE = "The replies were the same: look for what else the agent goes by (time, chance, a tool)."


def _quoted(messages: Sequence[Row]) -> str:
    return f", with {shortened(words(messages[-1].get('content')))}" if messages else ""


def _in_tokens(then: FlatPrompt, now: FlatPrompt) -> str:
    return (
        f"Its prompt has {len(now)} tokens and then had {len(then)}, of which the first "
        f"{shared(then, now)} are the same. With evert.replay, or ReplayPolicy(record, env), the "
        "message is named."
    )
