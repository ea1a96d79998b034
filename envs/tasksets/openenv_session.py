"""An episode on an OpenEnv server: the session, its tools, and validation of responses.

Everything a server sends is validated before use. OpenEnv's client takes seconds to import, so it
is imported lazily.
"""

# pyright: reportMissingImports=false

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from evert.bridge.chat.fields import json_object
from evert.bridge.chat.schemas import check_schema, first_error
from evert.envs.from_gymnasium.observations import plainly
from evert.envs.games import GameError
from evert.envs.tasksets.common import needed

if TYPE_CHECKING:
    from openenv.core.generic_client import GenericEnvClient

PATIENCE = 1.5
"""Seconds to wait for a server's schema."""

LARGEST = 16
"""Maximum size of a server's message in MiB."""

STEP = "step"
"""Name of the tool whose arguments are the action's fields."""

WHILE_FULL = (0.1, 0.3, 1.0)
"""Delays in seconds between attempts to start an episode while the server is at capacity.

A server may take a while to free a session after its connection has closed.
"""


@asynccontextmanager
async def opened(
    url: str, message_timeout_s: float, pay: Callable[[float], None]
) -> AsyncIterator["Session"]:
    """Open a session, and close it on exit. The session connects with its first message.

    Args:
        url: URL of the server.
        message_timeout_s: Seconds to wait for the server to respond to a message.
        pay: Called with each reward as it arrives.

    Raises:
        GameError: OpenEnv is not installed, or there is no OpenEnv server at ``url``.
    """
    action = await asyncio.to_thread(action_schema, url)
    install = "pip install 'evert[openenv]'"
    package = await asyncio.to_thread(needed, "openenv", "openenv.core.generic_client", install)
    env = package.GenericEnvClient(
        url,
        message_timeout_s=message_timeout_s,
        max_message_size_mb=LARGEST,
        mode="simulation",  # regardless of OPENENV_CLIENT_MODE
    )
    try:
        yield Session(url, env, action, pay)
    finally:
        await env.close()


