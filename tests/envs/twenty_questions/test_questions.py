"""Questions in plain English: what the parser makes of them.

1. Every canonical question asks its attribute, every noun can be guessed.
2. Negations turn the answer round; tags and contractions at the front do not.
3. Sizes may be compared with things.
4. Two things may be asked at once; what asks nothing, or names two nouns, cannot be told.
5. At least 95 % of 300 held-out questions are understood. They are in other words than what the
   lexicon was tuned on; only their score was looked at, never which of them fail
   (`PROVENANCE.md` has the first score and the caveats).
6. Of the development questions a few are known to fail, and are listed.
"""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evert.envs.twenty_questions.nouns import shipped_nouns
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon
from evert.envs.twenty_questions.understanding.parsed import Asked, Guess, Measured, Parsed, Several
from evert.envs.twenty_questions.understanding.questions import QuestionParser, mentions
from evert.envs.twenty_questions.understanding.wording import stem, words

FOLDER = Path(__file__).parent
ANSWERS = [noun.answer for noun in shipped_nouns()]
PARSER = QuestionParser(load_lexicon(), ANSWERS)


def label(parsed: Parsed) -> str:
    if parsed is None:
        return "none"
    if isinstance(parsed, Guess):
        return f"guess:{parsed.answer}"
    if isinstance(parsed, Several):
        return label(parsed.parts[0])
    if isinstance(parsed, Measured):
        return parsed.quantity
    return f"{'attribute' if parsed.positive else 'not'}:{parsed.attribute}"


def rows(name: str) -> list[tuple[str, str]]:
    with open(FOLDER / name, newline="") as file:
        return [(row["question"], row["expected"]) for row in csv.DictReader(file)]


def fits(parsed: Parsed, wanted: str) -> bool:
    """Whether a label fits.

    The files' "none" is also where two things are asked at once, or a noun is named that is none
    of the list: both can be told since.
    """
    foreign = isinstance(parsed, Guess) and parsed.answer not in ANSWERS
    told = wanted == "none" and (isinstance(parsed, Several) or foreign)
    return told or label(parsed) in wanted.split("|")


def wrong(questions: list[tuple[str, str]]) -> list[str]:
    return [q for q, wanted in questions if not fits(PARSER.parse(q), wanted)]


HELD_OUT = rows("held_out_questions.csv")
DEVELOPMENT = rows("development_questions.csv")
KNOWN_TO_FAIL = [
    "Do you play it with a bow?",
    "Does it travel on rails?",
    "Do you hit it with something?",
]
"""One word of them is known and the one that matters is not, or two things are named."""

# -- attributes and guesses ----------------------------------------------------------------------


@pytest.mark.parametrize(("attribute", "question"), load_lexicon().questions.items())
def test_a_canonical_question_asks_its_attribute(attribute: str, question: str) -> None:
    assert PARSER.parse(question) == Asked(attribute)


@pytest.mark.parametrize("form", ["Is it a {}?", "Is it {}?", "{}", "Guess: {}", "is it the {}"])
def test_every_noun_can_be_guessed(form: str) -> None:
    guesses = {answer: PARSER.parse(form.format(answer.lower())) for answer in ANSWERS}

    assert {answer: Guess(answer) for answer in ANSWERS} == guesses


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Is it horses?", "horse"),
        ("Is it a couch?", "sofa"),
        ("Is it a pair of trousers?", "trousers"),
        ("I think it is a cat.", "cat"),
        ("You are thinking of Einstein, right?", "Albert Einstein"),
        ("My final guess: the Eiffel Tower!", "Eiffel Tower"),
        ("IS IT A ZEBRA", "zebra"),
        ("Isn't it a zebra?", "zebra"),
        ("Is it a book shelf?", "bookshelf"),
        ("Is it a loaf of bread?", "bread"),
    ],
)
def test_articles_plurals_and_other_names_do_not_matter(question: str, answer: str) -> None:
    assert PARSER.parse(question) == Guess(answer)


def test_an_explicit_guess_of_something_unknown_is_a_guess() -> None:
    assert PARSER.parse("Guess: wombat.") == Guess("wombat")
    assert PARSER.parse("My guess is Wombat") == Guess("Wombat")
    assert PARSER.parse("Guess:") is None


@pytest.mark.parametrize("question", ["Is it a dragon?", "is it an ogre"])
def test_a_noun_that_the_list_does_not_have_is_a_guess_too(question: str) -> None:
    parsed = PARSER.parse(question)

    assert isinstance(parsed, Guess)
    assert parsed.answer not in ANSWERS


