"""All kinds of OpenEnv servers in one process, each under its own path.

    python tests/tasksets/openenv_servers.py PORT

``/words`` is the template that ``openenv init`` writes to the current folder. ``/echo`` is
OpenEnv's quick start with MCP tools. ``/sums`` has tools and ``/walk`` has actions with two fields;
both give a reward at each step. ``/mute`` and ``/mutetools`` never give a reward. ``/late`` gives a
reward only at the end.
"""

import random
import sys
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

GOAL = 6


class Tools(MCPEnvironment):
    """An environment with tools but no reward, because the base class does not set one."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("tools")
        self.add_tools(mcp)
        super().__init__(mcp)

    def add_tools(self, mcp: FastMCP) -> None:
        @mcp.tool
        def echo_message(message: str) -> str:
            """Echo a message."""
            return message

    def reset(self, seed: int | None = None, **options: Any) -> Observation:
        return Observation()

    def _step_impl(self, action: Action, timeout_s: float | None = None, **options: Any) -> Any:
        return Observation()

    @property
    def state(self) -> State:
        return State()


class Echo(Tools):
    """OpenEnv's quick start: the reset has a reward, but calls do not."""

    def reset(self, seed: int | None = None, **options: Any) -> Observation:
        return Observation(reward=0.0, metadata={"message": "Echo environment ready!"})


class Sums(Tools):
    """Gives 0.1 for each sum of two numbers, and 1 for the right answer, which ends the episode."""

    numbers: tuple[int, int]

    def add_tools(self, mcp: FastMCP) -> None:
        @mcp.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @mcp.tool
        def answer(number: int) -> str:
            """Give the answer."""
            return "right" if number == sum(self.numbers) else "wrong"

    def reset(self, seed: int | None = None, **options: Any) -> Observation:
        draw = random.Random(seed)
        self.numbers = draw.randrange(10), draw.randrange(10)
        return Observation(metadata={"question": f"{self.numbers[0]} + {self.numbers[1]}?"})

    async def step_async(self, action: Action, *args: Any, **options: Any) -> Any:
        observation = await super().step_async(action, *args, **options)
        if isinstance(observation, CallToolObservation):
            is_answer = observation.tool_name == "answer" and observation.error is None
            is_right = is_answer and observation.result.data == "right"
            observation.done = is_answer
            observation.reward = float(is_right) if is_answer else 0.1 * (observation.error is None)
        return observation


class Move(Action):
    """Walk some steps in a direction."""

    direction: Literal["left", "right"]
    steps: int = 1


class Place(Observation):
    """Where the walker stands."""

    place: int


class Walk(Environment):  # type: ignore[type-arg]
    """A walk from a random place to a goal. A step towards it earns 1, a step away from it -1."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, **options: Any) -> Place:
        self.place = random.Random(seed).randrange(GOAL)
        return Place(place=self.place)

    def step(self, action: Move, timeout_s: float | None = None, **options: Any) -> Place:  # type: ignore[override]
        before = abs(GOAL - self.place)
        self.place += action.steps if action.direction == "right" else -action.steps
        reward = before - abs(GOAL - self.place)
        return Place(place=self.place, reward=reward, done=self.place == GOAL)

    @property
    def state(self) -> State:
        return State()


class Text(Action):
    """An action that consists only of text."""

    text: str


class Mute(Environment):  # type: ignore[type-arg]
    """Ends after the third text, without a reward."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    last: float | None = None

    def reset(self, seed: int | None = None, **options: Any) -> Observation:
        self.texts = 0
        return Observation()

    def step(self, action: Text, timeout_s: float | None = None, **options: Any) -> Observation:  # type: ignore[override]
        self.texts += 1
        if action.text == "raise":
            raise ValueError("the environment's own words")
        done = self.texts == 3
        return Observation(done=done, reward=self.last if done else None)

    @property
    def state(self) -> State:
        return State()


class Late(Mute):
    """Gives a reward only at the end."""

    last = 1.0


def app(environment: Any, action: Any, observation: Any = Observation, sessions: int = 8) -> Any:
    return create_app(environment, action, observation, max_concurrent_envs=sessions)


if __name__ == "__main__":
    sys.path.insert(0, "")
    from server.app import app as words

    server = FastAPI()
    server.mount("/words", words)
    server.mount("/echo", app(Echo, CallToolAction, CallToolObservation))
    server.mount("/sums", app(Sums, CallToolAction, CallToolObservation))
    server.mount("/mutetools", app(Tools, CallToolAction, CallToolObservation))
    server.mount("/walk", app(Walk, Move, Place))
    server.mount("/mute", app(Mute, Text))
    server.mount("/late", app(Late, Text, sessions=1))
    uvicorn.run(server, port=int(sys.argv[1]), log_level="warning")
