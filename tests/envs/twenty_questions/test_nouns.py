"""Lists of nouns of one's own: a CSV, or a word a line.

1. A CSV keeps its order, its split, and may have further columns.
2. Words are split by a seed.
3. What is wrong with a file is said with its name, and where possible the line.
"""

from pathlib import Path

import pytest
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions import env as cookbook

from evert.bridge.errors import EvertError
from evert.envs.twenty_questions.errors import NounsError
from evert.envs.twenty_questions.nouns import Noun, load_nouns, load_words, of_split


def written(folder: Path, text: str) -> Path:
    path = folder / "nouns.csv"
    path.write_text(text)
    return path


def test_a_csv_keeps_its_order_and_its_split(tmp_path: Path) -> None:
    path = written(tmp_path, "split,answer,note,category\ntest,dog,x,animal\ntrain,oak,,tree\n")

    assert load_nouns(path) == (Noun("dog", "animal", "test"), Noun("oak", "tree", "train"))
    assert of_split(load_nouns(path), "test") == [Noun("dog", "animal", "test")]


def test_a_csv_from_a_spreadsheet_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffanswer,category,split\ndog,animal,train\n")

    assert load_nouns(path) == (Noun("dog", "animal", "train"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("answer,kind\ndog,animal\n", "lacks the columns category, split; its first line names"),
        ("answer,category\ndog,animal\n", "lacks the column split;.*load_words"),
        ("", "its first line names none"),
        ("answer,category,split\n", "holds no noun"),
        ("answer,category,split\ndog,animal,dev\n", "line 2: 'dog' has the split 'dev'"),
        ("answer,category,split\ndog,animal\n", "line 2: 'dog' has the split ''"),
        ("answer,category,split\ndog,,train\n", "line 2: an answer and a category are needed"),
        (
            "answer,category,split\ndog,animal,train\nDog,animal,test\n",
            "has 'dog' more than once",
        ),
    ],
)
def test_what_is_wrong_with_a_csv_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NounsError, match=message) as caught:
        load_nouns(written(tmp_path, text))

    assert isinstance(caught.value, EvertError)
    assert "nouns.csv" in str(caught.value)


def test_words_are_split_by_a_seed(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(f"word{n}" for n in range(10)) + "\n\n")
    nouns = load_words(path)

    assert len(nouns) == 10
    assert len(of_split(nouns, "test")) == 2
    assert {noun.category for noun in nouns} == {"thing"}
    assert load_words(path) == nouns
    assert load_words(path, seed=1) != nouns
    assert not of_split(load_words(path, test_share=0.0), "test")


def test_the_cookbooks_list_of_common_english_nouns_is_read() -> None:
    path = Path(cookbook.__file__).parent / "common_english_nouns.txt"

    nouns = load_words(path, category="noun")

    assert len(nouns) > 100
    assert nouns[0].answer == "actor"


def test_words_that_are_none_or_twice_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NounsError, match="holds no noun"):
        load_words(written(tmp_path, "\n"))
    with pytest.raises(NounsError, match="has 'a' more than once"):
        load_words(written(tmp_path, "a\nA\n"))
    with pytest.raises(NounsError, match="a share between 0 and 1, got 20"):
        load_words(written(tmp_path, "a\n"), test_share=20)
