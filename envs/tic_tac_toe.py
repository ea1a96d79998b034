"""Tic-tac-toe: two seats, zero-sum, and players without a model to be measured against.

A board is shown as its rows, with X, O, or the number of a free cell, and then the free cells with
the marks that stand in each one's lines. What matters then stands side by side, which a tiny model
can read. Each player sees its own marks as X, so that one model learns both seats from the same
boards; each turn is a conversation of its own. In order: the rules, the text, the agents, the
players, habits.
"""

import random
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from evert.envs.games import Game

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

GAME = Game(
    "evert/TicTacToe-v0",
    agent="evert.envs.tic_tac_toe:tic_tac_toe_agent",
    train_tasks="evert.envs.tic_tac_toe:TRAIN_TASKS",
    test_tasks="evert.envs.tic_tac_toe:TEST_TASKS",
    recipe={
        "agent": "evert.envs.tic_tac_toe:self_play_agent",
        "model_name": "evert-tiny-moves",
        "seats": ("x", "o"),
        "test_opponent": "perfect",
        "demonstrations": "evert.envs.tic_tac_toe:demonstrations",
        "warm_up_steps": 0,
        "steps": 120,
        "batch_size": 16,
        "group_size": 8,
        "learning_rate": 2e-4,
        "kl_penalty": 0.02,  # against the base's moves: keeps trying others
        "max_tokens": 2,
        "eval_every": 40,
        "save_every": 20,
        "league": 0.3,
    },
    full_size={
        "demonstrations": "",
        "learning_rate": 4e-5,
        "kl_penalty": 0.0,
        "max_tokens": 256,
    },
    opponents={
        "random": "evert.envs.tic_tac_toe:random_player",
        "perfect": "evert.envs.tic_tac_toe:perfect_player",
    },
)

SEATS = ("x", "o")
MISTAKE = -0.1
"""Reward of a reply that is no move; a second one in a turn loses the game."""


# -- the rules -----------------------------------------------------------------------------------

Board = str
"""Nine cells in the order of reading: "x", "o" or "."; x begins."""

EMPTY: Board = "." * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def free(board: Board) -> list[int]:
    """The free cells, from 0 to 8."""
    return [cell for cell in range(9) if board[cell] == "."]


def put(board: Board, cell: int, mark: str) -> Board:
    """The board with one more mark."""
    return board[:cell] + mark + board[cell + 1 :]


def mover(board: Board) -> str:
    """Whose turn it is."""
    return SEATS[(9 - board.count(".")) % 2]


def winner(board: Board) -> str | None:
    """Who has three in a line; "" if the board is full without; None: the game goes on."""
    for a, b, c in LINES:
        if board[a] == board[b] == board[c] != ".":
            return board[a]
    return None if "." in board else ""


@cache
def value(board: Board) -> int:
    """What the mover gets if both play as well as can be: 1, 0 or -1."""
    won = winner(board)
    if won is not None:
        return 0 if not won else 1 if won == mover(board) else -1
    return max(-value(put(board, cell, mover(board))) for cell in free(board))


def best(board: Board) -> list[int]:
    """The moves that lose nothing, against whom never errs."""
    return [c for c in free(board) if -value(put(board, c, mover(board))) == value(board)]


def drawn(rng: random.Random, moves: int) -> Board:
    """A board after random moves; fewer where the game is over before."""
    board = EMPTY
    while moves and winner(board) is None:
        board, moves = put(board, rng.choice(free(board)), mover(board)), moves - 1
    return board


def boards(rng: random.Random, most: int = 8) -> Iterator[Board]:
    """Boards after random moves, ``most`` at most, at which the game goes on; without end."""
    while True:
        board = drawn(rng, rng.randint(0, most))
        if winner(board) is None:
            yield board


