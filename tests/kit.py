"""One kit for all tests: messages, agents that say little, and a way to play them.

``play`` is the Cookbook's ``do_single_rollout`` with a scripted policy. A test that needs more of
either calls them itself.
"""

import json
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv, ScriptedPolicy
from evert.agents.sandbox import sandbox_problem
from evert.bridge.tokens.renderer import prompt_renderer


def system(text: str) -> dict[str, Any]:
    """A system's message of the Chat Completions API."""
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    """What the model said before."""
    return {"role": "assistant", "content": text}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    """A tool that takes any object; ``fields`` go to its function."""
    function = {"name": name, "parameters": {"type": "object"}, **fields}
    return {"type": "function", "function": function}


def calling(name: str, **arguments: Any) -> str:
    """What the default renderer's policy says to call a tool."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def tokens_of(text: str) -> list[int]:
    """A whole reply of the default renderer's policy."""
    renderer = prompt_renderer(None)
    return renderer.encode(text) + renderer.end_tokens[:1]


def _messages(said: tuple[str | dict[str, Any], ...]) -> list[Any]:
    return [user(one) if isinstance(one, str) else one for one in said or ("Hi",)]


async def call(client: AgentClient, *said: str | dict[str, Any], **fields: Any) -> Any:
    """One call's completion; a text is a user's message, and no message is "Hi"."""
    return await client.chat.completions.create(messages=_messages(said), **fields)


async def ask(client: AgentClient, *said: str | dict[str, Any], **fields: Any) -> str:
    """One call; the text of its reply, "" where it has none."""
    return (await call(client, *said, **fields)).choices[0].message.content or ""


def ask_blocking(client: BlockingAgentClient, *said: str | dict[str, Any], **fields: Any) -> str:
    """The same of an agent that is a plain function."""
    completion = client.chat.completions.create(messages=_messages(said), **fields)
    return completion.choices[0].message.content or ""


async def asks(client: AgentClient) -> float:
    """An agent of one call."""
    await ask(client)
    return 1.0


def asks_blocking(client: BlockingAgentClient) -> float:
    """A plain function of one call."""
    ask_blocking(client)
    return 1.0


def talker(turns: int, reward: float = 1.0) -> Callable[..., Coroutine[Any, Any, float]]:
    """An agent that keeps one conversation going for some turns, whatever its task."""

    async def agent(client: AgentClient, task: object = None) -> float:
        messages = [user("Hi")]
        for turn in range(turns):
            messages += [assistant(await ask(client, *messages)), user(f"and {turn}?")]
        return reward

    return agent


def policy_of(*replies: str | Callable[[str], str], **options: Any) -> ScriptedPolicy:
    """These replies in turn, or a function of each prompt; "Fine." where none is given."""
    if replies and callable(replies[0]):
        return ScriptedPolicy(replies[0], **options)
    return ScriptedPolicy([str(one) for one in replies] or (lambda prompt: "Fine."), **options)


class Numbered(ScriptedPolicy):
    """No two of its tokens have the same log-probability; ``logprobs`` are those of all it said."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.logprobs: list[float] = []

    async def __call__(self, *given: Any, **named: Any) -> TokensWithLogprobs:
        """The next reply."""
        action = await super().__call__(*given, **named)
        begin = len(self.logprobs) + 1
        logprobs = [-(begin + number) / 8 for number in range(len(action.tokens))]
        self.logprobs += logprobs
        return TokensWithLogprobs(action.tokens, logprobs, action.stop_reason)


async def play(agent: Any, *replies: str | Callable[[str], str], **options: Any) -> Trajectory:
    """An episode's trajectory; ``options`` are ``ChatAgentEnv``'s, ``task`` among them."""
    policy = policy_of(*replies, renderer=options.get("renderer"))
    return await do_single_rollout(policy, ChatAgentEnv(agent, **options))


async def play_without_a_call(agent: Any, **options: Any) -> None:
    """An episode in which the policy is never asked, of an agent that asserts for itself."""
    end: Any = await ChatAgentEnv(agent, **options).initial_observation()
    assert end.reward == 1.0


def assert_extends(trajectory: Trajectory) -> None:
    """Each prompt begins with the last one and the very tokens that were sampled."""
    for before, after in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
        known = before.ob.to_ints() + before.ac.tokens
        assert after.ob.to_ints()[: len(known)] == known


def rewards(trajectory: Trajectory) -> list[float]:
    """Of each transition."""
    return [transition.reward for transition in trajectory.transitions]


def reward(trajectory: Trajectory) -> float:
    """Of the whole episode."""
    return sum(rewards(trajectory))


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("", 0)) as its:
        return int(its.getsockname()[1])


def needs_sandbox() -> None:
    """Skip a test, or fail it where ``EVERT_SANDBOX=required``, if there can be no sandbox here."""
    if problem := sandbox_problem():
        if os.environ.get("EVERT_SANDBOX") == "required":
            pytest.fail(problem)
        pytest.skip(problem)
