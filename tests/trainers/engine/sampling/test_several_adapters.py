"""Samplers of several adapters of one base are served in one batch.

1. Each row has its own adapter's log-probabilities, whoever is beside it: other adapters, of other
   ranks and other layers, and the base itself. So have rows that come and go.
2. What one adapter has computed of a prompt no other one takes for its own.
3. Samplers of one base share the passes of a decoding; a model with weights of its own does not.
4. Closing one sampler leaves the others' work alone; closing the engine answers all.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainers.engine.sampling.test_sampler import fresh_logprobs, params, prompts
from tinker import types

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import EngineClosedError
from evert.trainers.engine.models.base_models import attach_lora, load_model, load_tokenizer
from evert.trainers.engine.models.loading import EngineSettings
from evert.trainers.engine.models.shared import SharedBases
from evert.trainers.engine.sampling.drawing import Stops
from evert.trainers.engine.sampling.frozen import FrozenLean
from evert.trainers.engine.sampling.running_batch import Request, Row, RunningBatch
from evert.trainers.engine.sampling.sampler import Sampler

CPU = torch.device("cpu")

KINDS: list[dict[str, Any]] = [
    {"rank": 4},
    {"rank": 9, "train_mlp": False},
    {"rank": 2, "train_attn": False},
]


def changed(model: Any, seed: int) -> Any:
    """An adapter that does something."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module")
def models(tiny_model: str) -> list[Any]:
    """Three adapters of one base, and the base."""
    shared = SharedBases()

    def tree() -> Any:
        return shared.tree("tiny", lambda: load_model(tiny_model, CPU, torch.float32))

    adapted = [
        changed(attach_lora(tree(), seed=seed, **kind), seed) for seed, kind in enumerate(KINDS)
    ]
    return [*adapted, tree()]


@pytest.fixture
def frozen(models: list[Any]) -> list[FrozenLean]:
    return [FrozenLean(model) for model in models]


def rows_of(
    model: FrozenLean, tokenizer: Any, prompt: list[int], count: int, length: int
) -> list[Row]:
    """Greedy replies of so many tokens."""
    request = Request(
        model, tokenizer, prompt, params(temperature=0.0), Stops(frozenset()), length,
        keys=[*range(count)],
    )  # fmt: skip
    return [Row(request, index) for index in range(count)]


def drain(run: RunningBatch, rows: list[Row], most_steps: int = 10**6) -> None:
    """Decode until no row of ``rows`` runs, or for some steps."""
    with torch.inference_mode():
        while most_steps and any(row in run.rows for row in rows):
            most_steps -= 1
            run.draw()
            if run.rows:
                run.step()


def check(model: Any, row: Row) -> None:
    """A row's tokens and log-probabilities are those of its own model."""
    prompt = row.request.prompt
    expected = fresh_logprobs(model, prompt + row.tokens)[len(prompt) - 1 :]
    assert row.logprobs == pytest.approx(expected, abs=1e-4)
    with torch.inference_mode():
        best = model(torch.tensor([prompt + row.tokens])).logits[0].argmax(-1)
    assert row.tokens == best[len(prompt) - 1 : -1].tolist()


def test_each_row_of_a_batch_has_its_own_adapter(
    models: list[Any], frozen: list[FrozenLean], tiny_model: str
) -> None:
    tokenizer = load_tokenizer(tiny_model)
    run = RunningBatch(frozen[3])
    asked = [
        rows_of(model, tokenizer, prompt, 2, 5 + 3 * number)
        for number, model in enumerate(frozen)
        for prompt in prompts(10 + number, 23)
    ]
    rows = [row for each in asked for row in each]
    with torch.inference_mode():
        run.admit(rows)
    assert len(run.rows) == 16
    drain(run, rows)
    for row in rows:
        check(models[frozen.index(row.request.model)], row)  # type: ignore[arg-type]
    # The same prompt and greedy, but not the same model: else nothing was shown.
    replies = {tuple(row.tokens[:5]) for row in rows if len(row.request.prompt) == 23}
    assert len(replies) == 4


