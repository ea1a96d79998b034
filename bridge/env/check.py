"""``check_env``: play a few episodes of an agent and raise on the first rule it breaks.

The rules, in the order they are checked:

    1. The episode ends, with a finite reward.
    2. Every observation is a non-empty prompt of tokens in the tokenizer's vocabulary.
    3. Every observation is the renderer's own prompt for the conversation. The tokens may differ if
       the text is the same, since sampled tokens are kept.
    4. A step after the end is refused.
    5. If the Env is closed during a call, the agent ends and leaves no task or thread running.
    6. The agent handles empty, cut and malformed replies, or raises an exception.

The tests have a deliberately broken agent for each rule.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tinker_cookbook.rl.types import ActionExtra, InitialObservationOverflow, StepResult

from evert.bridge.conversations.conversation import Conversation
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.episode.agent import Agent, agent_name
from evert.bridge.errors import AgentError, EnvCheckError, EnvStateError, RewardError, repr_of
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer
from evert.bridge.tokens.token_log import FlatPrompt, flatten

DEFAULT_REPLIES = ("Hello.", "Guess: 5", "yes", "I am 7", '{"answer": 42}')
"""The model's default replies, which are repeated in order."""

MAX_TURNS = 200
"""Number of calls after which ``check_env`` assumes that an agent never ends."""

_Reply = tuple[list[int], ActionExtra]


def check_env(
    env: ChatAgentEnv | Agent,
    *,
    replies: Iterable[str] = DEFAULT_REPLIES,
    max_turns: int = MAX_TURNS,
) -> None:
    """Play an agent in Envs, and raise an error if it breaks a rule.

    Args:
        env: An unused ``ChatAgentEnv`` (its agent, task and options are played several times), or
            an agent that takes only the client.
        replies: The model's replies, which are repeated in order. They must make your agent end.
        max_turns: Number of calls after which an agent is assumed never to end.

    Raises:
        EnvCheckError: A rule is broken; the message names the rule and says what to do.
        AgentError, AgentTimeoutError, RewardError: The agent failed; see ``ChatAgentEnv.step``.
        InvalidAgentError: ``env`` is not an agent.
    """
    first = env if isinstance(env, ChatAgentEnv) else ChatAgentEnv(env)
    check = _Check(first, list(replies), max_turns)
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # no running loop: play in this thread, as trainers do
        _play(check)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="evert check") as thread:  # in a notebook
        thread.submit(_play, check).result()


def _play(check: "_Check") -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(check.run())
    finally:
        # Like asyncio.run, but does not wait forever for an agent that ignores cancellation.
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


