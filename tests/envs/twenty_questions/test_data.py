"""The data shipped with the game: nouns, facts and lexicon are consistent with each other."""

from collections import Counter
from itertools import combinations

import pytest

from evert.envs.twenty_questions.errors import FactsError
from evert.envs.twenty_questions.facts import Facts, shipped_facts
from evert.envs.twenty_questions.nouns import FOLDER, shipped_nouns
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon

NOUNS = shipped_nouns()
ANSWERS = [noun.answer for noun in NOUNS]
FACTS = shipped_facts()
LEXICON = load_lexicon()

CATEGORY_ATTRIBUTES = {
    "musical instrument": "instrument", "electronic device": "electronic",
    "celebrity": "real_person", "fictional character": "fictional",
    "sports equipment": "sports_gear", "household item": "household",
}  # fmt: skip
"""Categories whose attribute has a different name."""

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


def having(attribute: str) -> list[str]:
    return [answer for answer in ANSWERS if FACTS.of(answer, attribute) == "yes"]


def holds(answer: str, expected: str) -> bool:
    """Return whether a noun's fact is compatible with the expected one. "n/a" always is."""
    fact = FACTS.of(answer, expected.removeprefix("not "))
    return fact != ("yes" if expected.startswith("not ") else "no")


def test_a_fifth_of_the_nouns_of_every_category_is_held_out() -> None:
    everything = Counter(noun.category for noun in NOUNS)
    held_out = Counter(noun.category for noun in NOUNS if noun.split == "test")

    assert len({answer.casefold() for answer in ANSWERS}) == len(NOUNS) == 200
    assert len(everything) == 18
    assert {category: count // 5 for category, count in everything.items()} == held_out
    assert sum(held_out.values()) == 40


def test_every_noun_has_facts_and_few_facts_are_unknown() -> None:
    values = Counter(value for row in FACTS.table.values() for value in row.values())

    assert FACTS.answers == tuple(ANSWERS)
    assert {*values} == {"yes", "no", "n/a"}
    assert len((FOLDER / "facts.csv").read_text().splitlines()) == 1 + len(ANSWERS)
    assert len(FACTS.attributes) >= 80
    assert values["n/a"] < 0.02 * values.total()


def test_every_attribute_splits_the_nouns_and_no_two_nouns_have_the_same_facts() -> None:
    of = {attribute: {FACTS.of(a, attribute) for a in ANSWERS} for attribute in FACTS.attributes}
    rows = [(noun, [*FACTS.table[noun.answer].values()]) for noun in NOUNS]
    alike = [
        (one.answer, other.answer)
        for (one, ours), (other, theirs) in combinations(rows, 2)
        if one.category == other.category
        and not any({a, b} == {"yes", "no"} for a, b in zip(ours, theirs, strict=True))
    ]

    assert [attribute for attribute, answers in of.items() if not {"yes", "no"} <= answers] == []
    assert len({tuple(row) for _, row in rows}) == len(NOUNS)
    assert alike == []  # for each pair, some fact is yes for one noun and no for the other


def test_facts_and_categories_satisfy_the_implications() -> None:
    for line in IMPLICATIONS.strip().replace("\n", ";").split(";"):
        fact, _, follows = line.strip().partition(" -> ")
        options = follows.split(" or ")

        assert having(fact), line
        assert [a for a in having(fact) if not any(holds(a, option) for option in options)] == [], (
            line
        )
    for category in {noun.category for noun in NOUNS}:
        of_it = [noun.answer for noun in NOUNS if noun.category == category]
        assert having(CATEGORY_ATTRIBUTES.get(category, category)) == of_it, category


def test_the_lexicon_contains_the_facts_nouns_and_attributes_with_unique_names() -> None:
    questions = [*LEXICON.questions.values()]
    names = Counter(alias for aliases in LEXICON.aliases.values() for alias in aliases)

    assert tuple(LEXICON.questions) == FACTS.attributes
    assert [question for question in questions if not question.endswith("?")] == []
    assert len(set(questions)) == len(questions)
    assert set(LEXICON.aliases) <= set(FACTS.answers)
    assert set(LEXICON.references.values()) <= set(FACTS.attributes)
    assert [name for name, count in names.items() if count > 1] == []
    assert not set(names) & {answer.lower() for answer in FACTS.answers}


def test_an_unknown_noun_or_attribute_is_an_error() -> None:
    facts = Facts({"dog": {"animal": "yes"}})
    with pytest.raises(FactsError, match="There are no facts about 'cat'.*answer with a model"):
        facts.of("cat", "animal")
    with pytest.raises(FactsError, match="no attribute 'plant'"):
        facts.of("dog", "plant")
