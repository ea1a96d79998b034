"""Decoding steps captured as CUDA graphs, on a CUDA stand-in."""

import copy
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tests.kit import Logs
from tests.trainers.engine.sampling.test_prefixes import family, tokens
from tests.trainers.engine.standin import CUDA, Graph, stand_in

from evert.trainers.engine.sampling.frozen import FrozenLean
from evert.trainers.engine.sampling.graphs import rounded


def play(model: Any) -> list[np.ndarray]:
    """Return a batch's logits while rows join, leave and grow, with and without a shared prefix."""
    with torch.inference_mode():
        batch = FrozenLean(model).new_batch()
        logits: list[Any] = []

        def step(times: int) -> None:
            for _ in range(times):
                ids = torch.arange(batch.size, device=batch.device) + len(logits)
                logits.append(batch.step(ids % 97).cpu())

        logits.append(batch.admit(family(400, [50] * 4), [3] * 4).logits.cpu())
        step(6)
        batch.keep([11, *range(8)])
        step(6)
        logits.append(batch.admit([tokens(5, 3)], [1]).logits.cpu())
        step(20)
        batch.keep([9])
        step(6)
        batch.keep([])
        logits.append(batch.admit([tokens(9, 5), tokens(30, 6)], [1, 4]).logits.cpu())
        step(6)
        batch.admit([tokens(300, 7)], [1])  # makes the cache grow
        batch.keep([*range(5)])
        step(40)
    return [logits.numpy() for logits in logits]


def farthest(rows: list[np.ndarray], expected: list[np.ndarray]) -> float:
    pairs = zip(rows, expected, strict=True)
    return float(max(np.abs(ours - theirs).max() for ours, theirs in pairs))


@pytest.fixture(scope="module")
def expected(model: Any) -> list[np.ndarray]:
    return play(model)


def test_a_graph_gives_the_same_logits_as_its_operations_for_any_rows(
    model: Any, expected: list[np.ndarray]
) -> None:
    with stand_in() as device:
        logits = play(copy.deepcopy(model).to(CUDA))

    assert farthest(logits, expected) < 1e-4
    assert device.replays > 60  # of 84 steps


def test_a_step_that_cannot_be_captured_runs_without_a_graph(
    model: Any, expected: list[np.ndarray], caplog: Logs
) -> None:
    refusal = RuntimeError("operation not permitted")
    with stand_in() as device, patch.object(Graph, "capture_begin", side_effect=refusal):
        logits = play(copy.deepcopy(model).to(CUDA))

    assert farthest(logits, expected) < 1e-4
    assert device.replays == 0
    assert [record.message for record in caplog.records] == [
        "Decoding without CUDA graphs, because capturing a step failed: operation not permitted"
    ]


@pytest.mark.parametrize(("parts", "least", "most"), [(2, 1, 1.5), (8, 1, 1.125), (8, 128, 1.125)])
def test_sizes_are_rounded_up_to_a_few_values(parts: int, least: int, most: float) -> None:
    sizes = range(1, 4097)
    bound = {size: rounded(size, parts, least) for size in sizes}

    assert len({*bound.values()}) <= 12 * parts + 1
    assert all(size <= bound[size] <= max(most * size, -(-size // least) * least) for size in sizes)
    assert {size % least for size in bound.values()} == {0}
