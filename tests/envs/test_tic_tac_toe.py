"""Tic-tac-toe: a game of two seats.

1. The rules: who moves, who has won, what a board is worth.
2. The text: everybody sees own marks as X; a board is read off it as it was.
3. Two seats play: zero-sum, each its own turns; a reply that is no move is explained, and costs.
4. The players without a model: the perfect one never loses, the random one plays what is free.
5. Under Gymnasium it is a game of one player.

"""

import asyncio
import random
import re
from typing import Any

import gymnasium
import pytest
from tinker_cookbook.rl.rollouts import do_group_rollout

import evert  # noqa: F401 (registers the games)
from evert import ChatAgentGroupBuilder, ScriptedPolicy
from evert.envs import tic_tac_toe as game

SEATS = game.SEATS


def last_board(prompt: str) -> str:
    return game.seen(re.findall(r"user\n([1-9XO ]{11})\n", prompt)[-1])


def first_free(prompt: str) -> str:
    return str(game.free(last_board(prompt))[0] + 1)


def play(board: str = game.EMPTY, reply: Any = first_free, **options: Any) -> Any:
    seats = options.pop("seats", SEATS)
    builder = ChatAgentGroupBuilder(game.self_play_agent, board, 1, seats=seats, **options)
    return asyncio.run(do_group_rollout(builder, ScriptedPolicy(reply)))


def earned(group: Any) -> list[float]:
    return [
        value
        for metrics in group.metrics_G
        for name, value in metrics.items()
        if re.fullmatch("seat/./reward", name)
    ]


# -- 1. the rules --------------------------------------------------------------------------------


def test_x_begins_and_three_in_a_line_win() -> None:
    assert game.mover(game.EMPTY) == "x"
    assert game.mover("x........") == "o"
    assert game.winner("xxx.oo...") == "x"
    assert game.winner("xoxxoxoxo") == ""
    assert game.winner("x........") is None


