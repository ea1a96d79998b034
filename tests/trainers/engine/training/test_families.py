"""Training, like sampling, computes prefixes shared by a batch's rows only once."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trainers.engine.training.test_trainer import KINDS, data_of, model_of
from torch.utils._python_dispatch import TorchDispatchMode

from evert.trainers.engine.models.base_models import load_tokenizer
from evert.trainers.engine.training.families import cut, families, fold
from evert.trainers.engine.training.trainer import Trainer

Rows = list[np.ndarray]

rows_of_few_tokens = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=30).map(np.array), min_size=1, max_size=12
)


def some(count: int, seed: int) -> list[int]:
    return [random.Random(f"{seed}-{i}").randrange(200) for i in range(count)]


def group(prompt: int, replies: list[int], seed: int) -> Rows:
    """Return rows that share a prompt, with replies of these lengths."""
    first = some(prompt, seed)
    tails = [some(length, 1000 * seed + n) for n, length in enumerate(replies, start=1)]
    return [np.array(first + reply) for reply in tails]


def distinct_tokens(rows: Rows) -> int:
    """Return the number of nodes in the prefix tree of the rows."""
    return len({row[: n + 1].tobytes() for row in rows for n in range(len(row))})


@given(rows_of_few_tokens)
def test_every_row_is_in_one_family_and_is_restored_exactly(rows: Rows) -> None:
    folded = fold(rows)
    tokens = np.concatenate([*folded.stems, *folded.tails])[folded.places]
    assert tokens.tolist() == np.concatenate(rows).tolist()
    assert len(folded.owners) == len(folded.tails)
    parts = families(rows)
    assert sorted(row for family in parts for row in family.rows) == [*range(len(rows))]
    for family in parts:
        members = [rows[row] for row in family.rows]
        assert len({row[: family.stem].tobytes() for row in members}) == 1
        assert max(map(len, members)) == family.stem + family.tail


def test_the_members_of_a_group_are_a_family_even_if_groups_share_a_template() -> None:
    template = some(12, 99)
    groups = [group(30, [5, 9, 7, 6], number) for number in range(4)]
    rows = [np.array([*template, *row]) for rows in groups for row in rows]
    mixed = random.Random(0).sample(range(16), 16)
    parts = families([rows[i] for i in mixed])
    members = sorted(sorted(mixed[i] // 4 for i in family.rows) for family in parts)
    assert members == [[number] * 4 for number in range(4)]
    assert [(family.stem, family.tail, family.tails) for family in parts] == [(42, 9, 4)] * 4


def test_equal_rows_are_computed_once_and_short_prefixes_form_no_family() -> None:
    row, other = group(20, [8, 9], 0)
    folded = fold([row, other, row, row])
    assert len(folded.stems) == 1
    assert sorted(map(len, folded.tails)) == [8, 9]
    assert [len(stem) for stem in fold([row, row]).stems] == [28]
    assert [len(family.rows) for family in families(group(3, [20, 30, 25], 0))] == [1, 1, 1]


@given(rows_of_few_tokens, st.integers(1, 200))
def test_parts_respect_their_budget_and_lose_no_row(rows: Rows, budget: int) -> None:
    parts = cut(rows, budget)
    assert sorted(row for part in parts for row in part) == [*range(len(rows))]
    for part in parts:
        folded = fold([rows[row] for row in part])
        tokens = sum(map(len, [*folded.stems, *folded.tails]))
        assert len(part) == 1 or tokens <= budget


def test_a_family_that_is_too_large_is_split_evenly() -> None:
    rows = group(100, [50] * 8, 0)
    assert [len(part) for part in cut(rows, 330)] == [2, 2, 2, 2]
    assert [len(part) for part in cut(rows, 120)] == [1] * 8
    many = [row for number in range(32) for row in group(22, [8] * 8, number)]
    assert [len(part) for part in cut(many, 1024)] == [64, 64, 64, 64]
    assert len(cut(many[:32], 1024)) == 1


class Embedded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the tokens that pass through a model, including padding."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tokens = 0

    def __torch_dispatch__(
        self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.embedding.default:
            self.tokens += args[1].numel()
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS[:2])
def test_the_pass_of_a_group_computes_only_its_distinct_tokens(kind: str, tiny_model: str) -> None:
    model = model_of(kind, tiny_model)
    rows = [row for number in range(2) for row in group(40, [8, 7, 8, 8, 6, 8, 7, 8], number)]
    data = data_of([row.tolist() for row in rows], "cross_entropy", model)
    with Embedded() as embedded:
        trainer = Trainer(model, load_tokenizer(tiny_model))
        trainer.forward_backward(trainer.read(data, "cross_entropy"))
    assert distinct_tokens(rows) <= embedded.tokens <= 1.1 * distinct_tokens(rows)
    assert embedded.tokens < sum(map(len, rows)) / 3
