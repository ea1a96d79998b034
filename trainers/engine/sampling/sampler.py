"""Samples replies to prompts from frozen weights, and scores given tokens.

A sampler validates requests and passes them to its scheduler, which runs them. Samplers of the same
base model may share a scheduler. Log-probabilities of sampled tokens are at temperature 1 and
untruncated, as if they were computed by a fresh forward pass over the same tokens. Replies include
the stop token.

Reproducibility: each sample's random stream is determined by the sampler's seed, the prompt, the
number of earlier requests with the same prompt, and the sample's index. If the request has a
``seed``, only that seed, the prompt and the index are used. This means that the same requests
produce the same tokens, up to rounding, regardless of what else is in the batch. We keep request
counts of the last 65,536 prompts. If a prompt has no count, its count starts at the highest count
that was dropped, so that no stream is used twice.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from tinker import types

from evert.bridge.models.sampling_ranges import out_of_range
from evert.trainers.engine.common.errors import SamplingRequestError
from evert.trainers.engine.models.pictures import Picture
from evert.trainers.engine.sampling.batches import FrozenModel
from evert.trainers.engine.sampling.drawing import make_stops, stream_key
from evert.trainers.engine.sampling.running_batch import SampleRequest, SampleRow
from evert.trainers.engine.sampling.scheduler import Scheduler, SchedulerStats, ScoreRequest
from evert.trainers.engine.sampling.scoring import Reader, log_probabilities

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_COUNTED_PROMPTS = 2**16  # requests are counted for at most this many prompts (15 MB)


class ModelSampler:
    """Samples from one frozen model; see the module docstring."""

    def __init__(
        self,
        model: FrozenModel,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        seed: int,
        context_length: int,
        end_tokens: frozenset[int],
        scheduler: Scheduler,
    ) -> None:
        self.scheduler = scheduler
        self._model = model
        self._tokenizer = tokenizer
        self._seed = seed
        self._context_length = context_length
        self._end_tokens = end_tokens
        self._request_counts: OrderedDict[int, int] = OrderedDict()  # prompt's digest -> count
        self._dropped_count = 0  # the highest of the counts dropped from ``_request_counts``
        self._count_lock = Lock()

    @property
    def stats(self) -> SchedulerStats:
        """The scheduler's counters, which cover all samplers that share it."""
        return self.scheduler.stats

    def sample(
        self,
        prompt: Sequence[int],
        num_samples: int,
        params: types.SamplingParams,
        pictures: Sequence[Picture] = (),
        watch: Callable[[list[int]], None] | None = None,
    ) -> "Future[list[types.SampledSequence]]":
        """Sample replies to a prompt. Cancelling the future stops the sampling.

        If ``watch`` is set, the worker thread calls it after each new token with the sample's
        tokens so far. Copy the list if you keep it, because the scheduler keeps appending to it.
        """
        max_tokens = self._check(prompt, num_samples, params, pictures)
        request = SampleRequest(
            self._model,
            self._tokenizer,
            list(prompt),
            params,
            make_stops(params.stop, self._end_tokens),
            max_tokens,
            self._stream_keys(prompt, num_samples, params.seed),
            pictures,
            watch=watch,
        )
        self.scheduler.sample([SampleRow(request, index) for index in range(num_samples)])
        return request.future

    def score(
        self,
        tokens: Sequence[int],
        last_n: int | None = None,
        reader: Reader = log_probabilities,
        pictures: Sequence[Picture] = (),
    ) -> "Future[list[Any]]":
        """Compute the log-probabilities of the last n tokens (all by default).

        Pass a ``reader`` to compute other values from the logits. If several requests have the same
        reader, it may receive their tokens together. The result has one value per token, which is
        None for the first token and for tokens that were not requested.
        """
        return self.score_all(tokens, [(last_n, reader)], pictures)[0]

    def score_all(
        self,
        tokens: Sequence[int],
        reads: Sequence[tuple[int | None, Reader]],
        pictures: Sequence[Picture] = (),
    ) -> "list[Future[list[Any]]]":
        """Like ``score``, but for several (last_n, reader) pairs in one pass over the tokens."""
        if not 1 <= len(tokens) <= self._context_length:
            raise SamplingRequestError(
                f"Log-probabilities of {len(tokens)} tokens were requested; expected at least 1 "
                f"and at most the model's context length of {self._context_length}. Shorten the "
                "input."
            )
        self._check_ids(tokens, pictures)
        row = np.asarray(tokens, dtype=np.int64)
        requests = [
            ScoreRequest(
                row,
                1 if last_n is None else max(1, len(tokens) - last_n),
                reader,
                model=self._model,
                pictures=pictures,
            )
            for last_n, reader in reads
        ]
        self.scheduler.score(requests)
        return [request.future for request in requests]

    def _check(
        self,
        prompt: Sequence[int],
        num_samples: int,
        params: types.SamplingParams,
        pictures: Sequence[Picture],
    ) -> int:
        if (fault := out_of_range(params)) is not None:
            raise SamplingRequestError(f"SamplingParams has {fault}.")
        room = self._context_length - len(prompt)
        max_tokens = room if params.max_tokens is None else params.max_tokens
        if not prompt or num_samples < 1 or max_tokens < 1:
            raise SamplingRequestError(
                f"Got a prompt of {len(prompt)} tokens, num_samples={num_samples}, "
                f"max_tokens={params.max_tokens}; expected at least 1 prompt token, 1 sample and 1 "
                f"new token. (The context length is {self._context_length} tokens.)"
            )
        self._check_ids(prompt, pictures)
        if max_tokens > room:
            raise SamplingRequestError(
                f"A prompt of {len(prompt)} tokens with max_tokens={max_tokens} needs "
                f"{len(prompt) + max_tokens} tokens, but the model's context length is "
                f"{self._context_length}. Shorten the prompt, or request at most {max(room, 0)} "
                "tokens."
            )
        return max_tokens

    def _check_ids(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> None:
        if pictures and tokens[-1] < 0:
            raise SamplingRequestError(
                "The prompt ends with an image; it must end with text. Add text after the image."
            )
        if (min(tokens) < 0 and not pictures) or max(tokens) >= self._model.vocabulary:
            raise SamplingRequestError(
                f"The prompt contains token ids from {min(tokens)} to {max(tokens)}, but the "
                f"model's ids go from 0 to {self._model.vocabulary - 1}. Encode the prompt with "
                "the model's tokenizer."
            )

    def _stream_keys(self, prompt: Sequence[int], count: int, seed: int | None) -> list[int]:
        content = np.asarray(prompt, np.int32 if min(prompt) >= 0 else np.int64).tobytes()
        if seed is not None:
            return [stream_key(content, seed, index) for index in range(count)]
        digest = stream_key(content)
        with self._count_lock:
            earlier = self._request_counts.pop(digest, self._dropped_count)
            self._request_counts[digest] = earlier + 1
            if len(self._request_counts) > _COUNTED_PROMPTS:
                _, dropped = self._request_counts.popitem(last=False)
                self._dropped_count = max(self._dropped_count, dropped)
        return [stream_key(content, self._seed, earlier, index) for index in range(count)]
