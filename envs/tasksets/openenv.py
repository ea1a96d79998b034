"""Environments served by an OpenEnv server, played with OpenEnv's own client.

    evert train tasks=openenv:http://127.0.0.1:8000 model_name=smollm2

An action is either text (the reply), a call to an MCP tool, or a set of fields. To fill in the
fields, the policy calls a single tool, whose parameters are the action's schema. A server's schema
does not say whether the server gives rewards, so we start an episode to find out before returning
the game. Requires the ``openenv`` extra.
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
    """Return the game for an OpenEnv server.

    Args:
        url: URL of the server, such as "http://127.0.0.1:8000".
        field: The action field that receives the text of the reply. By default, if the action has a
            single required field and this is a string, that field is used; otherwise, actions are
            tool calls.
        turns: Number of actions after which an episode is truncated.
        probe: Number of actions to try in order to check that the server gives rewards. Pass 0 to
            skip this check.
        message_timeout_s: Seconds to wait for the server to respond to a message.

    Raises:
        GameError: There is no OpenEnv server at ``url``, or it lacks the field, tools or rewards.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise GameError(f"tasks=openenv:{url} is not a URL; expected one like http://HOST:8000.")
    url = url.rstrip("/")
    action_schema.cache_clear()  # the server may have changed
    agent = OpenEnv(url, _field(url, field), turns, message_timeout_s)
    _check_once(agent, probe)
    return game_of_agent(
        f"openenv/{urlsplit(url).netloc}",
        agent,
        recipe={"batch_size": 4, "group_size": 8, "max_tokens": 512},
    )


@cache  # a single command may create its game several times
def _check_once(agent: "OpenEnv", probe: int) -> None:
    threads(2).submit(asyncio.run, agent.check(probe)).result()  # an event loop may run here


def _field(url: str, field: str | None) -> str:
    """Return the field that receives the reply, or "" if actions are tool calls."""
    action = action_schema(url)
    fields = action["properties"]
    texts = [name for name, schema in fields.items() if schema.get("type") == "string"]
    required = action["required"]
    if field is None:
        is_text = len(required) == 1 and required[0] in texts
        return required[0] if is_text and not calls_tools(action) else ""
    if field not in texts:
        raise no_such(f"The action schema of {url}", "text field", field, texts)
    if missing := [name for name in required if name != field]:
        raise GameError(
            f"An action of {url} requires {', '.join(missing)} in addition to {field}, but a reply "
            "can only fill one field. Leave out tasks.field, so that the policy calls a tool that "
            "takes all fields."
        )
    return field


@dataclass(frozen=True)
class OpenEnv:
    """An agent that plays an OpenEnv server's environment. The task is the seed for its reset.

    The first message is the observation from the reset, with one line per field. After that,
    actions are answered with observations or tool results. Each reward is assigned to the turn of
    its action. A reward from the reset is assigned to the first turn. If actions are tool calls, a
    reply without a tool call ends the episode.

    Args:
        url: URL of the server.
        field: The action field that receives the reply, or "" if the policy calls tools.
        turns: Number of actions after which an episode is truncated.
        message_timeout_s: Seconds to wait for the server to respond to a message.
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
            GameError: The server fails, rejects a message, or ends the episode without a reward.
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
        """Perform the actions in a reply and return the messages to append."""
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
        """Check that the server gives rewards, and has tools if the policy has to call them.

        Args:
            probe: Maximum number of actions to try, or 0 to skip the check for rewards. The
                actions' fields have default or empty values. If the server rejects an action, the
                check ends without a verdict.

        Raises:
            GameError: There are no tools; or the episode ended, or all actions were tried, without
                any reward.
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
                raise session.no_reward(f"on reset or within {probe} actions")

    async def _try(self, session: Session, tools: list[dict[str, Any]], number: int) -> None:
        if self.field:
            await session.step({self.field: ""})
            return
        function = tools[number % len(tools)]["function"]
        await session.call(function["name"], json.dumps(_example(function["parameters"])))


def _example(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the required arguments of a simple schema, with default or empty values."""
    fields = schema.get("properties", {})
    return {name: _value(fields.get(name, {})) for name in schema.get("required", ())}


def _value(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    empty = {"string": "", "boolean": False, "array": [], "object": {}}
    number = schema.get("minimum", 0)
    return schema.get("default", schema.get("const", empty.get(str(schema.get("type")), number)))
