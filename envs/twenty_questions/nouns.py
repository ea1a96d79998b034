"""The nouns to find: those that ship with evert, any CSV of yours, or a plain list of words.

    shipped_nouns()             200 nouns in 18 categories, four fifths of each for training
    load_nouns("mine.csv")      a CSV with the columns answer, category, split
    load_words("nouns.txt")     a word a line, no categories; split here, by a seed

Where the shipped ones come from is written in ``PROVENANCE.md``.
"""

import csv
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from evert.envs.twenty_questions.errors import NounsError

FOLDER = Path(__file__).parent
COLUMNS = ("answer", "category", "split")

Split: TypeAlias = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Noun:
    """Something to find.

    Attributes:
        answer: Its name, as the player must guess it but for case, article and number.
        category: What the player is told; "thing" where a list has no categories.
        split: Whether training may see it.
    """

    answer: str
    category: str
    split: Split


@cache
def shipped_nouns() -> tuple[Noun, ...]:
    """The nouns that ship with evert, in the order of ``nouns.csv``."""
    return load_nouns(FOLDER / "nouns.csv")


def of_split(nouns: Iterable[Noun], split: Split) -> list[Noun]:
    """Those of one split, in their order."""
    return [noun for noun in nouns if noun.split == split]


def load_nouns(path: str | Path) -> tuple[Noun, ...]:
    """Read a CSV with the columns answer, category and split; further columns are left alone."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        found = reader.fieldnames or []
        missing = [column for column in COLUMNS if column not in found]
        if missing:
            raise NounsError(
                f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; its "
                f"first line names {', '.join(found) or 'none'}. It must name answer, category "
                "and split. For a plain list of words use load_words."
            )
        nouns = tuple(_noun(path, reader.line_num, row) for row in reader)
    _check(path, nouns)
    return nouns


def load_words(
    path: str | Path, *, category: str = "thing", test_share: float = 0.2, seed: int = 0
) -> tuple[Noun, ...]:
    """Read a word a line, as in the Cookbook's list of common English nouns; empty lines are left.

    Args:
        path: The file.
        category: What players are told of every word.
        test_share: Share that is held out, rounded down, drawn by ``seed``.
        seed: The same seed draws the same split of the same file.
    """
    if not 0.0 <= test_share <= 1.0:
        raise NounsError(f"test_share is a share between 0 and 1, got {test_share!r}.")
    lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    words = [line.strip() for line in lines if line.strip()]
    held_out = set(random.Random(seed).sample(range(len(words)), int(len(words) * test_share)))
    nouns = tuple(
        Noun(word, category, "test" if index in held_out else "train")
        for index, word in enumerate(words)
    )
    _check(path, nouns)
    return nouns


def _noun(path: str | Path, line: int, row: dict[str, str | None]) -> Noun:
    answer, category, split = ((row[column] or "").strip() for column in COLUMNS)
    if not answer or not category:
        raise NounsError(
            f"{path}, line {line}: an answer and a category are needed, got {answer!r} and "
            f"{category!r}. Fill them in, or remove the line."
        )
    if split not in get_args(Split):
        raise NounsError(
            f"{path}, line {line}: {answer!r} has the split {split!r}; expected 'train' or 'test'."
        )
    return Noun(answer, category, cast(Split, split))


def _check(path: str | Path, nouns: Sequence[Noun]) -> None:
    if not nouns:
        raise NounsError(f"{path} holds no noun. Give at least one.")
    counts = Counter(noun.answer.casefold() for noun in nouns)
    twice = [answer for answer, count in counts.items() if count > 1]
    if twice:
        raise NounsError(
            f"{path} has {', '.join(map(repr, twice[:5]))} more than once. Every answer must be "
            "there once, and in one split only."
        )