@pytest.mark.parametrize(
    "question",
    [
        "a teapot?",
        "Hot dog?",
        "Is it Beethoven?",
        "is it garlic",
        "Is it earplugs?",
        "Is it a fly?",
        "Is the answer a tiger?",
        "Is it a spinning top?",
        "Is it a football helmet?",
        "Could it be the Brooklyn Bridge?",
        "Is it Humphrey Appleby?",
        "Is it a paper napkin?",
    ],
)
def test_things_that_are_none_of_the_nouns_are_guesses(question: str) -> None:
    parsed = PARSER.parse(question)

    assert isinstance(parsed, Guess)
    assert parsed.answer not in ANSWERS


@pytest.mark.parametrize(
    "question",
    [
        "Is it a mammal?",
        "Is it a kitchen tool?",
        "Is it an instrument?",
        "Is it a board game?",
        "Is it American?",
        "Does it fly?",
        "Is it glass?",
        "Is there a light inside?",
        "Was he in a book first?",
        "Is it a musical intrument?",
    ],
)
def test_what_a_thing_is_or_does_is_no_guess(question: str) -> None:
    assert not isinstance(PARSER.parse(question), Guess)


def test_a_name_that_is_none_of_the_nouns_may_be_put_on_the_list() -> None:
    parser = QuestionParser(load_lexicon(), [*ANSWERS, "teapot"])

    assert parser.parse("Is it a tea pot?") == Guess("teapot")


def test_a_noun_within_a_longer_question_is_no_guess() -> None:
    for question in (
        "Is it part of a car?",
        "Is it a car driver's licence?",
        "Does a dog like it?",
    ):
        assert not isinstance(PARSER.parse(question), Guess)


@pytest.mark.parametrize(
    "question",
    [
        "Is it on a table?",
        "Is it associated with the sun?",
        "Is it something in a car?",
        "Is it for a car?",
        "Does it have a dog?",
        "Is it related to the sun?",
        "Is it under a bed?",
        "Would it be by a car?",
    ],
)
def test_what_stands_beside_a_noun_is_no_guess_of_it(question: str) -> None:
    assert not isinstance(PARSER.parse(question), Guess)


@pytest.mark.parametrize(
    "question",
    [
        "Just to be sure, is it a dog?",
        "Is it by any chance a dog?",
        "Is it for sure a dog?",
        "Could you be thinking about a dog?",
        "Is it some kind of dog?",
    ],
)
def test_words_that_say_nothing_may_stand_before_a_guess(question: str) -> None:
    assert PARSER.parse(question) == Guess("dog")


@pytest.mark.parametrize(
    ("question", "attribute"),
    [
        ("Does it have wings?", "has_wings"),
        ("Is it used for cooking?", "cooking"),
        ("Could I hold it in one hand?", "in_hand"),
        ("wings?", "has_wings"),
        ("Is it electrik?", "electric"),
        ("Is it an anmial?", "animal"),
    ],
)
def test_attributes_are_asked_in_many_ways(question: str, attribute: str) -> None:
    assert PARSER.parse(question) == Asked(attribute)


# -- negations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        "Is it not electric?",
        "Is it non-electric?",
        "Does it never use electricity?",
        "Does it have no need for electricity?",
        "It's not electric, is it?",
    ],
)
def test_a_negation_turns_the_answer_round(question: str) -> None:
    assert PARSER.parse(question) == Asked("electric", positive=False)


@pytest.mark.parametrize("question", ["Isn't it electric?", "Is it electric, isn't it?"])
def test_a_negation_that_only_expects_a_yes_does_not(question: str) -> None:
    assert PARSER.parse(question) == Asked("electric")


@pytest.mark.parametrize(
    "question",
    [
        "I have an idea: is it electric?",
        "Is it electric? I mean the usual kind.",
        "Is it electric, like a lamp or a toaster?",
        "Am I looking for something electric?",
    ],
)
def test_what_stands_before_and_after_a_question_says_nothing(question: str) -> None:
    assert PARSER.parse(question) == Asked("electric")


def test_two_negations_are_none() -> None:
    assert PARSER.parse("Is it not without wheels?") == Asked("wheels")


def test_words_may_be_negative_themselves() -> None:
    assert PARSER.parse("Is it inanimate?") == Asked("living", positive=False)
    assert PARSER.parse("Is it toothless and wheelless?") == Asked("wheels", positive=False)
    assert PARSER.parse("Is it not inanimate?") == Asked("living")


# -- comparisons ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "parsed"),
    [
        ("Is it bigger than a car?", Asked("over_car")),
        ("Is it smaller than a car?", Asked("over_car", positive=False)),
        ("Is it not bigger than a car?", Asked("over_car", positive=False)),
        ("Is it not smaller than a car?", Asked("over_car")),
        ("Is it smaller than a hand?", Asked("in_hand")),
        ("Isn't it bigger than a car?", Asked("over_car")),
        ("Is it larger than my palm?", Asked("in_hand", positive=False)),
        ("Would it fit into a shoebox?", Asked("over_breadbox", positive=False)),
        ("Is it bigger than a galaxy?", None),
        ("Is it bigger or smaller than a car?", None),
    ],
)
def test_sizes_are_compared_with_things(question: str, parsed: Parsed) -> None:
    assert PARSER.parse(question) == parsed


