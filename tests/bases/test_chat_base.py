"""The tiny chat base: its tokenizer, what it is trained on, the script, and the shipped weights.

Rules:

1. Any text goes into the tokenizer and comes back unchanged; a digit is always one token; text
   never becomes a control token under ``split_special_tokens``.
2. The chat template writes what the Cookbook's ``qwen3_instruct`` renderer writes.
3. A seed is the corpus, and the corpus shows rules without a strategy: uniform guesses, and
   players of habit none of whose habits is favoured.
4. The shipped base loads by Hugging Face's means, is small, and plays as its card says.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import SYSTEM_PROMPT
from tinker_cookbook.renderers import Message, ToolCall, ToolSpec, get_renderer
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from evert.bases.making import training
from evert.bases.making.__main__ import main
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
from evert.bases.making.tokenizer import CONTROL, MARKERS, VOCAB_SIZE, make_tokenizer
from evert.bridge.tokens.bases import BASE_RENDERER, base_path

# transformers types its tokenizers too widely to be of help here
TOKENIZER: Any = AutoTokenizer.from_pretrained(base_path())
CONTROL_IDS = set(TOKENIZER.convert_tokens_to_ids(list(CONTROL)))
ENCODER = Encoder(TOKENIZER)


def encode(text: str) -> list[int]:
    """Encode as the Cookbook's renderers encode a message's content."""
    tokens: list[int] = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    return tokens


# Rule 1: the tokenizer


@given(st.text())
def test_any_text_comes_back_from_the_tokenizer_unchanged(text: str) -> None:
    assert TOKENIZER.decode(encode(text)) == text


@given(st.lists(st.sampled_from([*CONTROL, "<|im_", "start|>", " ", "a", "\n"])).map("".join))
def test_text_never_becomes_a_control_token(text: str) -> None:
    tokens = encode(text)
    assert not CONTROL_IDS.intersection(tokens)
    assert TOKENIZER.decode(tokens) == text


@given(st.text(alphabet="0123456789", min_size=1), st.sampled_from(["", "Guess: ", "$", " "]))
def test_every_digit_is_one_token(digits: str, before: str) -> None:
    assert len(encode(before + digits)) == len(encode(before)) + len(digits)


@given(st.text(), st.text())
def test_a_newline_cuts_text_into_parts_that_are_encoded_alone(left: str, right: str) -> None:
    assert encode(left + "\n" + right) == encode(left) + encode("\n") + encode(right)


def test_control_tokens_are_special_and_markers_are_not() -> None:
    added = {token.content: token for token in TOKENIZER.added_tokens_decoder.values()}
    assert {text for text, token in added.items() if token.special} == set(CONTROL)
    assert {text for text, token in added.items() if not token.special} == set(MARKERS)
    assert all(len(encode(marker)) == 1 for marker in MARKERS)
    assert TOKENIZER.eos_token == "<|im_end|>"
    assert TOKENIZER.pad_token == "<|endoftext|>"


def test_the_words_of_the_games_are_single_tokens() -> None:
    assert [TOKENIZER.decode([t]) for t in encode("Guess: 512")] == ["Guess", ": ", "5", "1", "2"]
    assert len(encode("Too low")) == len(encode("Too high")) == 2
    assert len(encode("user")) == len(encode("assistant")) == len(encode("system")) == 1


def test_the_script_makes_the_shipped_tokenizer(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    assert len(tokenizer) == VOCAB_SIZE
    tokenizer.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (base_path() / name).read_bytes()


# Rule 2: the chat template

ADD: ToolSpec = {
    "name": "add",
    "description": 'Adds "two" numbers.',
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = ToolCall(id="1", function=ToolCall.FunctionBody(name="add", arguments='{"a": 3, "b": "x"}'))
CONVERSATION: list[Message] = [
    {"role": "user", "content": "\n What is\n\n1 + 2? "},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "1"},
    {"role": "tool", "content": "4\n", "tool_call_id": "2"},
    {"role": "assistant", "content": "Once more.", "tool_calls": [CALL]},
    {"role": "tool", "content": "", "tool_call_id": "3"},
    {"role": "assistant", "content": "Done, é 1024."},
    {"role": "user", "content": "Too low"},
]


@pytest.mark.parametrize("length", range(1, len(CONVERSATION) + 1))
@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("tools", [[], [ADD], [ADD, ADD]])
def test_the_template_writes_what_the_cookbooks_renderer_writes(
    length: int, system: str | None, tools: list[ToolSpec]
) -> None:
    renderer: Any = get_renderer(BASE_RENDERER, TOKENIZER)
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    messages = opening + CONVERSATION[:length]
    rendered = messages
    if tools:
        prefix = renderer.create_conversation_prefix_with_tools(tools, system or "")
        rendered = prefix + CONVERSATION[:length]
    templated = TOKENIZER.apply_chat_template(
        [renderer.to_openai_message(message) for message in messages],
        tools=[{"type": "function", "function": tool} for tool in tools] or None,
        add_generation_prompt=True,
        return_dict=False,
    )
    assert templated == renderer.build_generation_prompt(rendered).to_ints()


# Rule 3: the corpus


def as_prompt(dialogue: Dialogue) -> list[int]:
    """Tokens of the Cookbook's prompt for a reply to this dialogue."""
    messages: list[Message] = [{"role": role, "content": text} for role, text in dialogue]
    tokens: list[int] = (
        get_renderer(BASE_RENDERER, TOKENIZER).build_generation_prompt(messages).to_ints()
    )
    return tokens


