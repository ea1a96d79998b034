"""``evert-tiny-moves``: what it is trained on, token for token, and what it sees of it."""

import random
import re
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.bases.conftest import messages_of, rendered
from transformers import Qwen3ForCausalLM

from evert import GymAgent
from evert.bases.making import training
from evert.bases.making.boards import ORDERS, board_examples, move_chances
from evert.bases.making.dialogues import Encoder, Example
from evert.bases.making.hands import HIT, PLAYERS, STICK, HandPlayer, hand_examples
from evert.bases.making.move_card import measure_sight
from evert.bridge.tokens.bases import base_path, base_tokenizer
from evert.envs.tic_tac_toe import EMPTY, free, habits, seen, shown

NAME: Literal["evert-tiny-moves"] = "evert-tiny-moves"
TOKENIZER = base_tokenizer(NAME)
told = partial(messages_of, TOKENIZER)
ENCODER = Encoder(TOKENIZER)


def boards(count: int) -> list[Example]:
    return [*board_examples(ENCODER, random.Random(7), count)]


def hands(count: int) -> list[Example]:
    return [*hand_examples(ENCODER, random.Random(7), count)]


def targets(example: Example) -> list[Any]:
    return [target for _, target in sorted(example.soft_targets.items())]


def test_an_action_is_a_probable_one_and_the_reply_ends_after_it() -> None:
    for example in chain(boards(40), hands(40)):
        assert rendered(TOKENIZER, example) == example.tokens
        for place, target in example.soft_targets.items():
            assert target.sum() == pytest.approx(1.0)
            digit, stop = example.tokens[place : place + 2]
            assert target[ENCODER.digits_and_stop.index(digit)] > 0
            assert (stop, example.loss_mask[place + 1]) == (ENCODER.stop, True)


def test_a_board_and_a_hand_are_told_as_the_game_and_the_agent_tell_them() -> None:
    for example in boards(40):
        (role, text), (_, answer) = told(example)[-2:]
        assert (role, text) == ("user", shown(seen(text)))
        assert int(answer) - 1 in free(seen(text))

    agent = GymAgent("Blackjack-v1", prompt="")
    ours = [text for each in hands(60) for role, text in told(each) if role == "user"]
    theirs = [next(agent.demonstrations(n))[0]["content"] for n in range(60)]
    forms = [{re.sub(r"\d+", "N", text) for text in texts} for texts in (ours, theirs)]
    assert forms == [{"Sum N, dealer N.", "Sum N, usable ace, dealer N."}] * 2
    assert len(TOKENIZER.encode("Sum 17, usable ace, dealer 6.")) == 12
    assert {len(TOKENIZER.encode(line)) for line in (" X", " O", " XX", " OO", " OX")} == {1}


def test_a_move_is_as_probable_as_players_of_four_habits_or_the_one_who_is_named_make_it() -> None:
    assert move_chances(habits("xx..oo...")) == pytest.approx(
        [0, 0, 1 / 4 + 1 / 20, 1 / 4 + 1 / 20, 0, 0, *[1 / 12 + 1 / 20] * 3]
    )
    assert move_chances(habits(EMPTY)) == pytest.approx([1 / 9] * 9)
    orders = []
    for example in boards(400):
        *named, (_, text), _ = told(example)
        played = habits(seen(text))
        orders += [order for _, order in named]
        meant = [played[ORDERS.index(order)] for _, order in named] or played
        assert targets(example)[0][1:10] == pytest.approx(move_chances(meant))
    assert 150 < len(orders) < 250
    assert {*orders} == {*ORDERS}


def test_a_player_sticks_from_a_sum_on() -> None:
    for manner, hand, action in (
        ("", (15, 10, False), STICK),
        ("", (14, 10, False), HIT),
        (", at 12 if the dealer is weak", (12, 6, False), STICK),
        (", at 12 if the dealer is weak", (12, 1, False), HIT),
        (", at 12 if the dealer is strong", (12, 1, False), STICK),
        (", at 12 with an ace", (12, 1, True), STICK),
        (", at 19 with an ace", (18, 1, True), HIT),
    ):
        assert HandPlayer(15, manner).action(*hand) == action, (manner, hand)


def test_an_unnamed_player_is_any_of_those_who_would_have_played_so() -> None:
    named = 0
    for example in hands(300):
        messages = told(example)
        players = [p for p in PLAYERS if (("system", p.order) in messages)] or [*PLAYERS]
        named += len(players) == 1
        turns = [text for role, text in messages if role != "system"]
        for text, said, target in zip(turns[::2], turns[1::2], targets(example), strict=True):
            total, dealer = map(int, re.findall(r"\d+", text))
            actions = [player.action(total, dealer, "ace" in text) for player in players]
            assert target[HIT] == pytest.approx(np.mean(actions))
            pairs = zip(players, actions, strict=True)
            players = [player for player, action in pairs if action == int(said)]
    assert 100 < named < 200


def test_the_shipped_base_sees_boards_and_hands_and_favours_nobody() -> None:
    base: Any = Qwen3ForCausalLM.from_pretrained(base_path(NAME), dtype=torch.float32)
    sight = measure_sight(base, TOKENIZER, boards=20)

    assert max(sight.boards, sight.hands) < 0.02
    assert min(sight.obeyed.values()) > 0.9


def test_a_model_that_sees_nothing_is_measured_as_such() -> None:
    torch.manual_seed(0)
    sight = measure_sight(training.make_model(TOKENIZER), TOKENIZER, boards=5)

    assert min(sight.boards, sight.hands) > 1.0
    assert max(sight.obeyed.values()) < 0.1