def test_adapters_come_and_go_while_the_batch_runs(
    models: list[Any], frozen: list[FrozenLean], tiny_model: str
) -> None:
    tokenizer = load_tokenizer(tiny_model)
    run = RunningBatch(frozen[0])
    rows: list[Row] = []
    with torch.inference_mode():
        for number, (length, model) in enumerate(zip((30, 4, 20, 9), frozen, strict=True)):
            new = rows_of(model, tokenizer, prompts(12 + number)[0], 1, length)
            run.admit(new)
            rows += new
            drain(run, rows, 3)
    drain(run, rows)
    assert [len(row.tokens) for row in rows] == [30, 4, 20, 9]
    for model, row in zip(models, rows, strict=True):
        check(model, row)


def test_rows_behind_a_long_beginning_stand_beside_rows_of_another_adapter(
    models: list[Any], frozen: list[FrozenLean], tiny_model: str
) -> None:
    tokenizer = load_tokenizer(tiny_model)
    long, *ends = prompts(300, 8, 9, 10)
    run = RunningBatch(frozen[0])
    rows = [row for end in ends for row in rows_of(frozen[0], tokenizer, long + end, 3, 6)]
    rows += rows_of(frozen[1], tokenizer, long + ends[0], 2, 9)
    with torch.inference_mode():
        run.admit(rows)
    drain(run, rows)
    for row in rows:
        check(models[0 if row.request.model is frozen[0] else 1], row)


@pytest.fixture
def sampler_of(tiny_model: str) -> Iterator[Callable[..., Sampler]]:
    engine = Engine(EngineSettings(device="cpu", full_parameter=False))
    tokenizer = load_tokenizer(tiny_model)
    yield lambda model: engine.new_sampler(model, tokenizer)
    engine.close()


def test_what_one_adapter_has_computed_no_other_takes_for_its_own(
    models: list[Any], sampler_of: Callable[..., Sampler]
) -> None:
    prompt = prompts(60)[0]
    for model in models:
        for _ in range(2):
            found = sampler_of(model).score(prompt).result(timeout=60)
            assert found[1:] == pytest.approx(fresh_logprobs(model, prompt), abs=1e-4)


def test_samplers_of_one_base_share_the_passes_of_a_decoding(
    models: list[Any], sampler_of: Callable[..., Sampler]
) -> None:
    samplers = [sampler_of(model) for model in models]
    assert len({id(sampler.scheduler) for sampler in samplers}) == 1
    futures = [
        sampler.sample(prompt, 1, params(max_tokens=100))
        for sampler, prompt in zip(samplers, prompts(9, 10, 11, 12), strict=True)
    ]
    for future in futures:
        assert len(future.result(timeout=60)[0].tokens) == 100
    stats = samplers[0].stats
    assert stats.largest_batch == 4
    assert stats.forward_passes < 200  # alone: 400 and more


def test_a_model_with_weights_of_its_own_has_a_batch_of_its_own(
    tiny_model: str, sampler_of: Callable[..., Sampler]
) -> None:
    model = load_model(tiny_model, CPU, torch.float32)
    assert sampler_of(model).scheduler is not sampler_of(model).scheduler


def test_a_closed_sampler_leaves_the_others_work_alone(
    models: list[Any], sampler_of: Callable[..., Sampler]
) -> None:
    first, second = (sampler_of(model) for model in models[:2])
    waiting = second.sample(prompts(9)[0], 1, params(max_tokens=200))
    first.close()
    with pytest.raises(EngineClosedError, match="no longer in use"):
        first.sample([1, 2], 1, params())
    assert len(waiting.result(timeout=60)[0].tokens) == 200


def test_closing_the_engine_answers_whoever_waits(tiny_model: str, tmp_path: Path) -> None:
    engine = Engine(EngineSettings(tmp_path, device="cpu", full_parameter=False))
    sampler = engine.base_sampler(tiny_model)
    waiting = [
        sampler.sample(prompts(9)[0], 1, types.SamplingParams(max_tokens=500, stop=[]))
        for _ in range(3)
    ]
    engine.close()
    for future in waiting:
        with pytest.raises(EngineClosedError):
            future.result(timeout=60)
