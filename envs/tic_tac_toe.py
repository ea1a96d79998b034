"""Tic-tac-toe: a zero-sum game with two seats, and opponents without a model.

A board is shown as rows of X, O and the numbers of free cells. A line for each free cell follows,
with the marks in its row, column and diagonals, because a tiny model needs them side by side. Each
player sees its own marks as X, so that one model learns both seats from the same boards. Each turn
is a separate conversation. This file has the rules, the text, the agents, the players and their
habits.
"""

import random
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from evert.envs.games import Game, MadeTasks

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
        "kl_penalty": 0.02,  # toward the base, so that the policy keeps trying other moves
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
"""Reward for an illegal reply. A second one in the same turn loses the game."""


# -- the rules -----------------------------------------------------------------------------------

Board = str
"""Nine cells, row by row: "x", "o", or "." if free; x moves first."""

EMPTY: Board = "." * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def free(board: Board) -> list[int]:
    """Return the free cells, numbered from 0 to 8."""
    return [cell for cell in range(9) if board[cell] == "."]


def put(board: Board, cell: int, mark: str) -> Board:
    """Return the board with one more mark."""
    return board[:cell] + mark + board[cell + 1 :]


def mover(board: Board) -> str:
    """Return the seat to move."""
    return SEATS[(9 - board.count(".")) % 2]


def winner(board: Board) -> str | None:
    """Return the seat with three in a line; "" for a draw; None while the game goes on."""
    for a, b, c in LINES:
        if board[a] == board[b] == board[c] != ".":
            return board[a]
    return None if "." in board else ""


@cache
def value(board: Board) -> int:
    """Return the mover's reward if both seats play perfectly: 1, 0 or -1."""
    victor = winner(board)
    if victor is not None:
        return 0 if not victor else 1 if victor == mover(board) else -1
    return max(-value(put(board, cell, mover(board))) for cell in free(board))


def best(board: Board) -> list[int]:
    """Return the mover's best moves against a perfect player."""
    return [c for c in free(board) if -value(put(board, c, mover(board))) == value(board)]


def boards(rng: random.Random, max_moves: int = 8) -> Iterator[Board]:
    """Yield endless boards of unfinished games after at most ``max_moves`` random moves."""
    while True:
        board, moves = EMPTY, rng.randint(0, max_moves)
        while moves and winner(board) is None:
            board, moves = put(board, rng.choice(free(board)), mover(board)), moves - 1
        if winner(board) is None:
            yield board


def opening(seed: int) -> Board:
    """Return a board of an unfinished game after at most seven random moves."""
    return next(boards(random.Random(seed), max_moves=7))


TRAIN_TASKS = MadeTasks(100_000, opening)
TEST_TASKS: Sequence[Board] = [EMPTY] * 64


# -- the text ------------------------------------------------------------------------------------


def board_text(board: Board) -> str:
    """Return the board for its mover, who is X: the rows, then a line for each free cell."""
    marks = {mover(board): "X", SEATS[mover(board) == "x"]: "O"}
    cells = [marks.get(mark, str(cell + 1)) for cell, mark in enumerate(board)]
    rows = " ".join("".join(cells[cell] for cell in line) for line in LINES[:3])
    return "\n".join([rows, *(_cell_text(cells, cell) for cell in free(board))])


def _cell_text(cells: Sequence[str], free: int) -> str:
    """Return a free cell with the marks of each of its lines: "7 XX O"."""
    through = [line for line in LINES if free in line]
    marks = ("".join(sorted(cells[c] for c in line if cells[c] in "XO")) for line in through)
    return " ".join([cells[free], *filter(None, marks)])


def read_board(text: str) -> Board:
    """Read the board that a text begins with; X is to move.

    Raises:
        ValueError: The text does not begin with a board.
    """
    cells = text.partition("\n")[0].replace(" ", "")
    if not re.fullmatch(r"[1-9XO]{9}", cells):
        raise ValueError(f"{text!r} does not begin with a board; expected rows: 'X23 4O6 789'.")
    x_seat, o_seat = ("x", "o") if cells.count("X") == cells.count("O") else ("o", "x")
    return "".join({"X": x_seat, "O": o_seat}.get(cell, ".") for cell in cells)


def move_in(answer: str, board: Board) -> int | None:
    """Return the cell named by an answer's first digit. None: no digit, or the cell is not free."""
    digit = re.search(r"\d", answer)
    cell = int(digit.group()) - 1 if digit else -1
    return cell if cell in free(board) else None


def correction(answer: str, board: Board) -> str:
    """Return the message that follows an illegal answer."""
    cells = "".join(str(cell + 1) for cell in free(board))
    return f"{answer[:20]!r} is no move. Answer with one of {cells}."


# -- the agents ----------------------------------------------------------------------------------