@pytest.mark.parametrize("kind", [identity_game, small_talk, tool_use])
def test_a_dialogue_has_the_renderers_tokens_and_only_replies_are_learned(kind: Any) -> None:
    rng = random.Random(0)
    for _ in range(20):
        dialogue: Dialogue = kind(rng)
        example = ENCODER.dialogue(dialogue)
        assert example.tokens == as_prompt(dialogue)[: len(example.tokens)]
        learned = [t for t, reply in zip(example.tokens, example.loss_mask, strict=True) if reply]
        said = [text + "<|im_end|>" for role, text in dialogue if role == "assistant"]
        assert TOKENIZER.decode(learned) == "".join(said)


def test_a_whole_game_has_the_tokens_that_the_cookbooks_env_will_show() -> None:
    for example in game_examples(ENCODER, np.random.default_rng(0), 10):
        dialogue: Dialogue = [("system", SYSTEM_PROMPT)]
        guesses = re.findall(r"assistant\n(Guess: \d+)<", TOKENIZER.decode(example.tokens))
        hints = re.findall(r"user\n(Too (?:low|high))<", TOKENIZER.decode(example.tokens))
        for guess, hint in zip(guesses, [*hints, None][: len(guesses)], strict=True):
            prompt = as_prompt(dialogue)
            assert example.tokens[: len(prompt)] == prompt
            dialogue += [("assistant", guess), ("user", hint or "")]


def everything(batches: list[Any]) -> list[Any]:
    """A step's batches in a form that can be compared."""
    return [
        [
            (e.tokens, e.loss_mask, [(k, v.tolist()) for k, v in e.soft_targets.items()])
            for e in batch.examples
        ]
        for batch in batches
    ]


def test_a_seed_is_the_corpus() -> None:
    one, same, other = ChatCorpus(TOKENIZER, 1), ChatCorpus(TOKENIZER, 1), ChatCorpus(TOKENIZER, 2)
    for whole_games in (False, True):
        drawn = everything(one.step(whole_games=whole_games))
        assert drawn == everything(same.step(whole_games=whole_games))
        assert drawn != everything(other.step(whole_games=whole_games))


def whole_games(count: int) -> RandomGames:
    rng = np.random.default_rng(0)
    return play_random_games(
        rng, np.zeros(count, np.int64), np.full(count, UPPER_BOUND, np.int64), MAX_TURNS
    )


def test_games_are_legal_and_end_with_the_answer_or_after_ten_guesses() -> None:
    games = whole_games(500)
    for row, answer in enumerate(games.answers):
        low, high = 0, UPPER_BOUND
        made = [guess for guess in games.guesses[row].tolist() if guess >= 0]
        for turn, guess in enumerate(made):
            assert (games.lows[row, turn], games.highs[row, turn]) == (low, high)
            assert low <= guess <= high
            assert low <= answer <= high
            low, high = (guess + 1, high) if guess < answer else (low, guess - 1)
        assert len(made) == MAX_TURNS or made[-1] == answer
        assert answer not in made[:-1]


def test_games_have_no_strategy() -> None:
    """Where a guess lies within its bounds is uniform, at every turn."""
    games = whole_games(20_000)
    for turn in range(MAX_TURNS):
        width = games.highs[:, turn] - games.lows[:, turn] + 1
        wide = (games.guesses[:, turn] >= 0) & (width >= 10)
        place = (games.guesses[:, turn] - games.lows[:, turn] + 0.5)[wide] / width[wide]
        counts, _ = np.histogram(place, bins=5, range=(0, 1))
        spread = np.abs(counts / counts.sum() - 0.2).max()
        assert spread < 4 * np.sqrt(0.2 * 0.8 / counts.sum()) + 0.02  # 0.02: bins cut small ranges