class Session:
    """An episode on a server, over a single connection.

    Args:
        url: URL of the server.
        env: OpenEnv's client.
        action: The schema of the server's actions.
        pay: Called with each reward as it arrives.

    Attributes:
        observation: The latest observation.
        is_over: Whether the server has ended the episode.
        is_refused: Whether the latest action was invalid or its tool failed.
        is_rewarded: Whether the server has given a reward.
    """

    def __init__(
        self,
        url: str,
        env: "GenericEnvClient",
        action: Mapping[str, Any],
        pay: Callable[[float], None],
    ) -> None:
        self.url = url
        self._env = env
        self._action = action
        self._pay = pay
        self._socket: Any = None
        self.observation: Any = {}
        self.is_over = False
        self.is_refused = False
        self.is_rewarded = False

    @property
    def text(self) -> str:
        """The observation as text."""
        fields = self.observation
        if isinstance(fields, Mapping) and not fields.get("metadata"):
            fields = {name: value for name, value in fields.items() if name != "metadata"}
        return plainly(fields)

    def no_reward(self, when: str) -> GameError:
        """Return the error for a server that does not give rewards."""
        return GameError(
            f"{self.url} gave no reward {when}: every reward was None (latest observation: "
            f"{self.text!r:.200}). The environment must set Observation.reward to a number (0.0 if "
            "nothing was earned), for example in a rubric or, for MCP tools, in step_async. If "
            "rewards come later or only for some actions, pass tasks.probe=0."
        )

    async def reset(self, seed: int) -> None:
        """Start the episode."""
        await self._send("reset", lambda: self._env.reset(seed=seed))
        self._socket = self._env._ws  # detects if the client silently reconnects to a new episode

    async def step(self, action: Any) -> None:
        """Perform an action, which is a dict or an OpenEnv action."""
        # Otherwise the client would reconnect to an environment that has not been reset.
        if self._socket.close_code is not None:
            raise self._failure("step", f"it closed the connection ({self._socket.close_code})")
        await self._send("step", lambda: self._env.step(action))

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the MCP tools, or one tool for an action's fields, in OpenAI's format."""
        if not calls_tools(self._action):
            description = str(self._action.get("description", "Take an action."))
            return [_tool(STEP, description, self._action)]
        from openenv.core.env_server.mcp_types import ListToolsAction, ListToolsObservation

        await self._send("list_tools", lambda: self._env.step(ListToolsAction()))
        try:
            tools = ListToolsObservation.model_validate(self.observation).tools
        except ValueError as error:
            raise self._failure("list_tools", f"{error}") from error
        if not tools:
            raise self._failure("list_tools", f"no tools: {self.text}")
        return [_tool(tool.name, tool.description, tool.input_schema) for tool in tools]

    async def call(self, name: str, arguments: str) -> str:
        """Execute a tool call as an action and return the result as text."""
        if self.is_over:
            return "The episode is over."
        fields = json_object(arguments)
        if problem := self._problem(name, fields):
            self.is_refused = True
            return f"Error: {problem}"
        if not calls_tools(self._action):
            await self.step(fields)
            return self.text
        from openenv.core.env_server.mcp_types import CallToolAction

        await self.step(CallToolAction(tool_name=name, arguments=fields))
        if isinstance(self.observation, Mapping) and self.observation.get("error"):
            self.is_refused = True
        return self.text if isinstance(self.observation, str) else _result(self.observation)

    def _problem(self, name: str, fields: dict[str, Any] | None) -> str | None:
        if fields is None:
            return "the arguments are not a JSON object"
        if calls_tools(self._action):  # left to the server
            return None
        if name != STEP:
            return f"there is no tool {name!r:.200}; call {STEP}"
        return first_error(json.dumps(self._action), fields)

    async def _send(self, what: str, send: Callable[[], Any]) -> None:
        for pause in (*WHILE_FULL, None):
            try:
                result = await send()
                break
            except Exception as error:  # the client may raise anything
                if pause is None or "CAPACITY_REACHED" not in str(error):
                    self._refuse(what, error)
                    return
            await asyncio.sleep(pause)
        self.observation, self.is_over = result.observation, bool(result.done)
        self.is_refused = False
        if result.reward is not None:
            self.is_rewarded = True
            self._pay(result.reward)

    def _refuse(self, what: str, error: Exception) -> None:
        if what != "step" or "VALIDATION_ERROR" not in str(error):
            raise self._failure(what, f"{type(error).__name__}: {error}") from error
        self.is_refused = True  # a mistake by the policy, not a server failure
        self.observation = f"Error: the environment refuses this action: {error}"

    def _failure(self, what: str, reason: str) -> GameError:
        return GameError(
            f"{self.url} failed during {what}: {reason:.500}. See the server's log. If it is at "
            "capacity, raise max_concurrent_envs or play fewer episodes in parallel (parallel=1). "
            "If it is slow, raise tasks.message_timeout_s."
        )


def _tool(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _result(observation: Any) -> str:
    """Return a tool's result or error as text."""
    if not isinstance(observation, Mapping) or "tool_name" not in observation:
        return plainly(observation)
    if error := observation.get("error"):
        return f"Error: {error.get('message') if isinstance(error, Mapping) else error}"
    result = observation.get("result")
    if isinstance(result, Mapping) and isinstance(content := result.get("content"), list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return plainly(result)


def calls_tools(action: Mapping[str, Any]) -> bool:
    """Return whether actions are MCP tool calls, based on the schemas of OpenEnv's own classes."""
    kind = action["properties"].get("type", {}).get("const")
    return kind in ("call_tool", "list_tools") or not action["properties"]


@cache
def action_schema(url: str) -> Mapping[str, Any]:
    """Fetch the JSON schema of a server's actions, for which OpenEnv's client has no method."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/schema", timeout=PATIENCE) as answer:
            schema = answer.read(LARGEST * 2**20)
        action = {"properties": {}, "required": [], **json.loads(schema)["action"]}
        check_schema(json.dumps(action))
        fields = {name: of for name, of in action["properties"].items() if isinstance(of, dict)}
        fields.pop("metadata", None)  # every action has this field
        return {**action, "properties": fields}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GameError(
            f"tasks=openenv:{url}: there is no OpenEnv server at this URL ({type(error).__name__}: "
            f"{error}). Start one (uvicorn server.app:app --port 8000) and pass its URL."
        ) from error
