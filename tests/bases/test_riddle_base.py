"""``evert-tiny-20q``: what it is trained on, worked out from the text alone, and what it knows."""

import random
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.bases.conftest import learned, messages_of, rendered
from transformers import Qwen3ForCausalLM

from evert.bases.making import training
from evert.bases.making.dialogues import Example
from evert.bases.making.riddle_card import measure_recall
from evert.bases.making.riddles import FEW, TELLING, VOCAB_SIZE, RiddleCorpus
from evert.bridge.tokens.bases import base_path, base_tokenizer
from evert.envs.twenty_questions.facts import shipped_facts
from evert.envs.twenty_questions.habits import HabitPlayer
from evert.envs.twenty_questions.knowledge import Knowledge, guess, telling
from evert.envs.twenty_questions.nouns import of_split, shipped_nouns
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon

NAME: Literal["evert-tiny-20q"] = "evert-tiny-20q"
TOKENIZER = base_tokenizer(NAME)
told = partial(messages_of, TOKENIZER)
ATTRIBUTES = {question: name for name, question in load_lexicon().questions.items()}
CATEGORIES = {noun.category for noun in shipped_nouns()}


def riddles(count: int, length: int = 5) -> list[Example]:
    corpus = RiddleCorpus(TOKENIZER, 7)
    return [corpus.riddle(length) for _ in range(count)]


def games(count: int) -> list[Example]:
    corpus = RiddleCorpus(TOKENIZER, 7)
    return [corpus.game(player) for player in islice(corpus.players, count)]


def fitting(messages: list[tuple[str, str]]) -> set[str]:
    """The nouns that fit the answers before the last question, worked out from the text alone."""
    first = messages[0][1].rsplit(" ", 1)[0]
    left = {noun.answer for noun in shipped_nouns() if first in ("20 questions", noun.category)}
    for (_, question), (_, answer) in zip(messages[1::2], messages[2::2], strict=False):
        said = answer.rsplit(" ", 1)[0]
        if question in ATTRIBUTES:
            left = {n for n in left if shipped_facts().of(n, ATTRIBUTES[question]) == said}
        else:
            assert said == "no"
            left = {noun for noun in left if guess(noun) != question}
    return left


