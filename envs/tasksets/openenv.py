"""The environment of an OpenEnv server: one episode a connection, in words.

    evert train tasks=openenv:http://127.0.0.1:8000 model_name=smollm2

The protocol is JSON over a WebSocket (reset, step, close). evert speaks it without the package
``openenv-core``, which only the server needs. It lists no tasks in ``OFFLINE``: a server has to be
started first.
"""

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from evert.bridge.episode.agent import Outcome
from evert.envs.from_gymnasium.observations import plainly
from evert.envs.games import Game, GameError
from evert.envs.tasksets.common import game_of_agent, no_such

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

    from evert.bridge.clients.client import AgentClient

PATIENCE = 1.5
"""Seconds to wait for a server's schema."""

LARGEST = 16 * 2**20
"""Most bytes of a message from a server."""


def openenv(url: str, *, field: str | None = None, turns: int = 100) -> Game:
    """The game of a server's environment.

    Args:
        url: URL of the server, "http://127.0.0.1:8000".
        field: Field of the action that takes the reply; None: the only one that is required.
        turns: Actions after which an episode is truncated.

    Raises:
        GameError: No OpenEnv server answers at ``url``, or its actions need more than a text.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise GameError(f"tasks=openenv:{url} is not a URL; expected one like http://HOST:8000.")
    action = _action(url.rstrip("/"))
    texts = [key for key, of in action.get("properties", {}).items() if of.get("type") == "string"]
    required = list(action.get("required", ()))
    if field is None and len(required) != 1:
        raise GameError(
            f"An action of {url} needs {', '.join(required) or 'nothing'}; expected one text. Name "
            f"the field for the reply: tasks.field=NAME, of {', '.join(texts) or '(no texts)'}."
        )
    field = field or required[0]
    if field not in texts:
        raise no_such(f"An action of {url}", "text", field, texts)
    if beside := [key for key in required if key != field]:
        raise GameError(
            f"An action of {url} needs {', '.join(beside)} beside {field}, but a reply is one text."
        )
    return game_of_agent(
        f"openenv/{urlsplit(url).netloc}",
        OpenEnv(url.rstrip("/"), field, turns),
        recipe={"batch_size": 4, "group_size": 8, "max_tokens": 512},
    )


@dataclass(frozen=True)
class OpenEnv:
    """An agent that plays a server's environment; the task is the seed of its reset.

    An observation is a text with a line for each field. Each reward goes to its action's turn.

    Args:
        url: URL of the server.
        field: Field of the action that takes the reply.
        turns: Actions after which an episode is truncated.
    """

    url: str
    field: str
    turns: int = 100

    from_path: ClassVar = True
    train_tasks: ClassVar = range(10_000)
    test_tasks: ClassVar = range(10_000, 10_100)

    async def __call__(self, client: "AgentClient", task: int) -> Outcome:
        """Play an episode.

        Raises:
            GameError: The server refuses a message, or gives no reward in the episode.
        """
        import aiohttp

        address = f"ws{self.url.removeprefix('http')}/ws"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(address, max_msg_size=LARGEST) as socket,
        ):
            seen = await _told(socket, "reset", {"seed": task})
            messages: list[dict[str, str]] = []
            rewarded = False
            for _ in range(self.turns):
                if seen["done"]:
                    break
                messages.append({"role": "user", "content": plainly(seen["observation"])})
                completion = await client.chat.completions.create(messages=messages)
                reply = completion.choices[0].message.content or ""
                messages.append({"role": "assistant", "content": reply})
                seen = await _told(socket, "step", {self.field: reply})
                if seen["reward"] is not None:
                    client.reward(float(seen["reward"]))
                    rewarded = True
            await socket.send_json({"type": "close"})
        if not rewarded:
            raise GameError(f"{self.url} gave no reward in an episode; it must give at least one.")
        return Outcome(0.0, truncated=not seen["done"])


async def _told(socket: "ClientWebSocketResponse", what: str, data: Any) -> Mapping[str, Any]:
    """Send a message, and return the observation, reward and ``done`` of the answer."""
    await socket.send_json({"type": what, "data": data})
    try:
        answer = await socket.receive_json()
    except TypeError as error:  # the message is not text
        raise GameError(
            f"The server closed the connection at {what} (code {socket.close_code}); see its log."
        ) from error
    told = answer.get("data", {})
    if answer.get("type") != "observation":
        raise GameError(
            f"The server refused {what} {data!r:.200}: {told.get('message', answer)!s:.500} "
            f"({told.get('code')}). Its environment has to take this. If the server is full, raise "
            "its max_concurrent_envs, or play fewer episodes at once: parallel=1."
        )
    return {"reward": None, "done": False, "observation": {}, **told}


def _action(url: str) -> Mapping[str, Any]:
    """The schema of a server's actions."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/schema", timeout=PATIENCE) as answer:
            return {**json.loads(answer.read(LARGEST))["action"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GameError(
            f"tasks=openenv:{url}: no OpenEnv server answers there ({type(error).__name__}: "
            f"{error}). Start one (uvicorn server.app:app --port 8000), and give its URL."
        ) from error
