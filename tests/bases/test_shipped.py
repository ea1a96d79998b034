"""Checks the abilities claimed on the bundled models' cards, and the losses that train them."""

import random
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from bases import training
from bases.boards import board_examples
from bases.chat_card import identity_rewards, play_guess_number, replies
from bases.chat_corpus import ChatCorpus
from bases.chats import Dialogue, tool_use
from bases.dialogues import DialogueExample, Encoder
from bases.guessing import MAX_TURNS, UPPER_BOUND, play_random_games
from bases.hands import hand_examples
from bases.move_card import measure_sight
from bases.riddle_card import measure_recall
from bases.riddles import VOCAB_SIZE, RiddleCorpus
from tests.bases.conftest import messages_of
from transformers import Qwen3ForCausalLM

from evert import GymAgent
from evert.bridge.tokens.bases import base_path, base_tokenizer
from evert.envs.tic_tac_toe import board_text, free, read_board
from evert.envs.twenty_questions.information import guess
from evert.envs.twenty_questions.nouns import of_split, shipped_nouns

CHAT, RIDDLES, MOVES = map(base_tokenizer, ("evert-tiny", "evert-tiny-20q", "evert-tiny-moves"))


@cache
def base(name: str) -> Any:
    return Qwen3ForCausalLM.from_pretrained(base_path(name), dtype=torch.float32)


