"""The data that ship with the game.

1. 200 nouns in 18 categories, one in five of each held out.
2. Facts for every noun; every attribute splits; no two nouns have the same.
3. What follows from a fact is a fact too, and categories agree with their attributes.
4. Every attribute can be asked about, and lexicon and facts name the same ones.
"""

from collections import Counter
from pathlib import Path

import pytest

from evert.envs.twenty_questions.errors import FactsError
from evert.envs.twenty_questions.facts import Facts, load_facts, shipped_facts
from evert.envs.twenty_questions.nouns import shipped_nouns
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon

NOUNS = shipped_nouns()
FACTS = shipped_facts()

CATEGORY_ATTRIBUTES = {
    "animal": "animal",
    "musical instrument": "instrument",
    "furniture": "furniture",
    "food": "food",
    "vehicle": "vehicle",
    "electronic device": "electronic",
    "tool": "tool",
    "clothing": "clothing",
    "stationery": "stationery",
    "flower": "flower",
    "celebrity": "real_person",
    "fictional character": "fictional",
    "landmark": "landmark",
    "kitchenware": "kitchenware",
    "sports equipment": "sports_gear",
    "toy": "toy",
    "nature": "nature",
    "household item": "household",
}

IMPLICATIONS = """
over_house -> over_car; over_car -> over_person; over_person -> over_breadbox
over_breadbox -> not in_pocket; in_pocket -> in_hand; over_person -> not in_hand
mammal -> animal; bird -> animal; insect -> animal; reptile -> animal
mammal -> not bird; mammal -> not reptile; bird -> not insect; bird -> not reptile
insect -> not mammal; reptile -> not insect; bird -> has_wings; bird -> lays_eggs
bird -> not mammal; lays_eggs -> animal; pet -> animal; venomous -> animal; pet -> living
animal -> living; animal -> not man_made; animal -> not plant; flower -> plant; plant -> living
plant -> not man_made; living -> not man_made; real_person -> person; person -> can_talk
female -> not male; male -> not female; real_person -> not fictional; hero -> fictional
villain -> fictional; villain -> not hero; mask -> fictional; powers -> fictional
musician -> real_person; actor -> real_person; scientist -> real_person; artist -> real_person
writer -> real_person; athlete -> real_person; musician -> music; instrument -> music
blown -> instrument; struck -> instrument; fruit -> food; vegetable -> food; food -> edible
fruit -> not man_made; vegetable -> not fruit; baked -> food; on_tree -> food; sweet -> food
raw -> edible; electronic -> electric; screen -> electric; battery -> electric or household
vehicle -> transport; vehicle -> ridden; vehicle -> man_made; engine -> vehicle
clothing -> worn; on_head -> worn; on_hands -> worn; on_neck -> worn; tower -> landmark
bridge -> landmark; tomb -> landmark; landmark -> man_made; ball -> played; ball -> round
four_legs -> legs; winter -> not edible; underwater -> in_water; ridden -> not in_pocket
furniture -> man_made; tool -> man_made; stationery -> office; toy -> children or many_people
kitchenware -> kitchen; sleeping -> soft; sky -> not kitchen; nature -> over_house
cutting -> sharp; blown -> metal; hero -> mask or powers; eats_meat -> animal
"""


def implications() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in IMPLICATIONS.strip().replace("\n", ";").split(";"):
        left, _, right = line.strip().partition(" -> ")
        found.append((left, [*right.split(" or ")]))
    return found


def holds(answer: str, wanted: str) -> bool:
    """Whether a fact is not contradicted; n/a contradicts nothing."""
    fact = FACTS.of(answer, wanted.removeprefix("not "))
    return fact != ("yes" if wanted.startswith("not ") else "no")


# -- nouns ---------------------------------------------------------------------------------------


def test_there_are_two_hundred_nouns_in_eighteen_categories() -> None:
    assert len(NOUNS) == len({noun.answer.casefold() for noun in NOUNS}) == 200
    assert len({noun.category for noun in NOUNS}) == 18


