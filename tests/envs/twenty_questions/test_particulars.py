"""What the answerer knows beside the facts, and how it does on questions written blindly.

1. A particular holds for the nouns of its line and for no others; sizes and weights are numbers.
2. The canonical questions are answered from the facts, whatever else is known.
3. No phrase is in two lines: which of them counted would be left to their order.
4. Of 900 questions written before anybody looked at the parser, what fails is counted by kind
   (``PROVENANCE.md`` says who wrote them and what was looked at).
"""

from collections import Counter

import pytest
from tests.envs.twenty_questions.mistakes import HALVES, mistakes

from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.facts import shipped_facts
from evert.envs.twenty_questions.lexicon import load_lexicon
from evert.envs.twenty_questions.nouns import shipped_nouns
from evert.envs.twenty_questions.particulars import everything_known, shipped_measures

ANSWERER = KnowledgeAnswerer()
NOUNS = {noun.answer: noun for noun in shipped_nouns()}


def said(noun: str, question: str) -> str:
    return ANSWERER.answer_now(NOUNS[noun], question).yes_or_no


@pytest.mark.parametrize(
    ("question", "yes", "no"),
    [
        ("Does it have a trunk?", "elephant", "giraffe"),
        ("Do you put your head on it?", "pillow", "hat"),
        ("Do you put it on your head?", "hat", "pillow"),
        ("Is it on a table?", "plate", "car"),
        ("Is it associated with the sun?", "sunflower", "mug"),
        ("Is it heavier than a brick?", "piano", "key"),
        ("Does it weigh more than 10 kilos?", "ladder", "violin"),
        ("Is it smaller than a guitar?", "violin", "piano"),
        ("Would it fit in a suitcase?", "laptop", "sofa"),
        ("Is it a farm animal?", "cow", "tractor"),
        ("Is it red or yellow?", "banana", "frog"),
        ("Is it an animal and not a bird?", "dog", "owl"),
        ("Is he still alive?", "Taylor Swift", "Albert Einstein"),
    ],
)
def test_a_particular_holds_for_its_nouns_and_no_others(question: str, yes: str, no: str) -> None:
    assert (said(yes, question), said(no, question)) == ("yes", "no")


def test_what_makes_no_sense_for_a_noun_is_told_only_if_the_rest_does_not_settle_it() -> None:
    assert said("butterfly", "Is it a red animal?") == "n/a"
    assert said("butterfly", "Is it a red vehicle?") == "no"
    assert said("butterfly", "Is it red or an animal?") == "yes"


def test_canonical_questions_are_answered_from_the_facts() -> None:
    facts = shipped_facts()
    other = [
        (noun, question)
        for attribute, question in load_lexicon().questions.items()
        for noun in NOUNS
        if said(noun, question) != facts.of(noun, attribute)
    ]

    assert other == []


def test_no_phrase_is_in_two_lines() -> None:
    _, lexicon = everything_known()
    lines: dict[frozenset[str], set[str]] = {}
    for phrase in lexicon.phrases[len(load_lexicon().phrases) :]:
        lines.setdefault(phrase.stems, set()).add(phrase.attribute)

    assert [found for found in lines.values() if len(found) > 1] == []


def test_every_noun_has_a_length_a_weight_and_a_year() -> None:
    measures = shipped_measures()

    assert [n for n in NOUNS if not {*measures[n]} >= {"centimetres", "kilograms", "year"}] == []


@pytest.mark.parametrize(("half", "least"), [("development", 0.98), ("held-out", 0.95)])
def test_questions_written_before_the_parser_was_read_are_answered(half: str, least: float) -> None:
    kinds = Counter(kind for kind, *_ in mistakes(half))

    assert len(HALVES[half]) == 450
    assert kinds.total() <= (1 - least) * len(HALVES[half]), kinds
