"""Serves many requests with one running batch and one worker thread.

In each iteration, the worker scores given tokens, admits new rows (computing common prefixes once),
samples a token for each row, returns finished rows and runs a step for the others. On a GPU, the
worker starts the step before it reads the sampled tokens, so both run at the same time. New
requests join between steps. The worker is started by the first request, and exits after being
idle for a while. Samplers for several adapters of the same base model share a scheduler, and their
rows share a batch.

Rows are admitted as long as there is enough memory for their expected length. If replies get longer
than expected and no longer fit, the rows with the shortest replies are put back in the queue and
resumed later, which doesn't change the sampled tokens. If we still run out of memory, all rows in
the batch are put back, and half as many may run at a time. A request fails for lack of memory only
if one of its rows doesn't fit by itself.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tinker import types

from evert.trainers.engine.common.errors import EngineClosedError
from evert.trainers.engine.common.parallel import release_threads
from evert.trainers.engine.models.pictures import Picture
from evert.trainers.engine.sampling.batches import DecodeBatch, FrozenModel
from evert.trainers.engine.sampling.memory import is_out_of_memory
from evert.trainers.engine.sampling.running_batch import RunningBatch, SampleRow
from evert.trainers.engine.sampling.scoring import Scoring, score

MAX_ROWS = 256  # maximum number of rows decoded together; any others have to wait

CLOSED = (
    "This sampling client belongs to an embedded engine that is no longer in use. "
    "Sample inside the engine's `with` block."
)

_EXPECTED_REPLY = 1024  # reserve memory for at most this many additional tokens in a reply

_sequence_numbers = itertools.count()  # shared by all schedulers, so that ids are unique

_LINGER_SECONDS = 1.0
_GATHER_SECONDS = 0.0005
_GATHER_ROUNDS = 10


@dataclass
class SchedulerStats:
    """Counts of the work that a scheduler has done so far."""

    forward_passes: int = 0
    prompt_tokens: int = 0  # tokens computed for sampling or scoring; common prefixes count once
    sampled_tokens: int = 0
    scored_tokens: int = 0  # values read from the logits of given tokens
    largest_batch: int = 0  # largest number of rows decoded together


@dataclass(eq=False, kw_only=True)
class ScoreRequest(Scoring):
    """A request to score tokens."""

    model: FrozenModel
    pictures: Sequence[Picture] = ()  # images in ``tokens``, kept alive while the request runs
    future: "Future[list[Any]]" = field(default_factory=Future)


class Scheduler:
    """A running batch and its worker thread; see the module docstring."""

    def __init__(self) -> None:
        self.stats = SchedulerStats()
        self._lock = threading.Condition()
        self._waiting: deque[SampleRow] = deque()
        self._scores: list[ScoreRequest] = []
        self._runs: list[RunningBatch] = []
        self._max_rows = MAX_ROWS  # reduced when we run out of memory
        self._worker: threading.Thread | None = None
        self._closed = False

    def sample(self, rows: Sequence[SampleRow]) -> None:
        """Queue rows to be decoded. Each request's future receives its samples."""
        with self._lock:
            self._wake()
            self._waiting.extend(rows)

    def score(self, requests: Sequence[ScoreRequest]) -> None:
        """Queue tokens to be scored in one pass. Each request's future receives its values."""
        with self._lock:
            self._wake()
            self._scores.extend(requests)

    def close(self) -> None:
        """Stop the worker and fail pending requests. Can be called more than once."""
        with self._lock:
            self._closed = True
            worker = self._worker
            self._lock.notify_all()
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def _wake(self) -> None:
        """Start a worker if none is running. The lock must be held."""
        if self._closed:
            raise EngineClosedError(CLOSED)
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="evert-sampler", daemon=True)
            self._worker.start()
        self._lock.notify_all()

    def _work(self) -> None:
        with torch.inference_mode():
            while self._wait_for_work():
                try:
                    self._turn()
                except Exception as error:
                    self._fail_all(error)
        if self._closed:
            self._fail_all(
                EngineClosedError("The embedded engine was closed before the request finished.")
            )

    def _wait_for_work(self) -> bool:
        """Block until there is work. Return False if this worker should exit."""
        with self._lock:
            if not self._has_work():
                release_threads()
                self._lock.wait_for(lambda: self._has_work() or self._closed, _LINGER_SECONDS)
            if self._closed or not self._has_work():
                self._worker, self._max_rows = None, MAX_ROWS
                return False
        if not self._runs:
            self._gather()
        return True

    def _has_work(self) -> bool:
        return bool(self._waiting or self._scores or self._runs)

    def _gather(self) -> None:
        """Wait for a burst of requests to arrive, so that identical prompts run together."""
        for _ in range(_GATHER_ROUNDS):
            before = len(self._waiting) + len(self._scores)
            time.sleep(_GATHER_SECONDS)
            if len(self._waiting) + len(self._scores) == before:
                return

    def _turn(self) -> None:
        self._answer_scores()
        self._admit()
        for run in list(self._runs):
            dropped = run.make_room()
            with self._lock:
                self._waiting.extendleft(reversed(dropped))
            run.draw()
            ahead = run.is_ahead and not run.is_last
            if ahead and not self._step(run):
                continue
            for row, reason in run.read():
                self._finish(row, reason)
            if not run.rows:
                self._runs.remove(run)
            elif not ahead:
                self._step(run)

    def _step(self, run: RunningBatch) -> bool:
        try:
            run.step()
        except Exception as error:
            self._runs.remove(run)
            self._try_fewer(run.rows, error)
            return False
        self.stats.forward_passes += 1
        return True

    def _try_fewer(self, rows: Sequence[SampleRow], error: Exception) -> None:
        """If memory ran out, requeue the rows and halve the batch size. If not, fail the rows."""
        if not is_out_of_memory(error) or len(rows) == 1:
            for row in rows:
                _fail(row.request.future, error)
            return
        self._max_rows = len(rows) // 2
        with self._lock:
            self._waiting.extendleft(reversed(rows))

    def _answer_scores(self) -> None:
        with self._lock:
            scores, self._scores = self._scores, []
        scores = [request for request in scores if not request.future.cancelled()]
        for model in dict.fromkeys(request.model for request in scores):
            self._score([request for request in scores if request.model is model], model)

    def _score(self, scores: Sequence[ScoreRequest], model: FrozenModel) -> None:
        try:
            batch = model.new_batch()
            self.stats.scored_tokens += score(batch, scores)
        except Exception as error:
            half = len(scores) // 2
            if is_out_of_memory(error) and half:
                self._score(scores[:half], model)
                self._score(scores[half:], model)
                return
            for request in scores:
                _fail(request.future, error)
            return
        self._count(batch)
        for request in scores:
            with suppress(InvalidStateError):
                unknown = [None] * (len(request.tokens) - len(request.values))
                request.future.set_result([*unknown, *request.values])

    def _admit(self) -> None:
        if not self._waiting:
            return
        run = next((run for run in self._runs if run.batch.joinable), None)
        rows = self._take()
        if not rows:
            return
        present = [] if run is None else [*run.rows]
        try:
            if run is None:
                run = RunningBatch(rows[0].request.model)
                self._runs.append(run)
            before = run.batch.passes, run.batch.computed_tokens
            run.admit(rows)
        except Exception as error:
            if run is not None:  # the error may have left the batch in an inconsistent state
                self._runs.remove(run)
            self._try_fewer([*present, *rows], error)
            return
        self._count(run.batch, *before)
        self.stats.largest_batch = max(self.stats.largest_batch, len(run.rows))

    def _count(self, batch: DecodeBatch, passes: int = 0, tokens: int = 0) -> None:
        self.stats.forward_passes += batch.passes - passes
        self.stats.prompt_tokens += batch.computed_tokens - tokens

    def _take(self) -> list[SampleRow]:
        present = [row for run in self._runs for row in run.rows]
        longest = max(map(_expected_length, present), default=0)
        admitted: list[SampleRow] = []
        with self._lock:
            while self._waiting:
                row = self._waiting[0]
                if not row.request.future.done():
                    longest = max(longest, _expected_length(row))
                    count = len(present) + len(admitted) + 1
                    fits = count * longest <= row.request.model.cache_tokens
                    if count > 1 and not (fits and count <= self._max_rows):
                        break
                    admitted.append(row)
                self._waiting.popleft()
        return admitted

    def _finish(self, row: SampleRow, reason: types.StopReason) -> None:
        request = row.request
        self.stats.sampled_tokens += len(row.tokens)
        request.finished[row.index] = types.SampledSequence(
            stop_reason=reason,
            sequence_id=f"sequence-{next(_sequence_numbers)}",
            tokens_np=np.array(row.tokens, dtype=np.int32),
            logprobs_np=np.array(row.logprobs, dtype=np.float32),
        )
        if len(request.finished) == len(request.keys):
            with suppress(InvalidStateError):
                request.future.set_result([request.finished[i] for i in range(len(request.keys))])

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            rows = [*self._waiting, *(row for run in self._runs for row in run.rows)]
            futures = [*(row.request.future for row in rows), *(ask.future for ask in self._scores)]
            self._waiting.clear()
            self._scores, self._runs = [], []
        for future in futures:
            _fail(future, error)


def _expected_length(row: SampleRow) -> int:
    longest = len(row.request.prompt) + row.request.max_tokens
    return min(longest, row.length + _EXPECTED_REPLY)


def _fail(future: "Future[Any]", error: Exception) -> None:
    with suppress(InvalidStateError):
        future.set_exception(error)