@pytest.mark.parametrize(
    ("board", "value", "best"),
    [
        (game.EMPTY, 0, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("x........", 0, [4]),  # a corner is answered in the middle
        ("xx.oo....", 1, [2]),
        ("x.x.o....", 0, [1]),
        ("x...o...x", 0, [1, 3, 5, 7]),
    ],
)
def test_a_board_is_worth_what_perfect_play_comes_to(
    board: str, value: int, best: list[int]
) -> None:
    assert (game.value(board), game.best(board)) == (value, best)


# -- 2. the text ---------------------------------------------------------------------------------


def test_everybody_sees_own_marks_as_x_and_what_stands_in_the_lines_of_a_free_cell() -> None:
    assert game.shown("xx..oo..x") == "OO3 4XX 78O\n3 OO OX X\n4 XX O\n7 O O X\n8 O OX"
    assert game.shown("xx..oo...") == "XX3 4OO 789\n3 XX O O\n4 OO X\n7 X O\n8 OX\n9 O OX"
    assert game.shown(game.EMPTY).splitlines() == ["123 456 789", *"123456789"]
    for board in game.TRAIN_TASKS[:50]:
        assert game.seen(game.shown(board)) == board


def test_a_move_is_the_first_digit_if_its_cell_is_free() -> None:
    assert game.move_in("I take 2, not 1.", "x........") == 1
    assert [game.move_in(answer, "x........") for answer in ("1", "0", "ten", "")] == [None] * 4


# -- 3. two seats --------------------------------------------------------------------------------


def test_the_seats_play_in_turn_and_what_one_wins_the_other_loses() -> None:
    group = play()

    x, o = group.trajectories_G
    assert (len(x.transitions), len(o.transitions)) == (4, 3)  # 1 2 3 4 5 6 7
    assert earned(group) == [1.0, -1.0]
    assert [m.get("seat/x/won") for m in group.metrics_G] == [1.0, None]
    assert [m.get("seat/o/lost") for m in group.metrics_G] == [None, 1.0]


def test_the_first_move_is_trained_and_no_other() -> None:
    for board, trained in ((game.EMPTY, [1, 0]), ("x........", [0, 1])):
        group = play(board)
        masked = [
            [t.metrics.get("untrained", 0.0) for t in each.transitions]
            for each in group.trajectories_G
        ]
        assert [each.count(0.0) for each in masked] == trained
        assert [each[0] for each in masked] == [1.0 - t for t in trained]


def test_a_reply_that_is_no_move_is_explained_and_costs() -> None:
    def reply(prompt: str) -> str:
        if "is no move" in prompt:
            assert "'pass' is no move. Answer with one of 123456789." in prompt
            return first_free(prompt)
        return "pass" if "123 456 789" in prompt else first_free(prompt)

    group = play(reply=reply)

    assert earned(group) == [0.9, -1.0]
    assert group.trajectories_G[0].transitions[0].metrics["mistakes"] == 1.0


def test_a_second_one_in_a_turn_loses_the_game() -> None:
    group = play("x........", reply=lambda prompt: "1")

    assert earned(group) == pytest.approx([1.0, -1.0 + 2 * game.MISTAKE])
    assert len(group.trajectories_G[1].transitions) == 2


# -- 4. players without a model ------------------------------------------------------------------


@pytest.mark.parametrize("seat", SEATS)
def test_the_perfect_player_does_not_lose_to_one_that_draws_its_moves(seat: str) -> None:
    rng = random.Random(0)
    other = SEATS[seat == "x"]
    for number in range(12):
        group = play(
            reply=lambda prompt: str(rng.choice(game.free(last_board(prompt))) + 1),
            seats=(seat,),
            models={f"evert/{other}": game.perfect_player(number)},
        )
        [reward] = earned(group)
        assert reward <= 0.0


def test_players_draw_from_their_seed() -> None:
    messages = [{"role": "user", "content": game.shown(game.EMPTY)}]

    def said(seed: int) -> list[str]:
        player = game.random_player(seed)
        return [player(messages) for _ in range(20)]

    assert said(1) == said(1) != said(2)
    assert set(said(1)) <= set("123456789")


def test_what_is_no_board_cannot_be_played_on() -> None:
    with pytest.raises(ValueError, match="begins with no board"):
        game.random_player(0)([{"role": "user", "content": "Your move?"}])


def test_a_habit_is_to_win_to_keep_from_losing_or_to_do_neither() -> None:
    assert game.habits("xx..oo...") == [[2, 3, 6, 7, 8], [2], [3], [6, 7, 8]]
    assert game.habits(game.EMPTY) == [list(range(9))] * 4
    assert game.habits("xx.oo....")[3] == [6, 7, 8]
    assert game.habits("xoxxoo.x.") == [[6, 8], [6, 8], [6], [8]]


def test_demonstrations_are_legal_moves_good_and_bad() -> None:
    shown = [conversation for conversation, _ in zip(game.demonstrations(0), range(300))]  # noqa: B905
    boards = [game.seen(question["content"]) for question, _ in shown]
    moves = [int(answer["content"]) - 1 for _, answer in shown]
    assert all(move in game.free(board) for board, move in zip(boards, moves, strict=True))
    good = sum(move in game.best(board) for board, move in zip(boards, moves, strict=True))
    assert 0.3 < good / len(shown) < 0.8


# -- 5. Gymnasium, and tasks -----------------------------------------------------------------------


def test_under_gymnasium_one_player_meets_the_random_one() -> None:
    env = gymnasium.make("evert/TicTacToe-v0", tasks="evert.envs.tic_tac_toe:TEST_TASKS")
    conversation, _ = env.reset(seed=3)
    over, info = False, dict[str, Any]()
    while not over:
        board = game.seen(conversation[-1]["content"])
        conversation, _, over, _, info = env.step(str(game.best(board)[0] + 1))
    assert info["metrics"]["won"] + info["metrics"]["drawn"] == 1.0
    env.close()


def test_training_boards_go_on_and_are_the_same_each_time() -> None:
    boards = game.TRAIN_TASKS[:200]
    assert boards == game.Openings(4096)[:200]
    assert {9 - board.count(".") for board in boards} == set(range(8))
    assert all(game.winner(board) is None for board in boards)
