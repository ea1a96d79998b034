"""What ``evert-tiny-20q`` is trained on, and what it knows.

1. A riddle is a game as the short prompts have it, token for token.
2. Only nouns are learned, all that fit the answers so far equally probable.
3. Every noun and every category is asked for, held-out ones too; a seed repeats a corpus.
   In the second stage whole games are learned beside riddles, normalised over nouns alone.
4. The telling attributes set nearly all nouns of a category apart.
5. The tokenizer holds the game's words, and any other text all the same.
6. The shipped base knows the nouns, was made by the commands on its card, and cannot play.
"""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tinker_cookbook.renderers import get_renderer
from transformers import Qwen3ForCausalLM

from evert.bases.making import training
from evert.bases.making.__main__ import main
from evert.bases.making.dialogues import Example
from evert.bases.making.riddle_card import measure_knowledge
from evert.bases.making.riddles import (
    ASK_PROMPT,
    VOCAB_SIZE,
    RiddleCorpus,
    categories,
    questions,
    telling,
    tokenizer_text,
    varying,
)
from evert.bases.making.tokenizer import make_tokenizer
from evert.bridge.base import BASE_RENDERER, BASES, base_path, base_tokenizer
from evert.envs.twenty_questions.facts import shipped_facts
from evert.envs.twenty_questions.lexicon import load_lexicon
from evert.envs.twenty_questions.nouns import shipped_nouns

NAME: Literal["evert-tiny-20q"] = "evert-tiny-20q"
TOKENIZER = base_tokenizer(NAME)
ATTRIBUTES = {question: name for name, question in load_lexicon().questions.items()}


def told(example: Example) -> list[tuple[str, str]]:
    """A riddle as (role, text) messages, read back from its tokens."""
    text = TOKENIZER.decode(example.tokens)
    parts = [part.removesuffix("\n") for part in text.split("<|im_start|>")[1:]]
    messages = [part.partition("\n") for part in parts]
    return [(role, content.removesuffix("<|im_end|>")) for role, _, content in messages]


def riddles(count: int, lengths: tuple[int, ...] = (1, 2, 3, 4, 5)) -> list[Example]:
    corpus = RiddleCorpus(TOKENIZER, 7)
    return [corpus.riddle(lengths) for _ in range(count)]


def fitting(messages: list[tuple[str, str]]) -> set[str]:
    """The nouns that fit the answers before the last question, worked out from the text alone."""
    category = messages[0][1].rsplit(" ", 1)[0]
    left = set(categories()[category])
    for (_, question), (_, answer) in zip(messages[1::2], messages[2::2], strict=False):
        said = answer.rsplit(" ", 1)[0]
        noun = question.removeprefix("Is it ").removesuffix("?")
        if question in ATTRIBUTES:
            left = {n for n in left if shipped_facts().of(n, ATTRIBUTES[question]) == said}
        else:
            assert said == "no"
            left.discard(noun)
    return left


# -- 1. form -------------------------------------------------------------------------------------


def test_a_riddle_is_what_the_cookbooks_renderer_makes_of_its_messages() -> None:
    renderer = get_renderer(BASE_RENDERER, TOKENIZER)
    for example in riddles(20, ()):
        messages: Any = [{"role": role, "content": text} for role, text in told(example)]
        rendered, _ = renderer.build_supervised_example(messages)

        assert rendered.to_ints() == example.tokens


def test_a_riddle_has_as_many_questions_as_were_asked_for() -> None:
    assert {len(told(example)) for example in riddles(30, (1,))} == {4}
    assert {len(told(example)) for example in riddles(60, (2, 3))} <= {4, 6, 8}


def test_a_whole_game_ends_with_the_noun_or_after_twenty_questions() -> None:
    games = [told(example) for example in riddles(30, ())]

    assert all(len(game) <= 40 for game in games)
    for game in games:
        assert len(game) == 40 or fitting(game)  # the last guess was among those left


# -- 2. what is learned --------------------------------------------------------------------------