# -- what cannot be told -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        "",
        "?",
        "What is it?",
        "Is it a cat or a dog?",
        "Does it have an opinion on jazz festivals and taxes?",
        "asdf",
        "yes",
        "\x00\ud83e",
    ],
)
def test_what_asks_nothing_or_names_two_nouns_cannot_be_told(question: str) -> None:
    assert PARSER.parse(question) is None


# -- several at once -----------------------------------------------------------------------------

RED, YELLOW, ANIMAL, FLIES = map(Asked, ("red", "yellow", "animal", "can_fly"))


@pytest.mark.parametrize(
    ("question", "parsed"),
    [
        ("Is it red or yellow?", Several((RED, YELLOW), any=True)),
        ("Is it both red and yellow?", Several((RED, YELLOW))),
        ("Is it neither red nor yellow?", Several((Asked("red", False), Asked("yellow", False)))),
        ("Is it a red animal?", Several((RED, ANIMAL))),
        ("Is it an animal that can fly?", Several((ANIMAL, FLIES))),
        ("Is it an animal but can't fly?", Several((ANIMAL, Asked("can_fly", False)))),
        (
            "Is it smaller than a car but bigger than a shoebox?",
            Several((Asked("over_car", False), Asked("over_breadbox"))),
        ),
    ],
)
def test_two_things_may_be_asked_at_once(question: str, parsed: Parsed) -> None:
    assert PARSER.parse(question) == parsed


def test_two_words_for_one_thing_are_one_question() -> None:
    assert PARSER.parse("Is it made of steel or iron?") == Asked("metal")


def test_the_same_question_is_always_parsed_alike() -> None:
    again = QuestionParser(load_lexicon(), ANSWERS)

    assert [again.parse(q) for q, _ in DEVELOPMENT] == [PARSER.parse(q) for q, _ in DEVELOPMENT]


# -- names in questions --------------------------------------------------------------------------


def test_a_question_mentions_a_noun_by_any_of_its_names() -> None:
    assert mentions("So would it be a fridge?", "refrigerator")
    assert mentions("Is it Zebras?", "zebra")
    assert not mentions("Is it big?", "zebra")
    assert mentions("Is it an oak tree?", "oak tree")


def test_words_and_stems() -> None:
    assert words("Isn't it the cat\u2019s whiskers?") == [
        "is",
        "not",
        "it",
        "the",
        "cat",
        "whiskers",
    ]
    assert {stem(word) for word in ("wing", "wings", "winged")} == {"wing"}
    assert {stem(word) for word in ("make", "makes", "making", "made")} == {"mak"}


# -- the score -----------------------------------------------------------------------------------


def test_the_development_questions_are_understood_but_for_a_few() -> None:
    assert wrong(DEVELOPMENT) == KNOWN_TO_FAIL


def test_the_held_out_questions_are_what_they_should_be() -> None:
    kinds = [wanted.partition(":")[0] for _, wanted in HELD_OUT]

    assert len({question for question, _ in HELD_OUT}) == 300
    assert kinds.count("guess") == 50
    assert kinds.count("none") == 30
    known = {stem_key(question) for question in load_lexicon().questions.values()}
    known |= {stem_key(question) for question, _ in DEVELOPMENT}
    guesses = {q for q, wanted in HELD_OUT if wanted.startswith("guess")}
    assert [q for q, _ in HELD_OUT if stem_key(q) in known and q not in guesses] == []


def stem_key(question: str) -> tuple[str, ...]:
    return tuple(stem(word) for word in words(question))


def test_at_least_95_percent_of_the_held_out_questions_are_understood() -> None:
    understood = len(HELD_OUT) - len(wrong(HELD_OUT))

    assert understood >= 0.95 * len(HELD_OUT), f"{understood} of {len(HELD_OUT)}"


# -- anything at all -----------------------------------------------------------------------------


@given(st.text(max_size=80))
def test_any_text_is_parsed_to_something_or_nothing(text: str) -> None:
    assert isinstance(PARSER.parse(text), Asked | Guess | None)


@pytest.mark.nightly
def test_parsing_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from evert.envs.twenty_questions.answerers import KnowledgeAnswerer; import sys\n"
        "parser = KnowledgeAnswerer().parser\n"
        "for line in sys.stdin: print(parser.parse(line.strip()))\n"
    )
    asked = "\n".join(question for question, _ in DEVELOPMENT)
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            input=asked,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(said) == 1