def test_one_in_five_of_every_category_is_held_out() -> None:
    everything = Counter(noun.category for noun in NOUNS)
    held_out = Counter(noun.category for noun in NOUNS if noun.split == "test")

    assert {category: count // 5 for category, count in everything.items()} == held_out
    assert sum(held_out.values()) == 40


# -- facts ---------------------------------------------------------------------------------------


def test_there_are_facts_for_every_noun_and_for_no_other() -> None:
    assert FACTS.answers == tuple(noun.answer for noun in NOUNS)
    assert len(FACTS.attributes) >= 80


@pytest.mark.parametrize("attribute", FACTS.attributes)
def test_every_attribute_splits(attribute: str) -> None:
    assert {"yes", "no"} <= {FACTS.of(noun.answer, attribute) for noun in NOUNS}


def test_no_two_nouns_have_the_same_facts() -> None:
    rows = Counter(tuple(FACTS.row(noun.answer)) for noun in NOUNS)

    assert len(rows) == len(NOUNS)


def test_any_two_nouns_of_a_category_differ_in_a_plain_yes_against_no() -> None:
    alike = []
    for index, one in enumerate(NOUNS):
        for other in NOUNS[:index]:
            if one.category == other.category:
                pairs = zip(FACTS.row(one.answer), FACTS.row(other.answer), strict=True)
                if not any({a, b} == {"yes", "no"} for a, b in pairs):
                    alike.append((one.answer, other.answer))

    assert not alike


def test_what_cannot_be_told_is_rare() -> None:
    values = Counter(value for noun in NOUNS for value in FACTS.row(noun.answer))

    assert values["n/a"] < 0.02 * values.total()


@pytest.mark.parametrize(("fact", "follows"), implications())
def test_what_follows_from_a_fact_is_a_fact_too(fact: str, follows: list[str]) -> None:
    having = [noun.answer for noun in NOUNS if FACTS.of(noun.answer, fact) == "yes"]

    assert having
    assert [a for a in having if not any(holds(a, wanted) for wanted in follows)] == []


@pytest.mark.parametrize(("category", "attribute"), CATEGORY_ATTRIBUTES.items())
def test_categories_agree_with_their_attributes(category: str, attribute: str) -> None:
    having = {noun.answer for noun in NOUNS if FACTS.of(noun.answer, attribute) == "yes"}

    assert having == {noun.answer for noun in NOUNS if noun.category == category}


def test_every_category_has_its_attribute() -> None:
    assert set(CATEGORY_ATTRIBUTES) == {noun.category for noun in NOUNS}


# -- the lexicon ---------------------------------------------------------------------------------


def test_the_lexicon_and_the_facts_name_the_same_attributes() -> None:
    assert tuple(load_lexicon().questions) == FACTS.attributes


def test_canonical_questions_are_questions_and_no_two_are_the_same() -> None:
    questions = [*load_lexicon().questions.values()]

    assert all(question.endswith("?") for question in questions)
    assert len(set(questions)) == len(questions)


def test_other_names_and_comparisons_are_of_nouns_and_attributes_that_exist() -> None:
    lexicon = load_lexicon()

    assert set(lexicon.aliases) <= set(FACTS.answers)
    assert set(lexicon.references.values()) <= set(FACTS.attributes)


def test_no_other_name_belongs_to_two_nouns_or_is_a_noun_itself() -> None:
    names = Counter(alias for aliases in load_lexicon().aliases.values() for alias in aliases)

    assert [name for name, count in names.items() if count > 1] == []
    assert not set(names) & {answer.lower() for answer in FACTS.answers}


# -- facts that cannot be read -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("noun,animal\ndog,yes\n", "the first line must name 'answer'"),
        ("answer,animal\ndog,maybe\n", "line 2: 'dog' needs 1 values, each yes, no or n/a"),
        ("answer,animal\ndog\n", "line 2: 'dog' needs 1 values"),
        ("answer,animal\ndog,yes\ndog,no\n", "line 3: 'dog' is there twice"),
    ],
)
def test_facts_that_cannot_be_read_are_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "facts.csv"
    path.write_text(text)

    with pytest.raises(FactsError, match=message):
        load_facts(path)


def test_asking_for_a_noun_or_attribute_without_facts_is_an_error() -> None:
    facts = Facts({"dog": {"animal": "yes"}})

    with pytest.raises(FactsError, match="Nothing is known of 'cat'.*let a model answer"):
        facts.of("cat", "animal")
    with pytest.raises(FactsError, match="no attribute 'plant'"):
        facts.of("dog", "plant")


def test_a_lexicon_without_phrases_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.toml"
    path.write_text('[attributes.animal]\nquestion = "Is it an animal?"\nphrases = []\n')

    with pytest.raises(FactsError, match="'animal' needs a question and phrases"):
        load_lexicon(path)
