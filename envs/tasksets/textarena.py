"""TextArena games, for one player or with a seat per player, scored by the games themselves.

    evert train tasks=textarena:GuessTheNumber-v0 model_name=smollm2
    evert train tasks=textarena:KuhnPoker-v0 tasks.max_rounds=3 model_name=smollm2

The games run unchanged, with TextArena's own wrappers. Requires the ``textarena`` extra.
"""

import asyncio
import importlib
import random
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from evert.envs.games import Game, GameError, Metric
from evert.envs.tasksets.common import game_of_agent, needed, no_such

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

OFFLINE: Mapping[str, Mapping[str, Any]] = {
    "GuessTheNumber-v0": {"max_tokens": 16},
    "TicTacToe-v0": {"max_tokens": 16},
}

NETWORK = {
    "OpenRouter": "calls a model on OpenRouter",
    "EnglishDictionary": "downloads its words (nltk.download)",
    "nltk": "downloads its words (nltk.download)",
}
"""Word in a game's source code -> how a game that contains this word uses the network."""

MOST_PLAYERS = 15

T = TypeVar("T")

_random_lock = threading.Lock()


def textarena(name: str, *, players: int | None = None, **options: Any) -> Game:
    """Create a ``Game`` from a TextArena game.

    Args:
        name: Id of the game, such as "Wordle-v0".
        players: Number of players (default: the smallest number that the game supports).
        **options: Options for the game.

    Raises:
        GameError: There is no such game, or the game needs network access or cannot be started with
            these arguments.
    """
    _refuse_network(name, _module(name))
    agent = _checked_agent(name, players, options)
    recipe: dict[str, Any] = {
        "batch_size": 8,
        "group_size": 8,
        "max_tokens": 512,
        "limits": {"max_turns": 100},
        "on_agent_error": -1.0,  # some games raise on an invalid move
    }
    alone = {"solved": Metric("Games with the full reward", "share", drawn=("train", "test"))}
    against = {key: Metric(f"Games {key}", "share") for key in ("won", "drawn", "lost")}
    if agent.players > 1:
        recipe["seats"] = agent.seats
    return game_of_agent(
        f"textarena/{name}",
        agent,
        recipe=recipe,
        metrics={
            **(alone if agent.players == 1 else against),
            "invalid": Metric("Games ended by an invalid move", "share"),
        },
    )


@dataclass(frozen=True)
class TextArena:
    """An agent that plays a TextArena game. The task is the game's seed.

    Each player has one conversation, to which only the new part of each observation is added. If an
    observation does not start with the previous observation, a new conversation is started. The
    reward comes from the game.

    Args:
        name: Id of the game.
        players: Number of players. With more than one, each has a seat ("player_0" and so on).
        options: Options for the game.
    """

    name: str
    players: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    from_path: ClassVar = True
    train_tasks: ClassVar = range(10_000)
    test_tasks: ClassVar = range(10_000, 10_100)

    @property
    def seats(self) -> tuple[str, ...]:
        """The seat names ("player_0" and so on), one per player."""
        return tuple(f"player_{number}" for number in range(self.players))

    async def __call__(self, client: "AgentClient", task: int) -> float | dict[str, float]:
        """Play a game."""
        alone = self.players == 1
        clients = [client] if alone else [client.seat(seat) for seat in self.seats]
        conversations: list[list[dict[str, str]]] = [[] for _ in clients]
        observations = [""] * len(clients)
        match = await asyncio.to_thread(_RunningGame, self, task)
        over = False
        while not over:
            player, observation = await asyncio.to_thread(match.observation)
            if not observation.startswith(observations[player]):
                conversations[player], observations[player] = [], ""
            text = observation.removeprefix(observations[player]).strip()
            conversations[player].append({"role": "user", "content": text})
            observations[player] = observation
            completion = await clients[player].chat.completions.create(
                messages=conversations[player]
            )
            reply = completion.choices[0].message.content or ""
            conversations[player].append({"role": "assistant", "content": reply})
            over = await asyncio.to_thread(match.step, reply)
        rewards, about = match.env.close()
        for player, player_client in enumerate(clients):
            _note(player_client, float(rewards[player]), about[player], alone=alone)
        earned = {seat: float(rewards[player]) for player, seat in enumerate(self.seats)}
        return earned["player_0"] if alone else earned