def test_only_nouns_are_learned() -> None:
    for example in riddles(30, ()):
        learned = {place for place, reply in enumerate(example.loss_mask) if reply}

        assert learned == example.soft_targets.keys()
        for place in learned:
            before = TOKENIZER.decode(example.tokens[:place])
            assert "Is it" in before.rpartition("<|im_start|>assistant\n")[2]


def test_the_targets_are_all_nouns_that_fit_the_answers() -> None:
    for example in riddles(60):
        place = min(example.soft_targets)
        target = example.soft_targets[place]
        left = fitting(told(example))
        first = {TOKENIZER.encode(f" {noun}", add_special_tokens=False)[0] for noun in left}

        assert set(np.flatnonzero(target).tolist()) == first
        assert target.sum() == pytest.approx(1.0)
        assert target.max() <= len(left)


def test_a_noun_once_begun_is_finished() -> None:
    for example in riddles(60):
        last = max(example.soft_targets)

        assert example.soft_targets[last][TOKENIZER.eos_token_id] == 1.0
        assert last == len(example.tokens) - 1


# -- 3. what is asked for ------------------------------------------------------------------------


def test_every_noun_is_asked_for_held_out_ones_too() -> None:
    asked = {told(example)[-1][1] for example in riddles(3000, (3,))}

    assert {f"Is it {noun.answer}?" for noun in shipped_nouns()} <= asked


def test_a_step_has_short_riddles_first_and_whole_games_later() -> None:
    corpus = RiddleCorpus(TOKENIZER, 0)
    early = [batch.name for batch in corpus.step(whole_games=False)]
    late = corpus.step(whole_games=True)

    assert early == ["short riddles", "long riddles", "questions"]
    assert [batch.name for batch in late] == [
        "short riddles", "long riddles", "short games", "long games", "questions",
    ]  # fmt: skip
    assert sum(batch.weight for batch in late[:-1]) == pytest.approx(2.0)
    assert max(len(e.tokens) for e in late[2].examples) <= min(
        len(e.tokens) for e in late[3].examples
    )


def test_wordings_are_questions_about_a_category() -> None:
    corpus = RiddleCorpus(TOKENIZER, 0)
    prompts = {ASK_PROMPT.format(category=category) for category in categories()}
    for _ in range(50):
        (_, prompt), (_, question) = told(corpus.wording())

        assert prompt in prompts
        assert question in ATTRIBUTES


def test_a_seed_repeats_a_corpus() -> None:
    one, same, other = (RiddleCorpus(TOKENIZER, seed).step(whole_games=True) for seed in (1, 1, 2))

    def tokens(batches: Any) -> list[list[int]]:
        return [example.tokens for batch in batches for example in batch.examples]

    assert tokens(one) == tokens(same) != tokens(other)


def test_the_second_stage_learns_players_games_beside_riddles() -> None:
    corpus = RiddleCorpus(TOKENIZER, 0, players=True)
    batches = {batch.name: batch.examples for batch in corpus.step(whole_games=True)}

    assert set(batches) == {"riddles", "short games", "long games", "players"}
    for example in batches["players"]:
        said = [text for role, text in told(example) if role == "assistant"]
        learned = [t for t, reply in zip(example.tokens, example.loss_mask, strict=True) if reply]
        assert TOKENIZER.decode(learned) == "".join(f"{text}<|im_end|>" for text in said)
        assert not example.soft_targets


def test_targets_among_nouns_leave_the_probability_of_guessing_alone() -> None:
    corpus = RiddleCorpus(TOKENIZER, 0, players=True)
    nouns = {t for noun in shipped_nouns() for t in TOKENIZER.encode(f" {noun.answer}?")}
    example = corpus.riddle((2,))

    assert corpus.renormalise
    assert set(corpus.target_tokens) == nouns | {TOKENIZER.eos_token_id}
    assert all(len(target) == len(corpus.target_tokens) for target in example.soft_targets.values())

    torch.manual_seed(0)
    model: Any = training.make_model(TOKENIZER)

    def losses() -> list[float]:
        return [
            training.batch_loss(model, [example], corpus.target_tokens, renormalise=given).item()
            for given in (False, True)
        ]

    free, given = losses()
    model.lm_head = _Louder(model.lm_head, set(corpus.target_tokens))

    assert losses()[0] > free + 1
    assert losses()[1] == pytest.approx(given)