async def self_play_agent(client: "AgentClient", task: Board) -> dict[str, float]:
    """Play a game between the seats x and o from the board ``task``: 1 for a win, -1 for a loss.

    Only the first turn is trained on; the later turns estimate its value. All episodes of a group
    make this move on the same board, so their mean reward is that board's baseline. If whole games
    were trained on, a lucky board would reinforce every move.
    """
    players = {seat: client.seat(seat) for seat in SEATS}
    later = {seat: partial(_turn, player.untrained) for seat, player in players.items()}
    first_seat = mover(task)
    victor = await _play(task, {**later, first_seat: partial(_turn, players[first_seat])}, later)
    rewards = {seat: _reward(victor, seat) for seat in SEATS}
    for seat, player in players.items():
        _note(player, rewards[seat])
    return rewards


async def tic_tac_toe_agent(client: "AgentClient", task: Board) -> float:
    """Tic-tac-toe against a player who moves at random.

    ## Action Space
    A move: ``Text`` whose first digit is a free cell, 1 to 9, or its tokens,
    ``Sequence(Discrete(vocabulary))``, at ``level="tokens"``.

    ## Observation Space
    The board: a ``Sequence`` of one message, or of token ids at ``level="tokens"``. The first line
    has the rows: X for the player's marks, O for the opponent's, numbers for free cells. A line for
    each free cell follows, with the marks in its row, column and diagonals. After an illegal reply,
    the same board and a correction.

    ## Starting State
    A board after up to seven random moves, drawn from ``TRAIN_TASKS``; the player is to move. The
    boards of ``TEST_TASKS`` are empty.

    ## Reward
    1 for a win, -1 for a loss, 0 for a draw; -0.1 for each illegal reply.

    ## Episode End
    Terminated when the game is over. A second illegal reply in a turn loses it.

    ## Information
    As in ``AgentGymEnv``; ``task`` is the first board.

    ## Arguments
    As in ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    The rules are well known; perfect play ends in a draw.

    ## Version History
    v0: first version.
    """
    seat = mover(task)

    async def opponent(board: Board) -> int:
        return client.rng.choice(free(board))

    victor = await _play(task, {seat: partial(_turn, client), SEATS[seat == "x"]: opponent})
    reward = _reward(victor, seat)
    _note(client, reward)
    return reward


Turn = Callable[[Board], Awaitable[int | None]]
"""Function from the board to the mover's cell, or None if the mover made no legal move."""


async def _play(
    board: Board, turns: Mapping[str, Turn], later: Mapping[str, Turn] | None = None
) -> str:
    """Play on; return the winner, or "" for a draw. ``later`` replaces ``turns`` after one turn."""
    while (victor := winner(board)) is None:
        cell = await turns[mover(board)](board)
        if cell is None:
            return SEATS[mover(board) == "x"]
        board, turns = put(board, cell, mover(board)), later or turns
    return victor


async def _turn(client: "AgentClient", board: Board) -> int | None:
    prompt = board_text(board)
    for _ in range(2):
        completion = await client.chat.completions.create(
            messages=[{"role": "user", "content": prompt}]
        )
        answer = completion.choices[0].message.content or ""
        cell = move_in(answer, board)
        if cell is not None:
            return cell
        client.reward(MISTAKE)
        client.metric("mistakes", 1.0)
        prompt = f"{board_text(board)}\n{correction(answer, board)}"
    return None


def _reward(victor: str, seat: str) -> float:
    return 0.0 if not victor else 1.0 if victor == seat else -1.0


def _note(client: "AgentClient", reward: float) -> None:
    for name, earns in (("won", 1.0), ("drawn", 0.0), ("lost", -1.0)):
        client.metric(name, float(reward == earns))


# -- players without a model ---------------------------------------------------------------------


def random_player(seed: int) -> Callable[[Sequence[Any]], str]:
    """Return a player who picks any free cell at random."""
    return partial(_reply, random.Random(seed), free)


def perfect_player(seed: int) -> Callable[[Sequence[Any]], str]:
    """Return a player who picks one of the best moves at random."""
    return partial(_reply, random.Random(seed), best)


def _reply(rng: random.Random, cells: Callable[[Board], list[int]], messages: Sequence[Any]) -> str:
    return str(rng.choice(cells(read_board(messages[-1]["content"]))) + 1)


# -- habits --------------------------------------------------------------------------------------


def habits(board: Board) -> list[list[int]]:
    """Return the cells among which each of four habits picks at random.

    The habits: any free cell; cells that win; cells that block the opponent's win; cells that do
    neither. A habit without cells picks any free cell.
    """
    cells, seat = free(board), mover(board)
    wins, saves = (
        [cell for cell in cells if winner(put(board, cell, mark)) == mark]
        for mark in (seat, SEATS[seat == "x"])
    )
    neutral = [cell for cell in cells if cell not in (*wins, *saves)]
    return [choices or cells for choices in (cells, wins, saves, neutral)]


def demonstrations(seed: int) -> Iterator[list[dict[str, str]]]:
    """Yield endless moves on random boards. All habits are equally frequent."""
    rng = random.Random(seed)
    for board in boards(rng):
        answer = str(rng.choice(rng.choice(habits(board))) + 1)
        question = {"role": "user", "content": board_text(board)}
        yield [question, {"role": "assistant", "content": answer}]