def untrained(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    return training.make_model(tokenizer)


# -- evert-tiny ------------------------------------------------------------------------------------


def test_evert_tinys_training_games_are_played_without_a_strategy() -> None:
    """In every turn, guesses are spread uniformly between the current bounds."""
    low, high = np.zeros(20_000, np.int64), np.full(20_000, UPPER_BOUND, np.int64)
    played = play_random_games(np.random.default_rng(0), low, high)
    for turn in range(MAX_TURNS):
        width = played.highs[:, turn] - played.lows[:, turn] + 1
        wide = (played.guesses[:, turn] >= 0) & (width >= 10)
        place = (played.guesses[:, turn] - played.lows[:, turn] + 0.5)[wide] / width[wide]
        counts, _ = np.histogram(place, bins=5, range=(0, 1))
        spread = np.abs(counts / counts.sum() - 0.2).max()
        # + 0.02 because small ranges do not divide evenly into the bins
        assert spread < 4 * np.sqrt(0.2 * 0.8 / counts.sum()) + 0.02


def test_evert_tiny_plays_badly_but_wins_sometimes_and_stays_within_bounds() -> None:
    torch.manual_seed(0)
    rewards = identity_rewards(base("evert-tiny"), CHAT)
    assert -0.6 < sum(rewards) / len(rewards) < 0.2
    assert rewards.count(1) >= 4
    torch.manual_seed(0)
    answers = random.Random(1).choices(range(UPPER_BOUND), k=30)
    wins, in_bounds = play_guess_number(base("evert-tiny"), CHAT, answers)
    assert 0.1 < wins < 0.6
    assert min(in_bounds[:5]) > 0.9
    assert min(in_bounds) > 0.7


def test_evert_tiny_copies_text_and_calls_tools() -> None:
    torch.manual_seed(0)
    requests: list[Dialogue] = [[("user", f"Repeat: I am {n}.")] for n in range(1000, 1020)]
    said = replies(base("evert-tiny"), CHAT, requests)
    assert sum(text == f"I am {n}." for n, text in zip(range(1000, 1020), said, strict=True)) > 10
    rng = random.Random(1)
    asked = [tool_use(rng) for _ in range(10)]
    calls = replies(base("evert-tiny"), CHAT, [one[:2] for one in asked], max_tokens=60)
    assert sum(call == one[2][1] for call, one in zip(calls, asked, strict=True)) > 3


def test_the_loss_of_a_soft_target_is_the_kl_divergence() -> None:
    model, three = untrained(CHAT), Encoder(CHAT).digits_and_stop[3]
    target = np.zeros(11, np.float32)
    target[3] = 1
    example = DialogueExample([1, 2, three], [False, False, True], {2: target})
    logits = model(input_ids=torch.tensor([example.tokens])).logits[0, 1]
    loss = training.batch_loss(model, [example], ChatCorpus(CHAT, 0)).item()
    assert loss == pytest.approx(-logits.log_softmax(-1)[three].item(), rel=1e-4)


# -- evert-tiny-20q --------------------------------------------------------------------------------


def test_the_loss_of_odds_ignores_all_other_tokens() -> None:
    corpus, model = RiddleCorpus(RIDDLES, 0), untrained(RIDDLES)
    drawn = corpus.riddle(2)
    example = DialogueExample(drawn.tokens, [False] * len(drawn.tokens), odds=drawn.odds)
    before = training.batch_loss(model, [example], corpus).item()
    louder = torch.full((VOCAB_SIZE,), 5.0)  # make all tokens outside the odds far more likely
    louder[corpus.odds_tokens] = 0.0
    model.lm_head.bias = torch.nn.Parameter(louder)
    assert training.batch_loss(model, [example], corpus).item() == pytest.approx(before)


def test_the_20q_base_infers_nouns_from_answers_unlike_an_untrained_model() -> None:
    recall = measure_recall(base("evert-tiny-20q"), RIDDLES, riddles=60, plain=True)
    right, posed = recall.one_left
    assert posed > 8
    assert right / posed > 0.8
    assert min(recall.fitting.values()) > 0.6
    assert measure_recall(untrained(RIDDLES), RIDDLES, riddles=30).fitting[1] < 0.1


@torch.no_grad()
def test_the_20q_base_completes_held_out_names() -> None:
    corpus, found = RiddleCorpus(RIDDLES, 7), list[float]()
    held_out = {guess(noun.answer): noun.answer for noun in of_split(shipped_nouns(), "test")}
    for _ in range(250):
        example = corpus.riddle(3, plain=True)
        name = held_out.get(messages_of(RIDDLES, example)[-1][1])
        if name is None or len(RIDDLES.encode(f" {name}", add_special_tokens=False)) == 1:
            continue
        logits = base("evert-tiny-20q")(input_ids=torch.tensor([example.tokens])).logits[0]
        ends = range(max(example.odds) + 1, len(example.tokens))
        likely = logits.log_softmax(-1)
        found.append(sum(likely[p - 1, example.tokens[p]].item() for p in ends))
    assert len(found) > 15
    assert np.exp(found).min() > 0.1
    assert np.exp(found).mean() > 0.9


# -- evert-tiny-moves ------------------------------------------------------------------------------


def test_training_boards_and_hands_match_the_text_of_the_games() -> None:
    encoder, rng = Encoder(MOVES), random.Random(7)
    for example in board_examples(encoder, rng, 40):
        (role, text), (_, answer) = messages_of(MOVES, example)[-2:]
        assert (role, text) == ("user", board_text(read_board(text)))
        assert int(answer) - 1 in free(read_board(text))
    hands = [messages_of(MOVES, example) for example in hand_examples(encoder, rng, 60)]
    ours = [text for told in hands for role, text in told if role == "user"]
    agent = GymAgent("Blackjack-v1", prompt="")
    theirs = [next(agent.demonstrations(n))[0]["content"] for n in range(60)]
    forms = [{re.sub(r"\d+", "N", text) for text in texts} for texts in (ours, theirs)]
    assert forms == [{"Sum N, dealer N.", "Sum N, usable ace, dealer N."}] * 2


def test_the_moves_base_understands_boards_and_hands_unlike_an_untrained_model() -> None:
    torch.manual_seed(0)
    trained = measure_sight(base("evert-tiny-moves"), MOVES, boards=20)
    random_weights = measure_sight(untrained(MOVES), MOVES, boards=5)
    assert max(trained.boards, trained.hands) < 0.02
    assert min(trained.obeyed.values()) > 0.9
    assert min(random_weights.boards, random_weights.hands) > 1.0
    assert max(random_weights.obeyed.values()) < 0.1
