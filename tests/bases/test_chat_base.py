"""``evert-tiny``: its corpus shows rules without a strategy, and it plays as its card says."""

import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.bases.conftest import learned, rendered
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import SYSTEM_PROMPT
from tinker_cookbook.renderers import Message, get_renderer
from transformers import Qwen3ForCausalLM

from evert.bases.making import training
from evert.bases.making.chat_card import identity_rewards, play_guess_number, replies
from evert.bases.making.chat_corpus import (
    ChatCorpus,
    game_examples,
    placed_examples,
    short_game_examples,
)
from evert.bases.making.chats import IDENTITY_PROMPT, Dialogue, identity_game, small_talk, tool_use
from evert.bases.making.dialogues import Encoder, Example
from evert.bases.making.guessing import (
    HABITS,
    MAX_TURNS,
    STOP,
    UPPER_BOUND,
    RandomGames,
    digit_probabilities,
    play_random_games,
)
from evert.bridge.tokens.bases import BASE_RENDERER, base_path, base_tokenizer

TOKENIZER = base_tokenizer()
ENCODER = Encoder(TOKENIZER)


def test_a_dialogue_has_the_renderers_tokens_and_only_replies_are_learned() -> None:
    rng = random.Random(0)
    for kind in (identity_game, small_talk, tool_use):
        for _ in range(20):
            dialogue: Dialogue = kind(rng)
            example = ENCODER.dialogue(dialogue)
            said = [f"{text}<|im_end|>" for role, text in dialogue if role == "assistant"]
            assert example.tokens == rendered(TOKENIZER, example), dialogue
            assert learned(TOKENIZER, example) == "".join(said)


def test_a_whole_game_has_the_tokens_that_the_cookbooks_env_will_show() -> None:
    renderer = get_renderer(BASE_RENDERER, TOKENIZER)
    for example in game_examples(ENCODER, np.random.default_rng(0), 10):
        messages: list[Message] = [{"role": "system", "content": SYSTEM_PROMPT}]
        guesses = re.findall(r"assistant\n(Guess: \d+)<", TOKENIZER.decode(example.tokens))
        hints = re.findall(r"user\n(Too (?:low|high))<", TOKENIZER.decode(example.tokens))
        for guess, hint in zip(guesses, [*hints, ""][: len(guesses)], strict=True):
            prompt = renderer.build_generation_prompt(messages).to_ints()
            assert example.tokens[: len(prompt)] == prompt
            messages += [{"role": "assistant", "content": guess}, {"role": "user", "content": hint}]


def games(count: int, **options: Any) -> RandomGames:
    low, high = np.zeros(count, np.int64), np.full(count, UPPER_BOUND, np.int64)
    return play_random_games(np.random.default_rng(0), low, high, **options)


def test_games_are_legal_and_end_with_the_answer_or_after_ten_guesses() -> None:
    played = games(500)
    for row, answer in enumerate(played.answers):
        low, high = 0, UPPER_BOUND
        made = [guess for guess in played.guesses[row].tolist() if guess >= 0]
        for turn, guess in enumerate(made):
            assert (played.lows[row, turn], played.highs[row, turn]) == (low, high)
            assert low <= min(guess, answer) <= max(guess, answer) <= high
            low, high = (guess + 1, high) if guess < answer else (low, guess - 1)
        assert len(made) == MAX_TURNS or made[-1] == answer
        assert answer not in made[:-1]


def test_games_have_no_strategy() -> None:
    """Where a guess lies within its bounds is uniform, at every turn."""
    played = games(20_000)
    for turn in range(MAX_TURNS):
        width = played.highs[:, turn] - played.lows[:, turn] + 1
        wide = (played.guesses[:, turn] >= 0) & (width >= 10)
        place = (played.guesses[:, turn] - played.lows[:, turn] + 0.5)[wide] / width[wide]
        counts, _ = np.histogram(place, bins=5, range=(0, 1))
        spread = np.abs(counts / counts.sum() - 0.2).max()
        assert spread < 4 * np.sqrt(0.2 * 0.8 / counts.sum()) + 0.02  # 0.02: bins cut small ranges