class Openings(Sequence[Board]):
    """Boards after some random moves, at which the game goes on."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        """The board of a number, or those of a slice."""
        if isinstance(index, slice):
            return [self[number] for number in range(self.size)[index]]
        return next(boards(random.Random(range(self.size)[index]), most=7))


TRAIN_TASKS = Openings(100_000)
TEST_TASKS: Sequence[Board] = [EMPTY] * 64


# -- the text ------------------------------------------------------------------------------------


def shown(board: Board) -> str:
    """The board as its mover sees it, own marks as X: rows, and free cells with their lines."""
    marks = {mover(board): "X", SEATS[mover(board) == "x"]: "O"}
    cells = [marks.get(mark, str(cell + 1)) for cell, mark in enumerate(board)]
    rows = " ".join("".join(cells[cell] for cell in line) for line in LINES[:3])
    return "\n".join([rows, *(_shown_cell(cells, cell) for cell in free(board))])


def _shown_cell(cells: Sequence[str], free: int) -> str:
    """A free cell with the marks of each of its lines: "7 XX O"."""
    lines = ("".join(sorted(cells[c] for c in line if cells[c] in "XO")) for line in _through(free))
    return " ".join([cells[free], *filter(None, lines)])


def _through(cell: int) -> list[tuple[int, int, int]]:
    return [line for line in LINES if cell in line]


def seen(text: str) -> Board:
    """The board that a text begins with; X is whoever is to move.

    Raises:
        ValueError: It begins with none.
    """
    cells = text.partition("\n")[0].replace(" ", "")
    if not re.fullmatch(r"[1-9XO]{9}", cells):
        raise ValueError(f"{text!r} begins with no board; expected its rows, 'X23 4O6 789' say.")
    own, other = ("x", "o") if cells.count("X") == cells.count("O") else ("o", "x")
    return "".join({"X": own, "O": other}.get(cell, ".") for cell in cells)


def move_in(answer: str, board: Board) -> int | None:
    """The cell that an answer names, its first digit; None: no digit, or the cell is taken."""
    digit = re.search(r"\d", answer)
    cell = int(digit.group()) - 1 if digit else -1
    return cell if cell in free(board) else None


def correction(answer: str, board: Board) -> str:
    """What a player is told whose answer was no move."""
    cells = "".join(str(cell + 1) for cell in free(board))
    return f"{answer[:20]!r} is no move. Answer with one of {cells}."


# -- the agents ----------------------------------------------------------------------------------


async def self_play_agent(client: "AgentClient", task: Board) -> dict[str, float]:
    """A game of the seats x and o from the board ``task``: 1 for who wins, -1 for who loses.

    Its first move is trained alone; the others say what it is worth. So all episodes of a group
    differ in a move at the same board, whose mean reward is the baseline: where whole games are
    trained, a lucky board reinforces whatever was played on it.
    """
    players = {seat: client.seat(seat) for seat in SEATS}
    later = {seat: partial(_turn, player.untrained) for seat, player in players.items()}
    own = mover(task)
    won = await _play(task, {**later, own: partial(_turn, players[own])}, later)
    rewards = {seat: _reward(won, seat) for seat in SEATS}
    for seat, player in players.items():
        _note(player, rewards[seat])
    return rewards


async def tic_tac_toe_agent(client: "AgentClient", task: Board) -> float:
    """Tic-tac-toe against a player who draws among the free cells.

    ## Action Space
    A move: ``Text`` whose first digit is a free cell, 1 to 9, or its tokens,
    ``Sequence(Discrete(vocabulary))``, at ``level="tokens"``.

    ## Observation Space
    The board: a ``Sequence`` of one message, or of token ids at ``level="tokens"``. Its rows in a
    line of text, X for the player's own marks, O for the other's, numbers for free cells; then a
    line for each free cell, with the marks in its row, column and diagonals. After a reply that is
    no move, the same board and what is wrong.

    ## Starting State
    A board after up to seven random moves, drawn from ``TRAIN_TASKS``; the player is to move. Those
    of ``TEST_TASKS`` are empty.

    ## Reward
    1 for a win, -1 for a loss, 0 for a draw; -0.1 for each reply that is no move.

    ## Episode End
    Terminated when the game is over; a second reply in a turn that is no move loses it.

    ## Information
    That of ``AgentGymEnv``; ``task`` is the first board.

    ## Arguments
    Those of ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    The rules are everybody's; perfect play ends in a draw.

    ## Version History
    v0: first version.
    """
    own = mover(task)
    other = _asked(partial(_reply, client.rng, free))
    won = await _play(task, {own: partial(_turn, client), SEATS[own == "x"]: other})
    reward = _reward(won, own)
    _note(client, reward)
    return reward


Turn = Callable[[Board], Awaitable[int | None]]
"""From the board to the mover's cell; None: it did not come to a move."""


