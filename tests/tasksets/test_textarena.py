"""TextArena's games under evert earn the same rewards as in TextArena's own loop."""

import asyncio
import random
from collections.abc import Iterator
from itertools import chain, pairwise

import pytest
import textarena as ta
import textarena.envs.FrozenLake.env as frozen_lake
from tests.kit import play, reward
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentError, ScriptedPolicy
from evert.bridge.env.seats import seat_envs
from evert.bridge.import_paths import resolve
from evert.envs.games import GameError
from evert.envs.tasksets.textarena import OFFLINE, TextArena, textarena

pytestmark = pytest.mark.filterwarnings("ignore")  # raised by packages that the games import

HANOI = ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"]
WAYS = ["[up]", "[down]", "[left]", "[right]"]
CELLS = [f"[{row} {column}]" for row in range(5) for column in range(5)]

GAMES = {
    "2048-v0-ultra-easy": WAYS,
    "Bandit-v0": ["[red]", "[blue]", "[green]"],
    "Blackjack-v0": ["[Hit]", "[Stand]"],
    "Countdown-v0": ["[0 1 +]", "[0 1 -]"],
    "FifteenPuzzle-v0": WAYS,
    "FrozenLake-v0": WAYS,
    "GuessTheNumber-v0": [f"[{number}]" for number in range(1, 21)],
    "LightsOut-v0": CELLS,
    "Mastermind-v0": ["[1 2 3 4]", "[2 1 4 3]", "[5 6 1 2]"],
    "Minesweeper-v0-small": CELLS,
    "Secretary-v0": ["[accept]", "[continue]"],
    "TowerOfHanoi-v0": HANOI,
    "ConnectFour-v0": [f"[col {column}]" for column in range(7)],
    "IteratedPrisonersDilemma-v0": ["[Cooperate]", "[Defect]", "Shall we?"],
    "IteratedRockPaperScissors-v0": ["[rock]", "[paper]", "[scissors]"],
    "KuhnPoker-v0": ["[check]", "[bet]", "[call]", "[fold]"],
    "Nim-v0": ["[0 1]", "[1 1]", "[2 1]"],
    "PigDice-v0": ["[roll]", "[hold]"],
    "TicTacToe-v0": [f"[{cell}]" for cell in range(9)],
    "ThreePlayerIPD-v0": ["[0 cooperate] [1 defect] [2 defect]", "Let us all cooperate."],
}
"""Some moves of each game."""

AGENTS = {
    id: TextArena(id, 1 if place < 12 else 2 if place < 19 else 3) for place, id in enumerate(GAMES)
}


def script(id: str, seed: int) -> Iterator[str]:
    """Yield scripted moves followed by random ones, or only random ones."""
    draw = random.Random(seed)
    first = [] if seed % 2 else GAMES[id]
    return chain(first, iter(lambda: draw.choice(GAMES[id]), None))


def in_their_loop(agent: TextArena, seed: int) -> dict[int, float] | None:
    """Return what each player earns, or None if the game returns text instead of numbers."""
    random.seed(seed)
    moves, over = script(agent.name, seed), False
    env = ta.make(agent.name)
    env.reset(num_players=agent.players, seed=seed)
    while not over:
        env.get_observation()
        over, _ = env.step(next(moves))
    rewards, _ = env.close()
    return None if any(isinstance(each, str) for each in rewards.values()) else rewards


async def under_evert(agent: TextArena, seed: int) -> dict[int, float] | None:
    moves = script(agent.name, seed)
    if agent.players == 1:
        try:
            return {0: reward(await play(agent, lambda _: next(moves), task=seed))}
        except AgentError:
            return None
    envs = seat_envs(agent, agent.seats, seed)
    policy = ScriptedPolicy(lambda _: next(moves))
    played = await asyncio.gather(*(do_single_rollout(policy, env) for env in envs))
    return {player: reward(trajectory) for player, trajectory in enumerate(played)}


async def test_twenty_concurrent_games_earn_the_same_rewards_as_in_textarenas_own_loop() -> None:
    plays = [(agent, seed) for agent in AGENTS.values() for seed in (0, 1)]
    theirs = [in_their_loop(*each) for each in plays]
    ours = await asyncio.gather(*(under_evert(*each) for each in plays))
    assert ours == [each and {k: pytest.approx(v) for k, v in each.items()} for each in theirs]
    assert len({each for earned in theirs if earned for each in earned.values()}) > 5
    assert theirs[2 * [*GAMES].index("TowerOfHanoi-v0")] == {0: 1}


async def test_a_players_conversation_gets_only_the_new_observations_at_each_turn() -> None:
    prompts: list[str] = []

    def guess(prompt: str) -> str:
        prompts.append(prompt)
        return f"[{len(prompts)}]"

    trajectory = await play(TextArena("GuessTheNumber-v0"), guess, task=3)
    last = trajectory.transitions[-1]
    assert len(prompts) > 3
    assert all(after.startswith(before) for before, after in pairwise(prompts))
    assert prompts[-1].count("You have to guess the number between 1 and 20") == 1
    assert (last.metrics["solved"], last.metrics["invalid"]) == (1.0, 0.0)
    assert last.logs["ended"].startswith("Congratulations!")


async def test_the_output_of_a_game_is_suppressed_but_other_output_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = TextArena("FrozenLake-v0", options={"size": 3, "num_holes": 9})  # prints a warning
    await play(agent, lambda _: "[down]", task=0)
    assert capsys.readouterr().out == ""
    game = frozen_lake.FrozenLakeEnv
    own = game.reset
    monkeypatch.setattr(game, "reset", lambda *given, **named: print("x") or own(*given, **named))
    await play(agent, lambda _: "[down]", task=0)
    assert capsys.readouterr().out == "x\n"


@pytest.mark.parametrize(
    ("name", "given", "players"),
    [("TicTacToe-v0", {}, 2), ("Snake-v0", {}, 2), ("Snake-v0", {"players": 3, "width": 7}, 3),
     ("GuessTheNumber-v0", {"max_turns": 4}, 1)],
)  # fmt: skip
def test_a_game_has_its_number_of_seats(name: str, given: dict[str, int], players: int) -> None:
    game = textarena(name, **given)
    agent = resolve(game.agent, "agent", GameError)
    assert agent.players == players
    assert len(game.recipe.get("seats", "1")) == players


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("TicTactoe-v0", {}, r"no game 'TicTactoe-v0'\. Did you mean TicTacToe-v0\? Avail.*Nim"),
        ("Wordle-v0", {}, "not supported because the game downloads its words"),
        ("SpellingBee-v0-small", {}, "not supported because the game downloads its words"),
        ("TwentyQuestions-v0", {}, "not supported because the game calls a model on OpenRouter"),
        ("TicTacToe-v0", {"players": 3}, "players=3 .*number of players has to be 2"),
        ("TicTacToe-v0", {"size": 3}, "unexpected keyword argument 'size'"),
        ("TicTacToe-v0-raw", {}, "are of type list, not text"),
        ("UsedCar-v0-balanced", {}, "does not start .* some are broken in this version"),
    ],
)
def test_an_unplayable_game_is_refused(name: str, given: dict[str, int], message: str) -> None:
    with pytest.raises(GameError, match=message):
        textarena(name, **given)


def test_all_offline_games_of_textarena_exist() -> None:
    assert [textarena(name).id for name in OFFLINE] == [f"textarena/{name}" for name in OFFLINE]