class _Louder(torch.nn.Module):
    """An output layer that makes all but some tokens far more likely."""

    def __init__(self, head: torch.nn.Module, spared: set[int]) -> None:
        super().__init__()
        self.head = head
        self.louder = torch.tensor([0.0 if t in spared else 5.0 for t in range(VOCAB_SIZE)])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(hidden)
        return logits + self.louder


# -- 4. telling attributes -----------------------------------------------------------------------


def test_telling_attributes_vary_and_set_nearly_all_nouns_apart() -> None:
    together = 0
    for category, nouns in categories().items():
        chosen = telling(category)
        rows = [tuple(shipped_facts().of(noun, name) for name in chosen) for noun in nouns]
        together += len(nouns) - len(set(rows))

        assert len(chosen) == len(set(chosen)) == (10 if len(nouns) > 10 else 8)
        assert set(chosen) <= set(varying(category)) <= set(questions())
    assert together <= 3


# -- 5. the tokenizer ----------------------------------------------------------------------------


def test_the_tokenizer_is_the_shipped_one(tmp_path: Path) -> None:
    made = make_tokenizer(tokenizer_text(), VOCAB_SIZE)
    made.save_pretrained(tmp_path)

    assert len(made) == VOCAB_SIZE
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (base_path(NAME) / name).read_bytes()


def test_the_games_words_are_few_tokens_and_any_text_comes_back() -> None:
    lengths = [len(TOKENIZER.encode(text)) for text in questions().values()]

    assert sum(lengths) / len(lengths) < 8
    for text in ("Is it an axolotl? \u00fcber\n\t7", "{}<tool_call>"):
        assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


# -- 6. the base ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base() -> Any:
    return Qwen3ForCausalLM.from_pretrained(base_path(NAME))


def test_the_shipped_base_knows_the_nouns(base: Any) -> None:
    knowledge = measure_knowledge(base, TOKENIZER, riddles=120)
    right, posed = knowledge.one_left

    assert posed > 30
    assert right / posed > 0.95
    assert all(share > 0.9 for share in knowledge.fitting.values())


def test_a_model_that_knows_nothing_is_measured_as_such() -> None:
    torch.manual_seed(0)
    knowledge = measure_knowledge(training.make_model(TOKENIZER), TOKENIZER, riddles=60)

    assert knowledge.fitting[1] < 0.1


def test_the_base_is_small_and_says_how_it_was_made() -> None:
    files = {path.name: path.stat().st_size for path in base_path(NAME).iterdir()}
    card = (base_path(NAME) / "README.md").read_text()

    assert sum(files.values()) < 5_000_000
    assert card.startswith("---\n")
    assert f"python -m evert.bases.making out=FOLDER base={NAME}" in card
    config = json.loads((base_path(NAME) / "config.json").read_text())
    assert config["vocab_size"] == VOCAB_SIZE
    assert {path.name for path in base_path(NAME).parent.iterdir()} - {"making"} == set(BASES)


def test_the_script_makes_it_from_the_start_to_the_card(tmp_path: Path) -> None:
    config = training.MakingConfig(
        out=str(tmp_path / "base"), base=NAME, steps=2, warm_up=0.5, measured_games=4
    )
    main(config)
    card = (tmp_path / "base" / "README.md").read_text()

    assert f"out=FOLDER base={NAME} steps=2 warm_up=0.5 seed=0 measured_games=4" in card
    assert "short games" in card
    assert {path.name for path in (tmp_path / "base").iterdir()} >= {
        "model.safetensors", "tokenizer.json", "config.json", "README.md",
    }  # fmt: skip