class _Check:
    def __init__(self, env: ChatAgentEnv, replies: Sequence[str], max_turns: int) -> None:
        self._make: Callable[[], ChatAgentEnv] = env.renewed
        self._name = agent_name(env.agent)
        self._renderer: PromptRenderer = prompt_renderer(env.renderer)
        self._replies_text = repr_of(replies)
        self._replies = [*map(self._say, replies)]
        self._max_turns = max_turns

    async def run(self) -> None:
        turns = await self._play_to_the_end()
        for turn in range(min(turns, 3)):
            await self._close_at(turn)
        for name, reply in self._odd_replies().items():
            await self._play_oddly(name, reply)

    def _say(self, text: str) -> _Reply:
        end = self._renderer.end_tokens[:1]
        return self._renderer.encode(text) + end, ActionExtra(stop_reason="stop")

    def _odd_replies(self) -> dict[str, _Reply]:
        some = self._renderer.encode("Hello there")
        return {
            "an empty reply": self._say(""),
            "a cut reply": (some[:1], ActionExtra(stop_reason="length")),
            "a reply without an end": (some, ActionExtra(stop_reason="stop")),
            "a broken tool call": self._say('<tool_call>\n{"name": \n</tool_call>'),
        }

    # -- the rules -------------------------------------------------------------------------------

    async def _play(
        self, env: ChatAgentEnv, turns: int, replies: Sequence[_Reply], *, checks: bool = False
    ) -> StepResult | InitialObservationOverflow | None:
        """Return how an episode ends within ``turns`` turns; None if it does not end."""
        first = await env.initial_observation()
        if isinstance(first, InitialObservationOverflow):
            return first
        observation = first[0]
        for turn in range(turns):
            if checks:
                self._check_prompt(flatten(observation.chunks), env, turn)
            action, extra = replies[turn % len(replies)]
            result = await env.step(action, extra=extra)
            if result.episode_done:
                return result
            observation = result.next_observation
        return None

    async def _play_to_the_end(self) -> int:
        env = self._make()
        try:
            end = await self._play(env, self._max_turns, self._replies, checks=True)
            if isinstance(end, StepResult):
                await self._check_end(env, end)
        except AgentError as error:
            error.add_note(
                f"The replies were {self._replies_text}. If the agent may raise at such replies, "
                "pass replies=[...] that make it end, or an Env with on_agent_error=."
            )
            raise
        finally:
            await env.close()
        if end is not None:
            return env.turns
        raise EnvCheckError(
            f"Rule 1: the agent {self._name} made {self._max_turns} model calls and did not end. "
            "Limit its loop, or pass replies=[...] that make it end (or a larger max_turns)."
        )

    def _check_prompt(self, prompt: FlatPrompt, env: ChatAgentEnv, turn: int) -> None:
        if turn and env.conversation is not None:
            self._check_continues(prompt, env.conversation, turn)
        if not prompt:
            raise EnvCheckError(f"Rule 2: the observation of turn {turn} is empty.")
        vocabulary = len(self._renderer.renderer.tokenizer)
        bad = [t for t in prompt if isinstance(t, int) and not 0 <= t < vocabulary]
        if bad:
            raise EnvCheckError(
                f"Rule 2: the observation of turn {turn} has token {bad[0]}, but the tokenizer's "
                f"size is {vocabulary}. The renderer and the tokenizer do not match."
            )

    def _check_continues(self, prompt: FlatPrompt, conversation: Conversation, turn: int) -> None:
        full = self._renderer.full(conversation.messages)
        if prompt != full and _texts(prompt, self._renderer) != _texts(full, self._renderer):
            raise EnvCheckError(
                f"Rule 3: the observation of turn {turn} is not the renderer's own prompt for the "
                f"conversation: {type(self._renderer.renderer).__name__} renders a message "
                "differently if more messages follow, though it claims the extension property."
            )

    async def _check_end(self, env: ChatAgentEnv, result: StepResult) -> None:
        if not isinstance(result.reward, float):
            raise EnvCheckError(f"Rule 1: the reward is {result.reward!r}, expected a float.")
        try:
            await env.step(*self._say("more")[:1])
        except EnvStateError:
            return
        raise EnvCheckError("Rule 4: a step after the end of the episode was accepted.")

    async def _close_at(self, turn: int) -> None:
        before = _alive()
        env = self._make()
        try:
            if await self._play(env, turn, self._replies) is not None:
                return
        finally:
            await env.close()
        leftovers = _alive() - before
        if env.is_running or leftovers:
            names = ", ".join(sorted(map(_name, leftovers))) or "the agent"
            raise EnvCheckError(
                f"Rule 5: closed at call {turn + 1}, the agent {self._name} left {names} running. "
                "Let CancelledError (async) or EnvClosedError (threads) end the agent, and await "
                "or join what it starts."
            )

    async def _play_oddly(self, name: str, reply: _Reply) -> None:
        env = self._make()
        try:
            await self._play(env, self._max_turns, [reply])
        except AgentError:
            return  # raising is fine: the trainer's strategies, or on_agent_error, handle it
        except RewardError as error:
            raise EnvCheckError(
                f"Rule 6: if every reply is {name}, the agent {self._name} ends without a valid "
                f"reward: {error}"
            ) from error
        finally:
            await env.close()


def _texts(prompt: FlatPrompt, renderer: PromptRenderer) -> list[object]:
    """Return the text without white space and thinking tags, which may be omitted, and images."""
    chunks = [element for element in prompt if not isinstance(element, int)]
    text = renderer.decode([t for t in prompt if isinstance(t, int)])
    return [re.sub(r"</?think>|\s+", "", text), *chunks]


_Runner = asyncio.Task[Any] | threading.Thread


def _alive() -> set[_Runner]:
    # The threads of the loop's pool (asyncio.to_thread) stay alive for later work.
    threads = (t for t in threading.enumerate() if not t.name.startswith("asyncio_"))
    return {*asyncio.all_tasks(), *threads}


def _name(runner: _Runner) -> str:
    return runner.name if isinstance(runner, threading.Thread) else runner.get_name()