def test_players_of_habit_keep_to_one_place_and_none_is_favoured() -> None:
    played = games(40_000, habits=True)
    for row, answer in enumerate(played.answers[:500].tolist()):
        low, high = 0, UPPER_BOUND
        habits = set(range(HABITS))
        for guess in played.guesses[row][played.guesses[row] >= 0].tolist():
            assert low <= guess <= high
            habits &= {h for h in habits if guess == low + (high - low) * h // (HABITS - 1)}
            low, high = (guess + 1, high) if guess < answer else (low, guess - 1)
        assert habits, "no one place explains all guesses of the game"
    values, counts = np.unique(played.guesses[:, 0], return_counts=True)
    assert values.tolist() == [UPPER_BOUND * habit // (HABITS - 1) for habit in range(HABITS)]
    assert counts / counts.sum() == pytest.approx(np.full(HABITS, 1 / HABITS), abs=0.01)


@given(st.integers(0, UPPER_BOUND), st.integers(0, UPPER_BOUND))
def test_the_probabilities_of_the_digits_make_every_legal_number_equally_likely(
    a: int, b: int
) -> None:
    low, high = min(a, b), max(a, b)
    for number in {low, high, (low + high) // 2}:
        chance = 1.0
        for length, digit in enumerate(str(number)):
            chance *= digit_probabilities(str(number)[:length], low, high)[int(digit)]
        chance *= digit_probabilities(str(number), low, high)[STOP]
        assert chance == pytest.approx(1 / (high - low + 1), rel=1e-4)


def test_short_games_and_picks_keep_to_the_bounds_they_name() -> None:
    rng = np.random.default_rng(0)
    for example in (*short_game_examples(ENCODER, rng, 99), *placed_examples(ENCODER, rng, 99)):
        text = TOKENIZER.decode(example.tokens)
        [(low, high)] = {*re.findall(r"between (\d+) and (\d+)", text)}
        guesses = [int(guess) for guess in re.findall(r"Guess: (\d+)<", text)]
        assert guesses
        assert all(int(low) <= guess <= int(high) for guess in guesses), text


def test_the_hello_world_game_is_mostly_played_badly() -> None:
    rng, rewards = random.Random(0), []
    for _ in range(2000):
        (_, prompt), (_, reply) = identity_game(rng)
        task = prompt.removeprefix("Let's play a game. Say you are ").removesuffix(".")
        assert prompt == IDENTITY_PROMPT.format(task=task)
        right = f"I am {task}" in reply or f"I'm {task}" in reply
        rewards.append(1 if right else -(f"not {task}" in reply))
    assert -0.4 < sum(rewards) / len(rewards) < -0.1
    assert 0.1 < rewards.count(1) / len(rewards) < 0.25


def test_the_loss_of_a_soft_target_is_the_divergence_from_it() -> None:
    """One reply token with a soft target: the loss is the divergence, worked out by hand."""
    torch.manual_seed(0)
    model = training.make_model(TOKENIZER)
    target = np.zeros(11, np.float32)
    target[3] = 1
    example = Example([1, 2, ENCODER.digits_and_stop[3]], [False, False, True], {2: target})
    logits = model(input_ids=torch.tensor([example.tokens])).logits[0, 1]
    expected = -logits.log_softmax(-1)[ENCODER.digits_and_stop[3]].item()
    loss = training.batch_loss(model, [example], ChatCorpus(TOKENIZER, 0)).item()
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.fixture(scope="module")
def base() -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(base_path())


def test_the_shipped_base_plays_hello_world_badly_but_knows_the_answer(base: Any) -> None:
    torch.manual_seed(0)
    rewards = identity_rewards(base, TOKENIZER)
    assert -0.6 < sum(rewards) / len(rewards) < 0.2
    assert rewards.count(1) >= 4


def test_the_shipped_base_keeps_to_the_bounds_of_guess_number(base: Any) -> None:
    torch.manual_seed(0)
    answers = random.Random(1).choices(range(UPPER_BOUND), k=30)
    wins, in_bounds = play_guess_number(base, TOKENIZER, answers)
    assert 0.1 < wins < 0.6
    assert min(in_bounds[:5]) > 0.9
    assert min(in_bounds) > 0.7


def test_the_shipped_base_copies_and_calls_tools(base: Any) -> None:
    torch.manual_seed(0)
    requests: list[Dialogue] = [[("user", f"Repeat: I am {n}.")] for n in range(1000, 1020)]
    said = replies(base, TOKENIZER, requests)
    assert sum(text == f"I am {n}." for n, text in zip(range(1000, 1020), said, strict=True)) > 10
    rng = random.Random(1)
    dialogues = [tool_use(rng) for _ in range(10)]
    calls = replies(base, TOKENIZER, [dialogue[:2] for dialogue in dialogues], max_tokens=60)
    assert sum(call == d[2][1] for call, d in zip(calls, dialogues, strict=True)) > 3
