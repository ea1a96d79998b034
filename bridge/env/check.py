"""``check_env``: plays a few episodes and raises an error if the agent breaks a rule.

The rules are checked in this order:

    1. The episode ends with a finite reward.
    2. Every observation is a non-empty prompt whose tokens are in the tokenizer's vocabulary.
    3. Every observation matches what the renderer produces for the conversation. Only the text has
       to match, because sampled tokens are kept even if the renderer would tokenise differently.
    4. A ``step`` after the end of the episode raises an error.
    5. If the Env is closed during a call, the agent ends and leaves no tasks or threads running.
    6. The agent handles empty, truncated and malformed replies, or raises an exception.

The tests contain a deliberately broken agent for each rule.
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
"""Default model replies. They are repeated in a loop."""

MAX_TURNS = 200
"""Maximum number of calls. An agent that makes more calls is assumed never to end."""

_Reply = tuple[list[int], ActionExtra]


def check_env(
    env: ChatAgentEnv | Agent,
    *,
    replies: Iterable[str] = DEFAULT_REPLIES,
    max_turns: int = MAX_TURNS,
) -> None:
    """Play several episodes of an agent and raise an error if it breaks a rule.

    Args:
        env: An unused ``ChatAgentEnv``, or an agent that takes only the client. For each episode, a
            new Env with the same agent, task and options is created.
        replies: The model's replies, which are repeated in a loop. They must make your agent end
            eventually.
        max_turns: Maximum number of calls. An agent that makes more calls is assumed never to end.

    Raises:
        EnvCheckError: A rule is broken. The message states the rule and how to fix the problem.
        AgentError, AgentTimeoutError, RewardError: The agent failed; see ``ChatAgentEnv.step``.
        InvalidAgentError: ``env`` is not an agent.
    """
    first = env if isinstance(env, ChatAgentEnv) else ChatAgentEnv(env)
    check = _Check(first, list(replies), max_turns)
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # no running event loop, so we can use this thread
        _play(check)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="evert check") as thread:  # e.g. in a notebook
        thread.submit(_play, check).result()


def _play(check: "_Check") -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(check.run())
    finally:
        # Like asyncio.run, but don't wait forever for an agent that ignores cancellation.
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
            "a truncated reply": (some[:1], ActionExtra(stop_reason="length")),
            "a reply without an end-of-turn token": (some, ActionExtra(stop_reason="stop")),
            "a malformed tool call": self._say('<tool_call>\n{"name": \n</tool_call>'),
        }

    # -- the rules -------------------------------------------------------------------------------

    async def _play(
        self, env: ChatAgentEnv, turns: int, replies: Sequence[_Reply], *, checks: bool = False
    ) -> StepResult | InitialObservationOverflow | None:
        """Play up to ``turns`` turns. Return the final result (None if the episode did not end)."""
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
                f"The replies were {self._replies_text}. If it is fine for the agent to raise on "
                "these, pass replies=[...] that it can handle, or an Env with on_agent_error set."
            )
            raise
        finally:
            await env.close()
        if end is not None:
            return env.turns
        raise EnvCheckError(
            f"Rule 1: the agent {self._name} made {self._max_turns} model calls without ending. "
            "Limit its loop, pass replies=[...] that make it end, or increase max_turns."
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
                f"Rule 2: the observation of turn {turn} contains token {bad[0]}, but the "
                f"vocabulary size is {vocabulary}. The renderer and the tokenizer do not match."
            )

    def _check_continues(self, prompt: FlatPrompt, conversation: Conversation, turn: int) -> None:
        full = self._renderer.full(conversation.messages)
        if prompt != full and _texts(prompt, self._renderer) != _texts(full, self._renderer):
            raise EnvCheckError(
                f"Rule 3: the observation of turn {turn} does not match the renderer's prompt for "
                f"the conversation. {type(self._renderer.renderer).__name__} renders a message "
                "differently when more messages follow, although it claims to have the extension "
                "property."
            )

    async def _check_end(self, env: ChatAgentEnv, result: StepResult) -> None:
        if not isinstance(result.reward, float):
            raise EnvCheckError(f"Rule 1: the reward is {result.reward!r}; expected a float.")
        try:
            await env.step(*self._say("more")[:1])
        except EnvStateError:
            return
        raise EnvCheckError("Rule 4: step() was accepted after the end of the episode.")

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
                f"Rule 5: when the Env was closed at call {turn + 1}, the agent {self._name} left "
                f"{names} running. Don't suppress CancelledError (async) or EnvClosedError "
                "(threads), and await or join all tasks and threads that the agent starts."
            )

    async def _play_oddly(self, name: str, reply: _Reply) -> None:
        env = self._make()
        try:
            await self._play(env, self._max_turns, [reply])
        except AgentError:
            return  # the agent may raise; the rollout strategy or on_agent_error handles it
        except RewardError as error:
            raise EnvCheckError(
                f"Rule 6: if every reply is {name}, the agent {self._name} ends without a valid "
                f"reward: {error}"
            ) from error
        finally:
            await env.close()


def _texts(prompt: FlatPrompt, renderer: PromptRenderer) -> list[object]:
    """Return the text (without whitespace and thinking tags, which may vary), then the images."""
    chunks = [element for element in prompt if not isinstance(element, int)]
    text = renderer.decode([t for t in prompt if isinstance(t, int)])
    return [re.sub(r"</?think>|\s+", "", text), *chunks]


_Runner = asyncio.Task[Any] | threading.Thread


def _alive() -> set[_Runner]:
    # Skip pool threads (asyncio.to_thread), which stay alive for reuse.
    threads = (t for t in threading.enumerate() if not t.name.startswith("asyncio_"))
    return {*asyncio.all_tasks(), *threads}


def _name(runner: _Runner) -> str:
    return runner.name if isinstance(runner, threading.Thread) else runner.get_name()
