"""Model calls and small agents."""

from collections.abc import Callable, Coroutine
from typing import Any

from tests.kit.messages import assistant, user

from evert import AgentClient, BlockingAgentClient


def _messages(messages: tuple[str | dict[str, Any], ...]) -> list[Any]:
    return [user(item) if isinstance(item, str) else item for item in messages or ("Hi",)]


async def call(client: AgentClient, *messages: str | dict[str, Any], **fields: Any) -> Any:
    """Make a call and return the completion. Strings are user messages (default: "Hi")."""
    return await client.chat.completions.create(messages=_messages(messages), **fields)


async def ask(client: AgentClient, *messages: str | dict[str, Any], **fields: Any) -> str:
    """Make a call and return the text of the reply, or "" if there is no text."""
    return (await call(client, *messages, **fields)).choices[0].message.content or ""


def ask_blocking(
    client: BlockingAgentClient, *messages: str | dict[str, Any], **fields: Any
) -> str:
    """Like ``ask``, for sync agents."""
    completion = client.chat.completions.create(messages=_messages(messages), **fields)
    return completion.choices[0].message.content or ""


async def asks(client: AgentClient) -> float:
    """An agent that makes one call."""
    await ask(client)
    return 1.0


def asks_blocking(client: BlockingAgentClient) -> float:
    """A sync agent that makes one call."""
    ask_blocking(client)
    return 1.0


def talker(turns: int, reward: float = 1.0) -> Callable[..., Coroutine[Any, Any, float]]:
    """Return an agent that holds one conversation of ``turns`` turns, with or without a task."""

    async def agent(client: AgentClient, task: object = None) -> float:
        messages = [user("Hi")]
        for turn in range(turns):
            messages += [assistant(await ask(client, *messages)), user(f"and {turn}?")]
        return reward

    return agent
