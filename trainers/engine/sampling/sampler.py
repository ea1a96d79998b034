"""The batching sampler: many requests in, one running batch, one worker thread.

Requests from any thread or event loop meet in a queue. The worker admits what has arrived (equal
beginnings are computed once), draws one token for every row, answers the rows that have ended, and
steps the rest; new requests join between two steps. Requests for log-probabilities of given tokens
are computed together, ahead of the decoding. The worker starts with the first request and ends
when there has been nothing to do for a while, so an idle sampler owns no thread.

A sampled token's log-probability is the model's own, at temperature 1 and untruncated, whatever
the request's temperature, ``top_k`` and ``top_p``: it equals a fresh forward pass over the same
tokens. The token that ends a reply is part of the reply.

Reproducibility: a sample draws from a random stream of its own, keyed by the sampler's seed, the
prompt's tokens, how often that prompt was asked before, and the sample's index (a request with a
``seed`` is keyed by that seed, the prompt and the index alone). So the same requests give the same
tokens whatever else is in the batch, and in whatever order different prompts arrive; equal prompts
are told apart by the order they arrive in. (Up to rounding: what runs beside a row can change the
last bit of its logits, which matters where a random number falls within 1e-7 of the border between
two tokens.)
"""

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tinker import types

from evert.trainers.engine.errors import EngineClosedError, SamplingRequestError
from evert.trainers.engine.models.pictures import Picture
from evert.trainers.engine.sampling.drawing import make_stops, stream_key
from evert.trainers.engine.sampling.frozen import FrozenModel
from evert.trainers.engine.sampling.running_batch import Request, Row, RunningBatch
from evert.trainers.engine.sampling.scoring import Read, Scoring, log_probabilities, score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_ROWS = 256
"""Most rows decoded together; further requests wait."""

_EXPECTED_REPLY = 1024
"""Tokens a reply is expected to need at most when rows are fitted into memory."""

_sequence_numbers = itertools.count()
"""Of all samplers' sequences: their ids are told apart within a session."""

_LINGER_SECONDS = 1.0
_GATHER_SECONDS = 0.0005
_GATHER_ROUNDS = 10


@dataclass
class SamplerStats:
    """What a sampler has done so far."""

    forward_passes: int = 0
    """Forward passes of any kind."""
    prompt_tokens: int = 0
    """Given tokens that went through the model, to sample or to score; what rows share, and what
    is remembered, is not counted twice."""
    sampled_tokens: int = 0
    scored_tokens: int = 0
    """Given tokens of which something was computed from the logits: their log-probability."""
    largest_batch: int = 0
    """Most rows decoded together."""


@dataclass(eq=False)
class _Score(Scoring):
    pictures: Sequence[Picture] = ()
    future: "Future[list[Any]]" = field(default_factory=Future)


