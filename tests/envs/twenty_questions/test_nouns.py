"""Lists of nouns of one's own: a CSV, or a word a line."""

from pathlib import Path

import pytest
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions import env as cookbook

from evert.envs.twenty_questions.errors import NounsError
from evert.envs.twenty_questions.nouns import Noun, load_nouns, load_words, of_split


def written(folder: Path, text: str) -> Path:
    path = folder / "nouns.csv"
    path.write_text(text)
    return path


def test_a_csv_keeps_its_order_and_its_split_and_may_have_more(tmp_path: Path) -> None:
    """A byte order mark from a spreadsheet, too."""
    text = "\ufeffsplit,answer,note,category\ntest,dog,x,animal\ntrain,oak,,tree\n"
    nouns = load_nouns(written(tmp_path, text))

    assert nouns == (Noun("dog", "animal", "test"), Noun("oak", "tree", "train"))
    assert of_split(nouns, "test") == [Noun("dog", "animal", "test")]


HEAD = "answer,category,split\n"


WRONG = {
    "answer,kind\ndog,animal\n": "lacks the columns category, split; its first line names",
    "answer,category\ndog,animal\n": "lacks the column split;.*load_words",
    "": "its first line names none",
    HEAD: "holds no noun",
    f"{HEAD}dog,animal,dev\n": "line 2: 'dog' has the split 'dev'",
    f"{HEAD}dog,animal\n": "line 2: 'dog' has the split ''",
    f"{HEAD}dog,,train\n": "line 2: an answer and a category are needed",
    f"{HEAD}dog,animal,train\nDog,animal,test\n": "has 'dog' more than once",
}


def test_what_is_wrong_with_a_csv_is_said(tmp_path: Path) -> None:
    for text, message in WRONG.items():
        with pytest.raises(NounsError, match=f"nouns.csv.*{message}"):
            load_nouns(written(tmp_path, text))


def test_words_are_split_by_a_seed(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(f"word{n}" for n in range(10)) + "\n\n")
    nouns = load_words(path)
    theirs = Path(cookbook.__file__).parent / "common_english_nouns.txt"

    assert (len(nouns), len(of_split(nouns, "test"))) == (10, 2)
    assert {noun.category for noun in nouns} == {"thing"}
    assert load_words(path) == nouns != load_words(path, seed=1)
    assert not of_split(load_words(path, test_share=0.0), "test")
    assert load_words(theirs, category="noun")[0].answer == "actor"


def test_words_that_are_none_or_twice_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NounsError, match="holds no noun"):
        load_words(written(tmp_path, "\n"))
    with pytest.raises(NounsError, match="has 'a' more than once"):
        load_words(written(tmp_path, "a\nA\n"))
    with pytest.raises(NounsError, match="a share between 0 and 1, got 20"):
        load_words(written(tmp_path, "a\n"), test_share=20)