async def _play(
    board: Board, turns: Mapping[str, Turn], later: Mapping[str, Turn] | None = None
) -> str:
    """Who wins; "" for a draw. ``later`` are the turns after the first one; None: the same."""
    while (won := winner(board)) is None:
        cell = await turns[mover(board)](board)
        if cell is None:
            return SEATS[mover(board) == "x"]
        board, turns = put(board, cell, mover(board)), later or turns
    return won


async def _turn(client: "AgentClient", board: Board) -> int | None:
    said = shown(board)
    for _ in range(2):
        completion = await client.chat.completions.create(
            messages=[{"role": "user", "content": said}]
        )
        answer = completion.choices[0].message.content or ""
        cell = move_in(answer, board)
        if cell is not None:
            return cell
        client.reward(MISTAKE)
        client.metric("mistakes", 1.0)
        said = f"{shown(board)}\n{correction(answer, board)}"
    return None


def _reward(won: str, seat: str) -> float:
    return 0.0 if not won else 1.0 if won == seat else -1.0


def _note(client: "AgentClient", reward: float) -> None:
    for name, earns in (("won", 1.0), ("drawn", 0.0), ("lost", -1.0)):
        client.metric(name, float(reward == earns))


# -- players without a model ---------------------------------------------------------------------


def random_player(seed: int) -> Callable[[Sequence[Any]], str]:
    """Draws among the free cells."""
    return partial(_reply, random.Random(seed), free)


def perfect_player(seed: int) -> Callable[[Sequence[Any]], str]:
    """Draws among the moves that lose nothing."""
    return partial(_reply, random.Random(seed), best)


def _reply(rng: random.Random, cells: Callable[[Board], list[int]], messages: Sequence[Any]) -> str:
    return str(rng.choice(cells(seen(messages[-1]["content"]))) + 1)


def _asked(player: Callable[[Sequence[Any]], str]) -> Turn:
    async def turn(board: Board) -> int | None:
        return move_in(player([{"role": "user", "content": shown(board)}]), board)

    return turn


# -- habits --------------------------------------------------------------------------------------


def habits(board: Board) -> list[list[int]]:
    """The cells that each of four players of a habit draws from.

    One takes any; one wins where it can; one keeps the other from winning; one leaves all these
    cells alone. Where a habit has nothing to say, its player takes any.
    """
    cells, own = free(board), mover(board)
    wins, saves = (
        [cell for cell in cells if winner(put(board, cell, mark)) == mark]
        for mark in (own, SEATS[own == "x"])
    )
    others = [cell for cell in cells if cell not in (*wins, *saves)]
    return [each or cells for each in (cells, wins, saves, others)]


def demonstrations(seed: int) -> Iterator[list[dict[str, str]]]:
    """Moves by players of every habit, each as frequent, on random boards, without end."""
    rng = random.Random(seed)
    for board in boards(rng):
        answer = str(rng.choice(rng.choice(habits(board))) + 1)
        yield [{"role": "user", "content": shown(board)}, {"role": "assistant", "content": answer}]
