"""What ``evert-tiny-moves`` is trained on, and what it sees.

1. A board and a hand are told as the game and ``GymAgent`` tell them, token for token.
2. A board is answered by players of four habits, each as probable, or by the one that is named.
3. A hand is answered by 90 players, as many as would have played it so far, or by the one named.
4. The tokenizer holds the games' words, and what stands in a line of a board is one token.
5. The shipped base sees boards and hands, was made by the command on its card, and plays poorly.
"""

import json
import random
import re
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.bases.conftest import messages_of, rendered, tokens_of
from transformers import Qwen3ForCausalLM

from evert import GymAgent
from evert.bases.making import training
from evert.bases.making.__main__ import main
from evert.bases.making.boards import ORDERS, board_examples, move_chances
from evert.bases.making.dialogues import Encoder, Example
from evert.bases.making.hands import HIT, PLAYERS, STICK, HandPlayer, hand_examples
from evert.bases.making.move_card import measure_sight
from evert.bases.making.moves import VOCAB_SIZE, MoveCorpus, tokenizer_text
from evert.bases.making.tokenizer import make_tokenizer
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


# -- 1. form -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", [boards, hands])
def test_it_is_what_the_cookbooks_renderer_makes_of_its_messages(drawn: Any) -> None:
    for example in drawn(20):
        assert rendered(TOKENIZER, example) == example.tokens


@pytest.mark.parametrize("drawn", [boards, hands])
def test_an_action_is_a_probable_one_and_the_reply_ends_after_it(drawn: Any) -> None:
    for example in drawn(40):
        for place, target in example.soft_targets.items():
            assert target.sum() == pytest.approx(1.0)
            digit, stop = example.tokens[place : place + 2]
            assert target[ENCODER.digits_and_stop.index(digit)] > 0
            assert (stop, example.loss_mask[place + 1]) == (ENCODER.stop, True)


def test_a_board_is_told_as_the_game_tells_it() -> None:
    for example in boards(40):
        (role, text), (_, answer) = told(example)[-2:]

        assert (role, text) == ("user", shown(seen(text)))
        assert int(answer) - 1 in free(seen(text))


def test_a_hand_is_told_as_the_agent_tells_it() -> None:
    agent = GymAgent("Blackjack-v1", prompt="")
    words = {re.sub(r"\d+", "N", next(agent.demonstrations(n))[0]["content"]) for n in range(60)}
    said = {
        re.sub(r"\d+", "N", text) for each in hands(60) for r, text in told(each) if r == "user"
    }

    assert said == words == {"Sum N, dealer N.", "Sum N, usable ace, dealer N."}


def test_a_seed_repeats_a_corpus() -> None:
    one, same, other = (MoveCorpus(TOKENIZER, seed).step(whole_games=True) for seed in (1, 1, 2))

    assert tokens_of(one) == tokens_of(same) != tokens_of(other)


# -- 2. boards -----------------------------------------------------------------------------------


def test_a_move_is_as_probable_as_players_of_four_habits_make_it() -> None:
    assert move_chances(habits("xx..oo...")) == pytest.approx(
        [0, 0, 1 / 4 + 1 / 20, 1 / 4 + 1 / 20, 0, 0, *[1 / 12 + 1 / 20] * 3]
    )
    assert move_chances(habits(EMPTY)) == pytest.approx([1 / 9] * 9)


def test_in_half_of_the_examples_the_one_who_plays_is_named() -> None:
    orders = []
    for example in boards(400):
        *named, (_, text), _ = told(example)
        played = habits(seen(text))
        orders += [order for _, order in named]
        meant = [played[ORDERS.index(order)] for _, order in named] or played
        assert targets(example)[0][1:10] == pytest.approx(move_chances(meant))
    assert 150 < len(orders) < 250
    assert {*orders} == {*ORDERS}


# -- 3. hands ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manner", "hand", "action"),
    [
        ("", (15, 10, False), STICK),
        ("", (14, 10, False), HIT),
        (", at 12 if the dealer is weak", (12, 6, False), STICK),
        (", at 12 if the dealer is weak", (12, 1, False), HIT),
        (", at 12 if the dealer is strong", (12, 1, False), STICK),
        (", at 12 with an ace", (12, 1, True), STICK),
        (", at 19 with an ace", (18, 1, True), HIT),
    ],
)
def test_a_player_sticks_from_a_sum_on(manner: str, hand: Any, action: int) -> None:
    assert HandPlayer(15, manner).action(*hand) == action


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


# -- 4. the tokenizer ----------------------------------------------------------------------------


def test_the_tokenizer_is_the_shipped_one(tmp_path: Path) -> None:
    made = make_tokenizer(tokenizer_text(), VOCAB_SIZE)
    made.save_pretrained(tmp_path)

    assert len(made) == VOCAB_SIZE
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (base_path(NAME) / name).read_bytes()


def test_what_stands_in_a_line_is_one_token_and_any_text_comes_back() -> None:
    for line in (" X", " O", " XX", " OO", " OX"):
        assert len(TOKENIZER.encode(line)) == 1
    assert len(TOKENIZER.encode("Sum 17, usable ace, dealer 6.")) == 12
    for text in ("Is it an axolotl? \u00fcber\n\t7", "{}<tool_call>"):
        assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


# -- 5. the base ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base() -> Any:
    return Qwen3ForCausalLM.from_pretrained(base_path(NAME), dtype=torch.float32)


def test_the_shipped_base_sees_boards_and_hands_and_favours_nobody(base: Any) -> None:
    sight = measure_sight(base, TOKENIZER, boards=60)

    assert max(sight.boards, sight.hands) < 0.02
    assert min(sight.obeyed.values()) > 0.9


def test_a_model_that_sees_nothing_is_measured_as_such() -> None:
    torch.manual_seed(0)
    sight = measure_sight(training.make_model(TOKENIZER), TOKENIZER, boards=20)

    assert min(sight.boards, sight.hands) > 1.0
    assert max(sight.obeyed.values()) < 0.1


def test_the_base_is_small_and_says_how_it_was_made() -> None:
    files = {path.name: path.stat().st_size for path in base_path(NAME).iterdir()}
    card = (base_path(NAME) / "README.md").read_text()

    assert sum(files.values()) < 2_500_000
    assert card.startswith("---\n")
    assert f"python -m evert.bases.making out=FOLDER base={NAME}" in card
    config = json.loads((base_path(NAME) / "config.json").read_text())
    assert config["vocab_size"] == VOCAB_SIZE


@pytest.mark.nightly
def test_the_script_makes_it_from_the_start_to_the_card(tmp_path: Path) -> None:
    config = training.MakingConfig(out=str(tmp_path / "base"), base=NAME, steps=2, measured_games=4)
    main(config)
    card = (tmp_path / "base" / "README.md").read_text()

    assert f"out=FOLDER base={NAME} steps=2 seed=0 measured_games=4" in card
