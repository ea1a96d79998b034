"""Tic-tac-toe: a zero-sum game with two seats and scripted opponents.

A board is shown as rows of X, O and the numbers of free cells, followed by one line per free cell
with the marks in its row, column and diagonals. (A tiny model needs to see these next to each
other.) Each player sees its own marks as X, so that one model can learn both seats from the same
boards. Each turn is a separate conversation. This module contains the rules, the text format, the
agents, the scripted players and their habits.
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
        "kl_penalty": 0.02,  # keeps the policy close to the base model, so that it explores
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
"""Reward for an illegal reply. Two illegal replies in the same turn lose the game."""


# -- the rules -----------------------------------------------------------------------------------

Board = str
"""Nine cells, row by row: "x", "o", or "." for a free cell. x moves first."""

EMPTY: Board = "." * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def free(board: Board) -> list[int]:
    """Return the indices (0 to 8) of the free cells."""
    return [cell for cell in range(9) if board[cell] == "."]


def put(board: Board, cell: int, mark: str) -> Board:
    """Return the board after placing a mark."""
    return board[:cell] + mark + board[cell + 1 :]


def mover(board: Board) -> str:
    """Return the seat whose turn it is."""
    return SEATS[(9 - board.count(".")) % 2]


def winner(board: Board) -> str | None:
    """Return the seat with three in a row, "" for a draw, or None if the game is not over."""
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
    """Return the mover's optimal moves against a perfect opponent."""
    return [c for c in free(board) if -value(put(board, c, mover(board))) == value(board)]


def boards(rng: random.Random, max_moves: int = 8) -> Iterator[Board]:
    """Yield an endless stream of unfinished boards after at most ``max_moves`` random moves."""
    while True:
        board, moves = EMPTY, rng.randint(0, max_moves)
        while moves and winner(board) is None:
            board, moves = put(board, rng.choice(free(board)), mover(board)), moves - 1
        if winner(board) is None:
            yield board


def opening(seed: int) -> Board:
    """Return an unfinished board after at most seven random moves."""
    return next(boards(random.Random(seed), max_moves=7))


TRAIN_TASKS = MadeTasks(100_000, opening)
TEST_TASKS: Sequence[Board] = [EMPTY] * 64


# -- the text ------------------------------------------------------------------------------------


def board_text(board: Board) -> str:
    """Render the board for the player to move (shown as X): rows, then a line per free cell."""
    marks = {mover(board): "X", SEATS[mover(board) == "x"]: "O"}
    cells = [marks.get(mark, str(cell + 1)) for cell, mark in enumerate(board)]
    rows = " ".join("".join(cells[cell] for cell in line) for line in LINES[:3])
    return "\n".join([rows, *(_cell_text(cells, cell) for cell in free(board))])


def _cell_text(cells: Sequence[str], free: int) -> str:
    """Return a free cell with the marks in each line through it, like "7 XX O"."""
    through = [line for line in LINES if free in line]
    marks = ("".join(sorted(cells[c] for c in line if cells[c] in "XO")) for line in through)
    return " ".join([cells[free], *filter(None, marks)])


def read_board(text: str) -> Board:
    """Parse the board at the start of a text. It must be X's turn.

    Raises:
        ValueError: The text does not start with a board.
    """
    cells = text.partition("\n")[0].replace(" ", "")
    if not re.fullmatch(r"[1-9XO]{9}", cells):
        raise ValueError(f"{text!r} does not start with a board; expected rows: 'X23 4O6 789'.")
    x_seat, o_seat = ("x", "o") if cells.count("X") == cells.count("O") else ("o", "x")
    return "".join({"X": x_seat, "O": o_seat}.get(cell, ".") for cell in cells)


def move_in(answer: str, board: Board) -> int | None:
    """Return the cell for the answer's first digit, or None if that is not a free cell."""
    digit = re.search(r"\d", answer)
    cell = int(digit.group()) - 1 if digit else -1
    return cell if cell in free(board) else None