class _RunningGame:
    """A running game with a private random state, because games use the global ``random``."""

    def __init__(self, agent: TextArena, seed: int) -> None:
        import textarena

        _silence(_module(agent.name))
        self._random_state = random.Random(seed).getstate()
        self.env = self._as_itself(lambda: textarena.make(agent.name, **agent.options))
        self._as_itself(lambda: self.env.reset(num_players=agent.players, seed=seed))

    def observation(self) -> Any:
        """Return the player whose turn it is, and that player's observation."""
        return self._as_itself(self.env.get_observation)

    def step(self, reply: str) -> bool:
        """Play a reply and return whether the game is over."""
        return bool(self._as_itself(lambda: self.env.step(reply))[0])

    def _as_itself(self, work: Callable[[], T]) -> T:
        with _random_lock:
            outer_state = random.getstate()
            random.setstate(self._random_state)
            try:
                return work()
            finally:
                self._random_state = random.getstate()
                random.setstate(outer_state)


def _note(client: "AgentClient", reward: float, about: Mapping[str, Any], *, alone: bool) -> None:
    if alone:
        client.metric("solved", float(reward >= 1))
    else:
        for name, is_so in (("won", reward > 0), ("drawn", reward == 0), ("lost", reward < 0)):
            client.metric(name, float(is_so))
    client.metric("invalid", float(about["invalid_move"]))
    client.log(ended=str(about.get("reason")))


def _module(name: str) -> str:
    registration = "textarena.envs.registration"
    module = needed("textarena", registration, "pip install 'evert[textarena]'")
    registry: dict[str, Any] = module.ENV_REGISTRY
    if name not in registry:
        first = {spec.entry_point: id for id, spec in reversed(registry.items())}
        raise no_such("TextArena", "game", name, registry, sorted(first.values()))
    return str(registry[name].entry_point).partition(":")[0]


@cache
def _silence(module: str) -> None:
    """Disable ``print`` in a game's modules, as some games print and threads share stdout."""
    importlib.import_module(module)
    for name, game_module in [*sys.modules.items()]:
        if name.startswith(module.rpartition(".")[0]):
            vars(game_module)["print"] = lambda *values, **options: None


def _refuse_network(name: str, module: str) -> None:
    """Reject a game that uses the network, without importing it (which may download data)."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return  # textarena.make will raise
    source = Path(spec.origin).read_text() if spec and spec.origin else ""
    for word, why in NETWORK.items():
        if word in source:
            raise GameError(
                f"tasks=textarena:{name} is not supported because the game {why}. Choose a "
                "different game, like GuessTheNumber-v0; see docs/tasksets.md for a list of "
                "unsupported games."
            )


def _checked_agent(name: str, players: int | None, options: Mapping[str, Any]) -> TextArena:
    """Return an agent whose game is known to start, by default with as few players as possible."""
    import textarena

    failures = []
    for count in [players] if players else range(1, MOST_PLAYERS + 1):
        agent = TextArena(name, count, options)
        try:
            match = _RunningGame(agent, 0)
            is_alone = isinstance(match.env.state, textarena.SinglePlayerState)
        except Exception as error:  # AssertionError for a wrong number of players, or anything else
            failures.append(error)
            continue
        if not (players or is_alone or count > 1):
            continue
        observation = match.observation()[1]
        if not isinstance(observation, str):
            raise GameError(
                f"The observations of tasks=textarena:{name} are of type "
                f"{type(observation).__name__}, not text. Use the game's id without '-raw'."
            )
        return agent
    raise GameError(
        f"tasks=textarena:{name} does not start with players={players} and {dict(options)}: "
        f"{type(failures[0]).__name__}: {failures[0]}. Check tasks.players and the game's "
        "arguments, or choose a different game, since some are broken in this version."
    ) from failures[0]
