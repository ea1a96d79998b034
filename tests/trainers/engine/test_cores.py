"""Parallel passes give bit-identical results on any number of cores."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.kit import Patch
from tests.trainers.engine.training.test_trainer import CPU, KINDS, datum, gradients, model_of
from tests.trainers.kit import sequences, snapshot, spied

from evert.trainers.engine.common import parallel
from evert.trainers.engine.common.parallel import WorkerThread, bounded_map, lanes, thread_map
from evert.trainers.engine.models.base_models import load_model, load_tokenizer
from evert.trainers.engine.models.lean import LeanModel
from evert.trainers.engine.sampling import prefill, scheduler
from evert.trainers.engine.sampling.frozen import freeze
from evert.trainers.engine.sampling.scheduler import Scheduler
from evert.trainers.engine.training.passes import Passes
from evert.trainers.engine.training.trainer import Trainer


def test_calls_run_concurrently_and_their_results_are_in_order() -> None:
    together = threading.Barrier(3, timeout=60)

    def call(number: int) -> tuple[int, bool]:
        together.wait()  # passes only if three calls run concurrently
        return number, threading.current_thread() is threading.main_thread()

    assert [*bounded_map(call, range(9), 3)] == [(number, False) for number in range(9)]
    assert thread_map(call, [5, 6, 7]) == [(5, True), (6, False), (7, False)]
    assert thread_map(str, []) == []


@pytest.mark.parametrize(("items", "limit"), [(5, 1), (1, 5), (0, 5)])
def test_a_single_call_runs_in_this_thread(items: int, limit: int) -> None:
    threads = [*bounded_map(lambda _: threading.current_thread(), range(items), limit)]
    assert threads == [threading.current_thread()] * items


def test_an_error_is_raised_in_order_and_leaves_no_thread() -> None:
    def fails_at(wrong: int) -> Callable[[int], int]:
        def call(number: int) -> int:
            if number == wrong:
                raise LookupError(number)
            return number

        return call

    results = bounded_map(fails_at(1), range(4), 2)
    assert next(results) == 0
    with pytest.raises(LookupError):
        next(results)
    for wrong in (0, 1):
        with pytest.raises(LookupError):
            thread_map(fails_at(wrong), range(2))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("evert-lane")]


@pytest.mark.parametrize(("threads", "expected"), [(1, 8), (4, 2), (16, 1)])
def test_the_number_of_lanes_is_the_cores_divided_by_the_threads(
    threads: int, expected: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert lanes(CPU) == expected
    assert lanes(torch.device("cuda")) == 1


def _held() -> set[str]:
    """Return the thread ids of this process, including threads of system libraries."""
    return set(os.listdir("/proc/self/task"))


@pytest.mark.skipif(parallel._openmp() is None, reason="PyTorch uses a different OpenMP")
def test_idle_workers_keep_no_pytorch_threads(training: Any, monkeypatch: Patch) -> None:
    during: list[set[str]] = []
    turn = Scheduler._turn

    def compute() -> None:
        torch.set_num_threads(3)  # applies to the calling thread
        torch.ones(2**21).exp_()
        during.append(_held())

    def turn_and_compute(self: Scheduler) -> None:
        compute()
        turn(self)

    monkeypatch.setattr(Scheduler, "_turn", turn_and_compute)
    monkeypatch.setattr(scheduler, "_LINGER_SECONDS", 600)
    client = snapshot(training)
    worker = WorkerThread("tested")
    work = (  # (call, number of threads that remain): only the sampler's thread stays
        (lambda: worker.submit(compute).result(), 0),
        (lambda: sequences(client, max_tokens=1), 1),
    )
    before = torch.get_num_threads()
    try:
        worker.submit(torch.set_num_threads, 1).result()
        for call, stay in work:
            idle = _held()
            during.clear()
            call()
            born = during[0] - idle
            assert len(born) >= stay + 1
            deadline = time.monotonic() + 60
            while len(born & _held()) > stay and time.monotonic() < deadline:
                time.sleep(0.01)  # they exit by themselves
            assert len(born & _held()) <= stay
    finally:
        torch.set_num_threads(before)
        worker.shutdown()


def thread_name(*_: object) -> str:
    return threading.current_thread().name.split("_")[0]


@pytest.mark.parametrize("kind", KINDS[1:3])
def test_a_training_pass_is_bit_identical_with_one_thread_and_with_several(
    kind: str, tiny_model: str, monkeypatch: Patch
) -> None:
    model = model_of(kind, tiny_model)
    trainer = Trainer(model, load_tokenizer(tiny_model))
    data = [datum(n, n) for n in (60, 40, 3, 17, 17, 1, 52, 52)]
    threads = spied(monkeypatch, Passes, "logprobs", thread_name)  # the thread of each pass
    monkeypatch.setitem(prefill._CHUNK_TOKENS, "cpu", 64)

    def found(number: int) -> tuple[list[torch.Tensor], list[list[float]], dict[str, float], int]:
        monkeypatch.setattr(parallel, "cores", lambda: number * torch.get_num_threads())
        threads.clear()
        for _ in range(2):  # the second adds to the gradient of the first
            output = trainer.forward_backward(trainer.read(data, "cross_entropy"))
        slopes = gradients(model)
        model.zero_grad()
        logprobs = [output["logprobs"].tolist() for output in output.loss_fn_outputs]
        return slopes, logprobs, output.metrics, len(threads)

    alone, alone_threads = found(1), {*threads}
    several, several_threads = found(3), {*threads}

    assert (alone_threads, several_threads) == ({"MainThread"}, {"evert-lane"})
    assert all(map(torch.equal, alone[0], several[0]))
    assert alone[1:] == several[1:]


SHORT = [[1 + i, 3, 5][: 2 + i % 2] for i in range(200)]
BEHIND_A_STEM = [[7] * 200 + row for row in SHORT]
LONG = [[1 + i, *range(3 * i, 3 * i + 20 + i % 5)] for i in range(60)]


@pytest.mark.parametrize(
    ("prompts", "asked_before", "steps"),
    [(SHORT, 0, 3), (BEHIND_A_STEM, 0, 3), (LONG, 0, 0), (LONG, 12, 0)],
    ids=["short prompts", "behind a stem", "new prompts", "resumed prompts"],
)
def test_sampling_is_bit_identical_with_one_thread_and_with_several(
    prompts: list[list[int]], asked_before: int, steps: int, tiny_model: str, monkeypatch: Patch
) -> None:
    model = load_model(tiny_model, CPU, torch.float32)
    threads = spied(monkeypatch, LeanModel, "hidden", thread_name)

    def found(number: int) -> tuple[torch.Tensor, set[str]]:
        monkeypatch.setattr(parallel, "cores", lambda: number * torch.get_num_threads())
        with torch.inference_mode():
            frozen = freeze(model)
            if asked_before:
                frozen.new_batch().admit([row[:asked_before] for row in prompts], [1] * 60)
            threads.clear()
            batch = frozen.new_batch()
            admitted = batch.admit(prompts, [1] * len(prompts))
            logits = [admitted.logits]
            for _ in range(steps):
                logits.append(batch.step(logits[-1].argmax(-1)))
        order = torch.tensor(admitted.owners).argsort()
        return torch.cat([step[order] for step in logits]), {*threads}

    alone, several = found(1), found(2)

    assert (alone[1], several[1]) == ({"MainThread"}, {"MainThread", "evert-lane"})
    torch.testing.assert_close(alone[0], several[0], atol=2e-5, rtol=1e-4)