def correction(answer: str, board: Board) -> str:
    """Return the message to send after an illegal answer."""
    cells = "".join(str(cell + 1) for cell in free(board))
    return f"{answer[:20]!r} is no move. Answer with one of {cells}."


# -- the agents ----------------------------------------------------------------------------------


async def self_play_agent(client: "AgentClient", task: Board) -> dict[str, float]:
    """Play a game between the seats x and o, starting from the board ``task``.

    The reward is 1 for a win and -1 for a loss. Only the first turn is trained on; the rest of the
    game is played to estimate the value of that turn. All episodes of a group make this first move
    on the same board, so their mean reward is a baseline for that board. If we trained on whole
    games, a lucky starting board would reinforce every move.
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
    """Play tic-tac-toe against an opponent who moves at random.

    ## Action Space
    A move: ``Text`` whose first digit is a free cell, 1 to 9, or its tokens with
    ``level="tokens"``, ``Sequence(Discrete(vocabulary))``.

    ## Observation Space
    The board: a ``Sequence`` of one message, or of token ids with ``level="tokens"``. The first
    line contains the rows, with X for the player's marks, O for the opponent's, and numbers for
    free cells. It is followed by one line per free cell with the marks in its row, column and
    diagonals. After an illegal reply, the same board is shown with a correction.

    ## Starting State
    A board after up to seven random moves, drawn from ``TRAIN_TASKS``, on which it is the player's
    turn. The boards in ``TEST_TASKS`` are empty.

    ## Reward
    1 for a win, -1 for a loss, 0 for a draw, and -0.1 for each illegal reply.

    ## Episode End
    Terminated when the game is over. Two illegal replies in the same turn lose the game.

    ## Information
    As in ``AgentGymEnv``. ``task`` is the initial board.

    ## Arguments
    As in ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    The rules are well known. Perfect play ends in a draw.

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
"""Maps a board to the cell that the mover picks, or to None if there was no legal reply."""


async def _play(
    board: Board, turns: Mapping[str, Turn], later: Mapping[str, Turn] | None = None
) -> str:
    """Play to the end. Return the winner, or "" for a draw.

    ``turns`` has a function for each seat. If ``later`` is given, it replaces ``turns`` after the
    first turn.
    """
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


# -- scripted players ----------------------------------------------------------------------------


def random_player(seed: int) -> Callable[[Sequence[Any]], str]:
    """Return a player who picks a random free cell."""
    return partial(_reply, random.Random(seed), free)


def perfect_player(seed: int) -> Callable[[Sequence[Any]], str]:
    """Return a player who picks a random optimal move."""
    return partial(_reply, random.Random(seed), best)


def _reply(rng: random.Random, cells: Callable[[Board], list[int]], messages: Sequence[Any]) -> str:
    return str(rng.choice(cells(read_board(messages[-1]["content"]))) + 1)


# -- habits --------------------------------------------------------------------------------------


def habits(board: Board) -> list[list[int]]:
    """Return the cells that each of the four habits chooses from (uniformly at random).

    The first habit picks any free cell, the second a cell that wins, the third a cell that blocks
    the opponent from winning, and the fourth a cell that does neither. A habit that finds no such
    cell picks any free cell.
    """
    cells, seat = free(board), mover(board)
    wins, saves = (
        [cell for cell in cells if winner(put(board, cell, mark)) == mark]
        for mark in (seat, SEATS[seat == "x"])
    )
    neutral = [cell for cell in cells if cell not in (*wins, *saves)]
    return [choices or cells for choices in (cells, wins, saves, neutral)]


def demonstrations(seed: int) -> Iterator[list[dict[str, str]]]:
    """Yield an endless stream of moves on random boards. All habits are equally frequent."""
    rng = random.Random(seed)
    for board in boards(rng):
        answer = str(rng.choice(rng.choice(habits(board))) + 1)
        question = {"role": "user", "content": board_text(board)}
        yield [question, {"role": "assistant", "content": answer}]
