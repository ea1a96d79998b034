"""Tic-tac-toe: a zero-sum game with two seats, each of which sees its own marks as X."""

import asyncio
import random
import re
from itertools import islice
from typing import Any

import pytest
from tests.kit import play_group

from evert import ScriptedPolicy
from evert.envs import tic_tac_toe as game

SEATS = game.SEATS


def last_board(prompt: str) -> str:
    return game.read_board(re.findall(r"user\n([1-9XO ]{11})\n", prompt)[-1])


def first_free(prompt: str) -> str:
    return str(game.free(last_board(prompt))[0] + 1)


def play(board: str = game.EMPTY, reply: Any = first_free, **options: Any) -> Any:
    seats = options.pop("seats", SEATS)
    policy = ScriptedPolicy(reply)
    played = play_group(game.self_play_agent, 1, policy, task=board, seats=seats, **options)
    return asyncio.run(played)


def earned(group: Any) -> list[float]:
    pairs = [pair for metrics in group.metrics_G for pair in metrics.items()]
    return [value for name, value in pairs if re.fullmatch("seat/./reward", name)]


def test_the_value_of_a_board_is_the_result_of_perfect_play() -> None:
    assert [game.mover(board) for board in (game.EMPTY, "x........")] == ["x", "o"]
    winners = {"xxx.oo...": "x", "xoxxoxoxo": "", "x........": None}
    assert {board: game.winner(board) for board in winners} == winners
    for board, value, best in (
        (game.EMPTY, 0, [*range(9)]),
        ("x........", 0, [4]),  # the best reply to a corner is the center
        ("xx.oo....", 1, [2]),
        ("x.x.o....", 0, [1]),
        ("x...o...x", 0, [1, 3, 5, 7]),
    ):
        assert (game.value(board), game.best(board)) == (value, best), board


def test_each_seat_sees_its_own_marks_as_x_and_the_lines_of_free_cells() -> None:
    assert game.board_text("xx..oo..x") == "OO3 4XX 78O\n3 OO OX X\n4 XX O\n7 O O X\n8 O OX"
    assert game.board_text("xx..oo...") == "XX3 4OO 789\n3 XX O O\n4 OO X\n7 X O\n8 OX\n9 O OX"
    assert game.board_text(game.EMPTY).splitlines() == ["123 456 789", *"123456789"]
    for board in game.TRAIN_TASKS[:50]:
        assert game.read_board(game.board_text(board)) == board


def test_a_move_is_the_first_digit_in_a_reply_if_its_cell_is_free() -> None:
    assert game.move_in("I take 2, not 1.", "x........") == 1
    assert [game.move_in(answer, "x........") for answer in ("1", "0", "ten", "")] == [None] * 4


def test_the_seats_alternate_and_the_game_is_zero_sum() -> None:
    group = play()

    x, o = group.trajectories_G
    assert (len(x.transitions), len(o.transitions)) == (4, 3)  # squares 1 to 7 are taken in order
    assert earned(group) == [1.0, -1.0]
    assert [m.get("seat/x/won") for m in group.metrics_G] == [1.0, None]
    assert [m.get("seat/o/lost") for m in group.metrics_G] == [None, 1.0]


@pytest.mark.parametrize(("board", "trained"), [(game.EMPTY, [1, 0]), ("x........", [0, 1])])
def test_only_the_first_move_is_trained_on(board: Any, trained: Any) -> None:
    masked = [
        [turn.metrics.get("untrained", 0.0) for turn in seat.transitions]
        for seat in play(board).trajectories_G
    ]
    assert [flags.count(0.0) for flags in masked] == trained
    assert [flags[0] for flags in masked] == [1.0 - t for t in trained]


def test_an_illegal_reply_is_explained_and_penalized_and_a_second_one_loses() -> None:
    def reply(prompt: str) -> str:
        if "is no move" in prompt:
            assert "'pass' is no move. Answer with one of 123456789." in prompt
            return first_free(prompt)
        return "pass" if "123 456 789" in prompt else first_free(prompt)

    once, twice = play(reply=reply), play("x........", reply=lambda prompt: "1")

    assert earned(once) == [0.9, -1.0]
    assert once.trajectories_G[0].transitions[0].metrics["mistakes"] == 1.0
    assert earned(twice) == pytest.approx([1.0, -1.0 + 2 * game.MISTAKE])
    assert len(twice.trajectories_G[1].transitions) == 2


def test_the_perfect_player_never_loses_to_a_random_player() -> None:
    rng = random.Random(0)
    for seat, other in (SEATS, SEATS[::-1]):
        for number in range(12):
            group = play(
                reply=lambda prompt: str(rng.choice(game.free(last_board(prompt))) + 1),
                seats=(seat,),
                models={f"evert/{other}": game.perfect_player(number)},
            )
            [reward] = earned(group)
            assert reward <= 0.0


def test_a_random_players_moves_are_determined_by_its_seed() -> None:
    messages = [{"role": "user", "content": game.board_text(game.EMPTY)}]

    def moves_of(seed: int) -> list[str]:
        player = game.random_player(seed)
        return [player(messages) for _ in range(20)]

    assert moves_of(1) == moves_of(1) != moves_of(2)
    assert set(moves_of(1)) <= set("123456789")
    with pytest.raises(ValueError, match="does not start with a board"):
        game.random_player(0)([{"role": "user", "content": "Your move?"}])


def test_habits_are_to_play_any_move_to_win_to_block_or_to_do_neither() -> None:
    assert game.habits("xx..oo...") == [[2, 3, 6, 7, 8], [2], [3], [6, 7, 8]]
    assert game.habits(game.EMPTY) == [list(range(9))] * 4
    assert game.habits("xx.oo....")[3] == [6, 7, 8]
    assert game.habits("xoxxoo.x.") == [[6, 8], [6, 8], [6], [8]]


def test_demonstrations_are_legal_moves_both_good_and_bad() -> None:
    moves = [
        (game.read_board(question["content"]), int(answer["content"]) - 1)
        for question, answer in islice(game.demonstrations(0), 300)
    ]

    assert [pair for pair in moves if pair[1] not in game.free(pair[0])] == []
    assert 0.3 < sum(move in game.best(board) for board, move in moves) / len(moves) < 0.8


def test_training_boards_are_unfinished_and_reproducible() -> None:
    boards = game.TRAIN_TASKS[:200]

    assert boards == [game.opening(seed) for seed in range(200)]
    assert {9 - board.count(".") for board in boards} == set(range(8))
    assert all(game.winner(board) is None for board in boards)
