"""The environment of an OpenEnv server, played through OpenEnv's own client.

    evert train tasks=openenv:http://127.0.0.1:8000 model_name=smollm2

An action is text (the reply), fields (one tool whose parameters are the action's schema) or a call
to an MCP tool. Before a game is returned, an episode is started to see whether the server gives
rewards, since its schema does not say. This needs the extra ``openenv``.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from evert.bridge.episode.agent import Outcome
from evert.bridge.off_loop import threads
from evert.envs.games import Game, GameError
from evert.envs.tasksets.common import game_of_agent, no_such
from evert.envs.tasksets.openenv_session import (
    Session,
    action_schema,
    calls_tools,
    opened,
)

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient


def openenv(
    url: str,
    *,
    field: str | None = None,
    turns: int = 100,
    probe: int = 8,
    message_timeout_s: float = 60.0,
) -> Game:
    """Return the game for a server's environment.

    Args:
        url: URL of the server, "http://127.0.0.1:8000".
        field: Field of the action that takes the reply as text. None: the only required field, if
            it is a string; else actions are tool calls.
        turns: Number of actions after which an episode is truncated.
        probe: Number of actions to try, to see whether the server gives rewards; 0: do not try.
        message_timeout_s: Seconds to wait for the server's answer to a message.

    Raises:
        GameError: No OpenEnv server answers at ``url``, it has no such field or no tools, or it
            gives no reward.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise GameError(f"tasks=openenv:{url} is not a URL; expected one like http://HOST:8000.")
    url = url.rstrip("/")
    action_schema.cache_clear()  # another server may answer at the URL now
    agent = OpenEnv(url, _field(url, field), turns, message_timeout_s)
    _check_once(agent, probe)
    return game_of_agent(
        f"openenv/{urlsplit(url).netloc}",
        agent,
        recipe={"batch_size": 4, "group_size": 8, "max_tokens": 512},
    )


@cache  # commands make their game several times
def _check_once(agent: "OpenEnv", probe: int) -> None:
    threads(2).submit(asyncio.run, agent.check(probe)).result()  # a loop may run in this thread


def _field(url: str, field: str | None) -> str:
    """Return the field that takes a reply; "" if actions are tool calls."""
    action = action_schema(url)
    fields = action["properties"]
    texts = [name for name, schema in fields.items() if schema.get("type") == "string"]
    required = action["required"]
    if field is None:
        is_text = len(required) == 1 and required[0] in texts
        return required[0] if is_text and not calls_tools(action) else ""
    if field not in texts:
        raise no_such(f"An action of {url}", "text", field, texts)
    if missing := [name for name in required if name != field]:
        raise GameError(
            f"An action of {url} needs {', '.join(missing)} besides {field}, but a reply is one "
            "text. Leave tasks.field out: the policy then calls a tool that takes all fields."
        )
    return field


@dataclass(frozen=True)
class OpenEnv:
    """An agent that plays a server's environment; the task is the seed of its reset.

    The first message is the reset's observation, with a line per field; the answers to actions are
    observations or tool results. Each reward goes to its action's turn; the reset's reward goes to
    the first turn. If actions are tool calls, a reply without one ends the episode.

    Args:
        url: URL of the server.
        field: Field of the action that takes the reply; "": the policy calls tools.
        turns: Number of actions after which an episode is truncated.
        message_timeout_s: Seconds to wait for the server's answer to a message.
    """

    url: str
    field: str
    turns: int = 100
    message_timeout_s: float = 60.0

    from_path: ClassVar = True
    train_tasks: ClassVar = range(10_000)
    test_tasks: ClassVar = range(10_000, 10_100)

    async def __call__(self, client: "AgentClient", task: int) -> Outcome:
        """Play an episode.

        Raises:
            GameError: The server fails, refuses a message, or ends the episode without a reward.
            RewardError: A reward is not a finite number.
        """
        async with opened(self.url, self.message_timeout_s, client.reward) as session:
            offer = {} if self.field else {"tools": await session.list_tools()}
            await session.reset(task)
            messages: list[Any] = [{"role": "user", "content": session.text or "Begin."}]
            for _ in range(self.turns):
                if session.is_over:
                    break
                completion = await client.chat.completions.create(messages=messages, **offer)
                message = completion.choices[0].message
                messages.append(message)
                if offer and not message.tool_calls:
                    return Outcome(0.0)
                messages += await self._act(session, message)
        if session.is_over and not session.is_rewarded:
            raise session.no_reward("until the end of an episode")
        return Outcome(0.0, truncated=not session.is_over)

    async def _act(self, session: Session, message: Any) -> list[dict[str, Any]]:
        """Take the actions in a reply, and return the messages that answer it."""
        if self.field:
            await session.step({self.field: message.content or ""})
            return [{"role": "user", "content": session.text}]
        return [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": await session.call(call.function.name, call.function.arguments),
            }
            for call in message.tool_calls
        ]

    async def check(self, probe: int) -> None:
        """Check that the server gives rewards, and has tools if the policy must call them.

        Args:
            probe: Number of actions to try, with each field's default or an empty value; 0: do not
                look for rewards. If the server refuses an action, the check ends without a result.

        Raises:
            GameError: There are no tools, or no reward by the end or in ``probe`` actions.
        """
        async with opened(self.url, self.message_timeout_s, lambda reward: None) as session:
            tools = [] if self.field else await session.list_tools()
            if not probe:
                return
            await session.reset(self.test_tasks[0])
            for number in range(probe):
                if session.is_over or session.is_rewarded:
                    break
                await self._try(session, tools, number)
                if session.is_refused:
                    return
            if not session.is_rewarded:
                raise session.no_reward(f"at its reset and in {probe} actions or fewer")

    async def _try(self, session: Session, tools: list[dict[str, Any]], number: int) -> None:
        if self.field:
            await session.step({self.field: ""})
            return
        function = tools[number % len(tools)]["function"]
        await session.call(function["name"], json.dumps(_example(function["parameters"])))


def _example(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit a simple schema: the default or an empty value for each required field."""
    fields = schema.get("properties", {})
    return {name: _value(fields.get(name, {})) for name in schema.get("required", ())}


def _value(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    empty = {"string": "", "boolean": False, "array": [], "object": {}}
    number = schema.get("minimum", 0)
    return schema.get("default", schema.get("const", empty.get(str(schema.get("type")), number)))
