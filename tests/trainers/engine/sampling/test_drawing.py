"""Drawing: streams are reproducible and uniform, truncation keeps what it says, stops are read.

``test_sampler.py`` has the draws of a whole model; here are the parts on their own.
"""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from evert.trainers.engine.common.errors import SamplingRequestError
from evert.trainers.engine.sampling.drawing import Temper, draw, make_stops, stream_key, uniforms

LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))


def temper(
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Temper:
    return Temper(
        torch.tensor([temperature]),
        None if top_k is None else torch.tensor([top_k]),
        None if top_p is None else torch.tensor([top_p]),
        plain=temperature == 1.0 and top_k is None and top_p is None,
    )


def shares(how: Temper, count: int = 2000) -> list[float]:
    """How often each token is drawn when the uniform numbers cover [0, 1) evenly."""
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    drawn = [int(draw(LOGITS, how, u[None])[0]) for u in grid]
    return (np.bincount(drawn, minlength=4) / count).tolist()  # type: ignore[no-any-return]


def test_a_plain_draw_has_the_models_probabilities() -> None:
    assert shares(temper()) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=1e-3)


def test_a_temperature_sharpens_the_distribution() -> None:
    squares = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    assert shares(temper(0.5)) == pytest.approx(squares / squares.sum(), abs=1e-3)


def test_a_temperature_of_zero_is_greedy() -> None:
    assert shares(temper(0.0), 20) == [1.0, 0.0, 0.0, 0.0]


def test_a_temperature_of_next_to_nothing_is_greedy() -> None:
    assert shares(temper(1e-40), 20) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("top_k", "top_p"), [(20, 0.8), (50, 0.9), (5, 0.5), (7, 1.0), (512, 0.6)])
def test_truncation_keeps_what_transformers_keeps(top_k: int, top_p: float) -> None:
    logits = torch.randn(1, 512, generator=torch.Generator().manual_seed(0)) * 1.5
    theirs: Any = TopKLogitsWarper(top_k)(None, logits)
    theirs = TopPLogitsWarper(top_p)(None, theirs)
    uniform = torch.arange(4000, dtype=torch.float64) / 4000
    how = temper(top_k=top_k, top_p=top_p)
    drawn, _ = draw(logits.expand(4000, -1), how, uniform)
    assert set(drawn.tolist()) == set(torch.isfinite(theirs[0]).nonzero()[:, 0].tolist())


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (temper(top_k=2), 2),
        (temper(top_k=1), 1),
        (temper(top_k=100), 4),
        (temper(top_p=0.6), 2),
        (temper(top_p=0.5), 1),
        (temper(top_p=0.0), 1),
        (temper(top_p=1.0), 4),
        (temper(top_k=3, top_p=0.6), 2),
        # Of 0.5, 0.3, 0.15 and 0.05 the first two are 0.84 of the first three, and 0.8 of all.
        (temper(top_k=3, top_p=0.83), 2),
        (temper(top_k=2, top_p=0.63), 2),
        (temper(top_k=2, top_p=0.62), 1),
        (temper(top_p=0.62), 2),
    ],
)
def test_truncation_keeps_the_likeliest_tokens_in_their_proportions(how: Temper, kept: int) -> None:
    left = np.array([0.5, 0.3, 0.15, 0.05])
    left[kept:] = 0
    assert shares(how) == pytest.approx(left / left.sum(), abs=1e-3)


def test_logprobs_are_the_models_whatever_shapes_the_draw() -> None:
    half = torch.tensor([0.7], dtype=torch.float64)
    for how in (temper(), temper(0.5), temper(0.0), temper(top_k=2), temper(top_p=0.9)):
        token, logprob = draw(LOGITS, how, half)
        assert float(logprob) == pytest.approx(float(LOGITS[0, int(token)]), abs=1e-6)


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    for u in (0.0, 0.5, 1 - 2**-53):
        assert int(draw(logits, temper(), torch.tensor([u], dtype=torch.float64))[0]) == 1


def test_streams_are_uniform_and_do_not_repeat() -> None:
    keys = np.repeat(np.array([stream_key(i) for i in range(100)], dtype=np.uint64), 100)
    steps = np.tile(np.arange(100, dtype=np.uint64), 100)
    numbers = uniforms(keys, steps)
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(np.unique(numbers)) == 10_000
    assert numbers.mean() == pytest.approx(0.5, abs=0.02)
    assert np.histogram(numbers, 10, (0, 1))[0].min() > 850
    # Neighbours in a stream, and the same step of two streams, have nothing to do with each other.
    table = numbers.reshape(100, 100)
    for first, second in ((table[:, :-1], table[:, 1:]), (table[:-1], table[1:])):
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05


def test_a_key_depends_on_every_part_and_where_it_ends() -> None:
    assert stream_key(1, 2) == stream_key(1, 2)
    others = [stream_key(2, 1), stream_key(1, 2, 0), stream_key(-1, 2), stream_key(b"ab", b"c")]
    assert len({stream_key(1, 2), stream_key(b"a", b"bc"), *others}) == 6


def test_stops_are_read_as_the_sdk_writes_them() -> None:
    assert make_stops(None, {7}).tokens == {7}
    assert make_stops([], {7}).tokens == frozenset()
    assert make_stops([1, 2], {7}).tokens == {1, 2}
    assert make_stops("end", {7}).texts == ("end",)
    assert make_stops(["a", "b"], {7}).texts == ("a", "b")


@pytest.mark.parametrize("stop", ["end", ["a", "b"]])
def test_stops_in_text_join_the_models_own_end(stop: str | list[str]) -> None:
    # A base model that ends its reply with <|endoftext|> must not write on until "\n\nUser:".
    assert make_stops(stop, {7}).tokens == {7}
    assert make_stops(stop, {7}).hit([3, 7], lambda tokens: "")


def test_stops_in_tokens_are_all_that_stops() -> None:
    assert not make_stops([1], {7}).hit([3, 7], lambda tokens: "")


@pytest.mark.parametrize("stop", ["", ["a", ""]])
def test_an_empty_text_is_no_stop(stop: str | list[str]) -> None:
    with pytest.raises(SamplingRequestError, match="non-empty texts"):
        make_stops(stop, {7})