def habit_games(count: int) -> RandomGames:
    rng = np.random.default_rng(0)
    low, high = np.zeros(count, np.int64), np.full(count, UPPER_BOUND, np.int64)
    return play_random_games(rng, low, high, habits=True)


def test_players_of_habit_keep_to_the_rules_and_to_one_place() -> None:
    games = habit_games(500)
    for row, answer in enumerate(games.answers.tolist()):
        low, high = 0, UPPER_BOUND
        habits = set(range(HABITS))
        for turn, guess in enumerate(games.guesses[row][games.guesses[row] >= 0].tolist()):
            assert games.lows[row, turn] == guess == games.highs[row, turn]
            assert low <= guess <= high
            habits &= {h for h in habits if guess == low + (high - low) * h // (HABITS - 1)}
            low, high = (guess + 1, high) if guess < answer else (low, guess - 1)
        assert habits, "no one place explains all guesses of the game"


def test_no_habit_is_favoured() -> None:
    """Each first guess there is, the ends and the quarters, is as frequent as the others."""
    values, counts = np.unique(habit_games(40_000).guesses[:, 0], return_counts=True)
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
    examples = [*short_game_examples(ENCODER, rng, 100), *placed_examples(ENCODER, rng, 100)]
    for example in examples:
        text = TOKENIZER.decode(example.tokens)
        bounds = re.search(r"between (\d+) and (\d+)", text)
        assert bounds
        guesses = [int(guess) for guess in re.findall(r"Guess: (\d+)<", text)]
        assert guesses
        assert all(int(bounds[1]) <= guess <= int(bounds[2]) for guess in guesses)


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


# Rule 4: the script and the shipped base


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


@pytest.mark.nightly
def test_the_script_runs_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(training.MakingConfig(out=str(tmp_path), steps=2, measured_games=4))
    assert "evert-tiny" in capsys.readouterr().out
    assert "steps=2 seed=0" in (tmp_path / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.num_parameters() < 1_200_000
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == model.config.vocab_size


@pytest.mark.nightly
def test_the_same_seed_makes_the_same_weights() -> None:
    weights = []
    for _ in range(2):
        torch.manual_seed(0)
        model = training.make_model(TOKENIZER)
        config = training.MakingConfig(out="", steps=2, warm_up=1.0)
        training.train(model, ChatCorpus(TOKENIZER, seed=0), config)
        weights.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(*weights)


@pytest.fixture(scope="module")
def shipped() -> Qwen3ForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(base_path())
    assert isinstance(model, Qwen3ForCausalLM)
    return model


def test_the_shipped_base_is_a_small_qwen3(shipped: Qwen3ForCausalLM) -> None:
    assert shipped.config.vocab_size == len(TOKENIZER)
    assert sum(file.stat().st_size for file in base_path().iterdir()) < 5_000_000
    assert (base_path() / "README.md").read_text().startswith("---\n")
    config = json.loads((base_path() / "config.json").read_text())
    assert config["eos_token_id"] == TOKENIZER.eos_token_id


def test_the_shipped_base_plays_hello_world_badly_but_knows_the_answer(
    shipped: Qwen3ForCausalLM,
) -> None:
    torch.manual_seed(0)
    rewards = identity_rewards(shipped, TOKENIZER)
    assert -0.6 < sum(rewards) / len(rewards) < 0.2
    assert rewards.count(1) >= 4


def test_the_shipped_base_keeps_to_the_bounds_of_guess_number(shipped: Qwen3ForCausalLM) -> None:
    torch.manual_seed(0)
    answers = random.Random(1).choices(range(UPPER_BOUND), k=60)
    wins, in_bounds = play_guess_number(shipped, TOKENIZER, answers)
    assert 0.1 < wins < 0.6
    assert min(in_bounds[:5]) > 0.9
    assert min(in_bounds) > 0.7


def test_the_shipped_base_copies_and_calls_tools(shipped: Qwen3ForCausalLM) -> None:
    torch.manual_seed(0)
    requests: list[Dialogue] = [[("user", f"Repeat: I am {n}.")] for n in range(1000, 1020)]
    said = replies(shipped, TOKENIZER, requests)
    assert sum(text == f"I am {n}." for n, text in zip(range(1000, 1020), said, strict=True)) > 10
    rng = random.Random(1)
    dialogues = [tool_use(rng) for _ in range(10)]
    calls = replies(shipped, TOKENIZER, [dialogue[:2] for dialogue in dialogues], max_tokens=60)
    assert sum(call == d[2][1] for call, d in zip(calls, dialogues, strict=True)) > 3