class Sampler:
    """Samples from one frozen model; see the module's docstring."""

    def __init__(
        self,
        model: FrozenModel,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        seed: int,
        context_length: int,
        end_tokens: frozenset[int],
        vocabulary: int = 2**31,
    ) -> None:
        """Take over a frozen model.

        Args:
            model: The model.
            tokenizer: Decodes replies where a request has stops in text.
            seed: Seed of all random streams.
            context_length: Most tokens of prompt and reply together.
            end_tokens: Tokens that end a reply when a request names no stop.
            vocabulary: Tokens that the model knows.
        """
        self.stats = SamplerStats()
        self._model = model
        self._tokenizer = tokenizer
        self._seed = seed
        self._context_length = context_length
        self._end_tokens = end_tokens
        self._vocabulary = vocabulary
        self._asked: Counter[bytes] = Counter()
        self._lock = threading.Condition()
        self._waiting: deque[Row] = deque()
        self._scores: list[_Score] = []
        self._runs: list[RunningBatch] = []
        self._worker: threading.Thread | None = None
        self._closed = False

    def sample(
        self,
        prompt: Sequence[int],
        num_samples: int,
        params: types.SamplingParams,
        pictures: Sequence[Picture] = (),
    ) -> "Future[list[types.SampledSequence]]":
        """Ask for replies to a prompt.

        Args:
            prompt: Token ids, at least one.
            num_samples: How many independent replies.
            params: As Tinker reads them; ``max_tokens=None`` is up to the model's context.
            pictures: Those that are named among the ids.

        Returns:
            A future of ``num_samples`` sequences. Cancelling it stops the work.

        Raises:
            SamplingRequestError: The prompt or the parameters cannot be served.
            EngineClosedError: The sampler was closed.
        """
        max_tokens = self._check(prompt, num_samples, params, pictures)
        request = Request(
            list(prompt),
            params,
            make_stops(params.stop, self._end_tokens),
            max_tokens,
            self._stream_keys(prompt, num_samples, params.seed),
            pictures,
        )
        with self._lock:
            self._wake()
            self._waiting.extend(Row(request, index) for index in range(num_samples))
        return request.future

    def score(
        self,
        tokens: Sequence[int],
        last_n: int | None = None,
        read: Read = log_probabilities,
        pictures: Sequence[Picture] = (),
    ) -> "Future[list[Any]]":
        """Ask for the log-probability of each token given those before it.

        Args:
            tokens: Token ids, at least one.
            last_n: How many of the last tokens are wanted; None for all.
            read: Makes something else of the logits of each. Requests with the same function (the
                same object) are read together.
            pictures: Those that are named among the ids.

        Returns:
            A future of one value a token; None for the first, which nothing precedes, and for what
            is not wanted.

        Raises:
            SamplingRequestError: No tokens, or more than the model can hold.
            EngineClosedError: The sampler was closed.
        """
        if not 1 <= len(tokens) <= self._context_length:
            raise SamplingRequestError(
                f"Log-probabilities were asked for {len(tokens)} tokens; expected between 1 and "
                f"the model's context of {self._context_length}. Shorten the input."
            )
        self._check_ids(tokens, pictures)
        first = 1 if last_n is None else max(1, len(tokens) - last_n)
        asked = _Score(np.asarray(tokens, dtype=np.int64), first, read, pictures=pictures)
        with self._lock:
            self._wake()
            self._scores.append(asked)
        return asked.future

    def close(self) -> None:
        """Stop the worker; requests that have no answer yet fail. Further calls do nothing."""
        with self._lock:
            self._closed = True
            worker = self._worker
            self._lock.notify_all()
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def _check(
        self,
        prompt: Sequence[int],
        num_samples: int,
        params: types.SamplingParams,
        pictures: Sequence[Picture],
    ) -> int:
        room = self._context_length - len(prompt)
        max_tokens = room if params.max_tokens is None else params.max_tokens
        if not prompt or num_samples < 1 or max_tokens < 1 or params.temperature < 0:
            raise SamplingRequestError(
                f"Got a prompt of {len(prompt)} tokens, num_samples={num_samples}, "
                f"max_tokens={params.max_tokens}, temperature={params.temperature}; expected at "
                "least one token, sample and new token, and a temperature of 0 or more. "
                f"(The model's context holds {self._context_length} tokens.)"
            )
        self._check_ids(prompt, pictures)
        if max_tokens > room:
            raise SamplingRequestError(
                f"A prompt of {len(prompt)} tokens and max_tokens={max_tokens} need "
                f"{len(prompt) + max_tokens}; the model's context holds {self._context_length}. "
                f"Shorten the prompt, or ask for at most {max(room, 0)} tokens."
            )
        return max_tokens

    def _check_ids(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> None:
        """Refuse what no model looks up: it would fail whoever is in the same batch."""
        if pictures and tokens[-1] < 0:
            raise SamplingRequestError(
                "The prompt ends with an image; expected text at its end. Add what follows it."
            )
        if (min(tokens) < 0 and not pictures) or max(tokens) >= self._vocabulary:
            raise SamplingRequestError(
                f"The prompt has token ids from {min(tokens)} to {max(tokens)}; the model knows 0 "
                f"to {self._vocabulary - 1}. Write the prompt with the model's own tokenizer."
            )

    def _stream_keys(self, prompt: Sequence[int], count: int, seed: int | None) -> list[int]:
        content = np.asarray(prompt, np.int32 if min(prompt) >= 0 else np.int64).tobytes()
        if seed is not None:
            return [stream_key(content, seed, index) for index in range(count)]
        digest = stream_key(content).to_bytes(8, "little")
        with self._lock:
            asked = self._asked[digest]
            self._asked[digest] += 1
        return [stream_key(content, self._seed, asked, index) for index in range(count)]

    def _wake(self) -> None:
        """Have a worker running; the lock must be held."""
        if self._closed:
            raise EngineClosedError(
                "This sampling client belongs to an embedded engine that is no longer in use. "
                "Sample inside the engine's block."
            )
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
            self._fail_all(EngineClosedError("The embedded engine was closed before it answered."))

    def _wait_for_work(self) -> bool:
        """Block until there is something to do; False when this worker is to end."""
        with self._lock:
            if not self._has_work():
                self._lock.wait_for(lambda: self._has_work() or self._closed, _LINGER_SECONDS)
            if self._closed or not self._has_work():
                self._worker = None
                return False
        if not self._runs:
            self._gather()
        return True

    def _has_work(self) -> bool:
        return bool(self._waiting or self._scores or self._runs)

    def _gather(self) -> None:
        """Let a burst of requests arrive whole, so that equal prompts meet."""
        for _ in range(_GATHER_ROUNDS):
            before = len(self._waiting) + len(self._scores)
            time.sleep(_GATHER_SECONDS)
            if len(self._waiting) + len(self._scores) == before:
                return

    def _turn(self) -> None:
        self._answer_scores()
        self._admit()
        for run in list(self._runs):
            for row, reason in run.draw():
                self._finish(row, reason)
            if run.rows:
                self.stats.forward_passes += run.step()
            else:
                self._runs.remove(run)

    def _answer_scores(self) -> None:
        with self._lock:
            scores, self._scores = self._scores, []
        scores = [asked for asked in scores if not asked.future.cancelled()]
        if not scores:
            return
        try:
            batch = self._model.new_batch()
            self.stats.scored_tokens += score(batch, scores)
        except Exception as error:
            for asked in scores:
                _fail(asked.future, error)
            return
        self.stats.forward_passes += batch.passes
        self.stats.prompt_tokens += batch.computed_tokens
        for asked in scores:
            with suppress(InvalidStateError):
                unknown = [None] * (len(asked.tokens) - len(asked.values))
                asked.future.set_result([*unknown, *asked.values])

    def _admit(self) -> None:
        run = next((run for run in self._runs if run.batch.joinable), None)
        rows = self._take(run)
        if not rows:
            return
        try:
            if run is None:
                run = RunningBatch(self._model.new_batch(), self._model.device, self._tokenizer)
                self._runs.append(run)
            passes, prompt_tokens = run.admit(rows)
        except Exception as error:
            # These rows are in no list yet; the caller fails those that are.
            for row in rows:
                _fail(row.request.future, error)
            raise
        self.stats.forward_passes += passes
        self.stats.prompt_tokens += prompt_tokens
        self.stats.largest_batch = max(self.stats.largest_batch, len(run.rows))

    def _take(self, run: "RunningBatch | None") -> list[Row]:
        """Take waiting rows, as many as there is room for."""
        present = run.rows if run is not None else []
        longest = max(map(_expected_length, present), default=0)
        taken: list[Row] = []
        with self._lock:
            while self._waiting:
                row = self._waiting[0]
                if not row.request.future.cancelled():
                    longest = max(longest, _expected_length(row))
                    count = len(present) + len(taken) + 1
                    fits = count <= MAX_ROWS and count * longest <= self._model.cache_tokens
                    if not fits and count > 1:
                        break
                    taken.append(row)
                self._waiting.popleft()
        return taken

    def _finish(self, row: Row, reason: types.StopReason) -> None:
        request = row.request
        self.stats.sampled_tokens += len(row.tokens)
        request.done[row.index] = types.SampledSequence(
            stop_reason=reason,
            sequence_id=f"sequence-{next(_sequence_numbers)}",
            tokens_np=np.array(row.tokens, dtype=np.int32),
            logprobs_np=np.array(row.logprobs, dtype=np.float32),
        )
        if len(request.done) == len(request.keys):
            with suppress(InvalidStateError):
                request.future.set_result([request.done[i] for i in range(len(request.keys))])

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            requests = [row.request for row in self._waiting]
            requests += [row.request for run in self._runs for row in run.rows]
            futures = [asked.future for asked in self._scores]
            self._waiting.clear()
            self._scores, self._runs = [], []
        for request in requests:
            _fail(request.future, error)
        for future in futures:
            _fail(future, error)


def _expected_length(row: Row) -> int:
    return len(row.request.prompt) + min(row.request.max_tokens, _EXPECTED_REPLY)


def _fail(future: "Future[Any]", error: Exception) -> None:
    with suppress(InvalidStateError):
        future.set_exception(error)
