"""Drawing tokens: random streams are uniform, top-k and top-p are exact, stops are parsed.

``test_oracle.py`` checks that whole replies follow the distributions that transformers computes.
"""

from typing import Any

import numpy as np
import pytest
import torch

from evert.trainers.engine.common.errors import SamplingRequestError
from evert.trainers.engine.sampling.drawing import (
    BatchParams,
    draw,
    make_stops,
    stream_key,
    uniforms,
)

LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))


def params(
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> BatchParams:
    return BatchParams(
        torch.tensor([temperature]).expand(4000),
        None if top_k is None else torch.tensor([top_k]).expand(4000),
        None if top_p is None else torch.tensor([top_p]).expand(4000),
        plain=temperature == 1.0 and top_k is None and top_p is None,
    )


def shares(how: BatchParams, count: int = 2000) -> list[float]:
    """Return each token's share of the draws, for random numbers evenly spaced in [0, 1)."""
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    drawn, _ = draw(LOGITS.expand(count, -1), how.of(slice(count)), grid)
    return (np.bincount(drawn, minlength=4) / count).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("top_k", "top_p", "count"),
    [
        (None, None, 4), (2, None, 2), (1, None, 1), (100, None, 4), (None, 0.6, 2), (2, 0.62, 1),
        (None, 0.5, 1), (None, 0.0, 1), (None, 1.0, 4), (3, 0.6, 2), (None, 0.62, 2), (2, 0.63, 2),
        # Of 0.5, 0.3, 0.15 and 0.05, the first two make up 84% of the first three, but 80% of all.
        (3, 0.83, 2),
    ],
)  # fmt: skip
def test_a_draw_keeps_the_most_likely_tokens_in_proportion(
    top_k: int | None, top_p: float | None, count: int
) -> None:
    expected = np.array([0.5, 0.3, 0.15, 0.05])
    expected[count:] = 0
    shown = shares(params(top_k=top_k, top_p=top_p))
    assert shown == pytest.approx(expected / expected.sum(), abs=1e-3)


def test_a_draw_uses_its_temperature() -> None:
    squares = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    assert shares(params(0.5)) == pytest.approx(squares / squares.sum(), abs=1e-3)
    for greedy in (0.0, 1e-40):
        assert shares(params(greedy), 20) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn(number: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    uniform = torch.tensor([number], dtype=torch.float64)
    assert int(draw(logits, params().of(slice(1)), uniform)[0]) == 1


@pytest.mark.parametrize("size", [1, 100, 1025, 1536, 5000])
def test_a_draw_takes_the_token_where_the_cumulative_sum_passes_the_random_number(
    size: int,
) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(size)) * 3
    logits[:, 1::2] = float("-inf")  # including the last token
    logits[2, 0] = 90  # the other tokens vanish in float32
    weights = torch.log_softmax(logits, -1).exp().double()
    sums = weights.cumsum(-1)
    for number in (0.0, 1e-40, 0.3, 0.999999, 1 - 2**-53):
        target = number * sums[:, -1:]
        uniform = torch.full((3,), number, dtype=torch.float64)
        tokens = draw(logits, params().of(slice(3)), uniform)[0][:, None]
        passed, weight = sums.gather(1, tokens), weights.gather(1, tokens)
        assert bool((passed >= target - 1e-15).all())
        assert bool((passed - weight <= target + 1e-15).all())
        assert bool((weight > 0).all())


@pytest.mark.parametrize("size", [100, 5000])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_do_not_affect_other_rows(size: int, temperature: float) -> None:
    logits, numbers = torch.randn(3, size), torch.full((3,), 0.5, dtype=torch.float64)
    expected = draw(logits, params(temperature).of(slice(3)), numbers)[0]
    logits[1] = float("nan")
    tokens, logprobs = draw(logits, params(temperature).of(slice(3)), numbers)
    assert 0 <= int(tokens[1]) < size
    assert logprobs.isnan().tolist() == [False, True, False]
    assert tokens[::2].tolist() == expected[::2].tolist()


@pytest.mark.parametrize("how", [params(), params(0.5, top_k=40), params(top_p=0.9)])
def test_drawing_many_rows_equals_drawing_each_row_separately(how: BatchParams) -> None:
    logits = torch.randn(300, 5000, generator=torch.Generator().manual_seed(0)) * 3
    numbers = torch.rand(300, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = [slice(row, row + 1) for row in range(300)]
    alone = [draw(logits[row], how.of(row), numbers[row]) for row in rows]
    tokens, logprobs = draw(logits, how.of(slice(300)), numbers)
    assert tokens.tolist() == [int(token) for token, _ in alone]
    assert logprobs.tolist() == [float(logprob) for _, logprob in alone]


def test_random_streams_are_uniform_and_do_not_repeat() -> None:
    keys = np.repeat(np.array([stream_key(i) for i in range(100)], dtype=np.uint64), 100)
    steps = np.tile(np.arange(100, dtype=np.uint64), 100)
    numbers = uniforms(keys, steps)
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(np.unique(numbers)) == 10_000
    assert numbers.mean() == pytest.approx(0.5, abs=0.02)
    assert np.histogram(numbers, 10, (0, 1))[0].min() > 850
    # Consecutive numbers in a stream are independent, and so are two streams at the same step.
    table = numbers.reshape(100, 100)
    for first, second in ((table[:, :-1], table[:, 1:]), (table[:-1], table[1:])):
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05


def test_a_stream_key_depends_on_every_part_and_its_boundaries() -> None:
    assert stream_key(1, 2) == stream_key(1, 2)
    others = [stream_key(2, 1), stream_key(1, 2, 0), stream_key(-1, 2), stream_key(b"ab", b"c")]
    assert len({stream_key(1, 2), stream_key(b"a", b"bc"), *others}) == 6


@pytest.mark.parametrize(
    ("stop", "tokens", "texts"),
    [
        (None, {7}, ()), ([], set(), ()), ([1, 2], {1, 2}, ()),
        # A base model that ends its reply with <|endoftext|> must not continue to "User:".
        ("end", {7}, ("end",)), (["a", "b"], {7}, ("a", "b")),
    ],
)  # fmt: skip
def test_every_form_of_stop_is_parsed(stop: Any, tokens: set[int], texts: tuple[str, ...]) -> None:
    stops = make_stops(stop, {7})
    assert (stops.tokens, stops.texts) == (frozenset(tokens), texts)
    assert stops.hit([3, 7], lambda _: "") is (7 in tokens)


@pytest.mark.parametrize("stop", ["", ["a", ""]])
def test_an_empty_stop_is_refused(stop: Any) -> None:
    with pytest.raises(SamplingRequestError, match="non-empty strings"):
        make_stops(stop, {7})