def _tokens(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def test_an_example_is_what_the_renderer_makes_of_it_and_hides_the_category_in_one_of_two() -> None:
    for drawn in (riddles(90), games(90)):
        assert all(rendered(TOKENIZER, example) == example.tokens for example in drawn[:20])
        first = [told(example)[0][1].removesuffix(" 1") for example in drawn]
        assert 0.35 < first.count("20 questions") / len(first) < 0.65
        assert {*first} - {"20 questions"} <= CATEGORIES
    for length in (1, 4):
        for example in riddles(20, length):
            assert len(told(example)) <= 2 * length + 2
            assert told(example)[-1][1] not in ATTRIBUTES
    asked = {told(example)[-1][1] for example in riddles(1500, 1)}
    assert {guess(noun.answer) for noun in shipped_nouns()} <= asked  # held-out ones too


def test_the_odds_are_those_of_all_nouns_that_fit_the_answers() -> None:
    corpus, header = RiddleCorpus(TOKENIZER, 7), _tokens("assistant\n")
    for _ in range(40):
        example = corpus.riddle(4)
        ids = np.array(corpus.odds_tokens)
        first = {_tokens(f" {noun}")[0] for noun in fitting(told(example))}
        for opening, more in ((header, 1), (corpus.opening, 0)):
            starts = {end: end + more - len(opening) for end in example.odds}
            ends = [p for p in starts if example.tokens[starts[p] : p + more] == opening]
            odds = example.odds[max(ends)]
            assert set(ids[np.flatnonzero(odds)].tolist()) == first
            assert odds.sum() == pytest.approx(1.0)


def test_of_a_riddle_is_learned_how_names_go_on_and_of_a_game_the_replies() -> None:
    for example in riddles(20):
        said = [text for _, text in told(example)[1::2] if text not in ATTRIBUTES]
        names = [_tokens(text.removeprefix("Is it"))[1:] for text in said]
        ends = [TOKENIZER.decode([*name, TOKENIZER.eos_token_id]) for name in names]
        assert learned(TOKENIZER, example) == "".join(ends)
    for example in games(20):
        said = [f"{text}<|im_end|>" for role, text in told(example) if role == "assistant"]
        assert learned(TOKENIZER, example) == "".join(said)


def test_a_name_goes_on_as_the_nouns_do_that_fit_and_began_so() -> None:
    corpus, shared = RiddleCorpus(TOKENIZER, 7), 0
    for _ in range(400):
        example = corpus.riddle(1)
        begun = max(example.odds)
        names = [_tokens(f" {noun}?") for noun in fitting(told(example))]
        alike = [name[1] for name in names if name[0] == example.tokens[begun]]
        target = example.soft_targets[begun + 1]

        assert {token: alike.count(token) / len(alike) for token in alike} == {
            corpus.target_tokens[place]: pytest.approx(float(target[place]))
            for place in np.flatnonzero(target)
        }
        shared += len({*alike}) > 1
    assert shared > 3


def test_odds_leave_the_probability_of_all_else_alone() -> None:
    corpus = RiddleCorpus(TOKENIZER, 0)
    drawn = corpus.riddle(2)
    example = Example(drawn.tokens, [False] * len(drawn.tokens), odds=drawn.odds)
    torch.manual_seed(0)
    model: Any = training.make_model(TOKENIZER)
    before = training.batch_loss(model, [example], corpus).item()
    louder = torch.full((VOCAB_SIZE,), 5.0)  # all but the tokens of the odds are far more likely
    louder[corpus.odds_tokens] = 0.0
    model.lm_head.bias = torch.nn.Parameter(louder)

    assert training.batch_loss(model, [example], corpus).item() == pytest.approx(before)


@pytest.mark.parametrize("plain", [True, False])
def test_a_riddle_guesses_once_few_nouns_are_left_and_last(plain: bool) -> None:
    corpus, guesses = RiddleCorpus(TOKENIZER, 7), 0
    for _ in range(40):
        messages = told(corpus.riddle(6, plain=plain))
        for place in range(1, len(messages) - 1, 2):
            if messages[place][1] not in ATTRIBUTES:
                assert len(fitting(messages[: place + 1])) <= FEW
                guesses += 1
    assert guesses > 5


def test_questions_are_about_attributes_that_set_nearly_all_nouns_apart_in_few_tokens() -> None:
    known = RiddleCorpus(TOKENIZER, 7).known
    examples = riddles(60) + games(60)
    asked = {text for each in examples for _, text in told(each)[1::2] if text in ATTRIBUTES}
    rows = [Knowledge().row(name) for name in telling(Knowledge(), TELLING)]
    lengths = [len(TOKENIZER.encode(text)) for text in Knowledge().questions.values()]

    assert len(known.questions) == TELLING
    assert asked <= {*known.questions.values()}
    assert len(asked) > TELLING / 2
    assert len(set(zip(*rows, strict=True))) >= len(shipped_nouns()) - 10
    assert sum(lengths) / len(lengths) < 8


def test_of_a_reply_all_is_a_target_that_the_player_may_have_said() -> None:
    corpus, places, choices = RiddleCorpus(TOKENIZER, 7), 0, 0
    for player in islice(corpus.players, 40):
        example = corpus.game(player)
        for place, target in example.soft_targets.items():
            assert target.sum() == pytest.approx(1.0)
            assert target[corpus.target_tokens.index(example.tokens[place])] > 0
            places, choices = places + 1, choices + int(np.count_nonzero(target) > 1)
    assert choices > places / 10 > 100


def test_a_held_out_noun_is_as_probable_a_guess_as_any_other_and_no_game_names_it() -> None:
    corpus = RiddleCorpus(TOKENIZER, 7)
    nouns = shipped_nouns()
    train = corpus.known.set_of(noun for noun in nouns if noun.split == "train")
    player = HabitPlayer("any", "always", corpus.known, random.Random(0), train)
    drawn = (corpus.game(player) for _ in range(20))
    example = next(each for each in drawn if told(each)[0][1] == "20 questions 1")
    target = max(example.soft_targets.values(), key=np.count_nonzero)
    probable = {corpus.target_tokens[place] for place in np.flatnonzero(target)}
    asked = {text for example in games(60) for _, text in told(example)[1::2]}

    assert {TOKENIZER.encode(f" {noun.answer}")[0] for noun in nouns} == probable
    assert not asked & {guess(noun.answer) for noun in nouns if noun.split == "test"}
    assert len(asked - ATTRIBUTES.keys()) > 50


@pytest.fixture(scope="module")
def base() -> Any:
    return Qwen3ForCausalLM.from_pretrained(base_path(NAME))


def test_the_shipped_base_knows_what_follows_from_telling_questions(base: Any) -> None:
    recall = measure_recall(base, TOKENIZER, riddles=60, plain=True)
    right, posed = recall.one_left

    assert posed > 8
    assert right / posed > 0.8
    assert min(recall.fitting.values()) > 0.6


@torch.no_grad()
def test_the_shipped_base_finishes_a_held_out_name_that_it_began(base: Any) -> None:
    corpus, found = RiddleCorpus(TOKENIZER, 7), list[float]()
    held_out = {guess(noun.answer): noun.answer for noun in of_split(shipped_nouns(), "test")}
    for _ in range(250):
        example = corpus.riddle(3, plain=True)
        name, begun = held_out.get(told(example)[-1][1]), max(example.odds)
        if name is None or len(_tokens(f" {name}")) == 1:
            continue
        logits = base(input_ids=torch.tensor([example.tokens])).logits[0].log_softmax(-1)
        ends = range(begun + 1, len(example.tokens))
        found.append(sum(logits[p - 1, example.tokens[p]].item() for p in ends))

    assert len(found) > 15
    assert np.exp(found).min() > 0.1
    assert np.exp(found).mean() > 0.9


def test_a_model_that_knows_nothing_is_measured_as_such() -> None:
    torch.manual_seed(0)
    recall = measure_recall(training.make_model(TOKENIZER), TOKENIZER, riddles=30)

    assert recall.fitting[1] < 0.1
