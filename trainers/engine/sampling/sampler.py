"""Samples replies to prompts from frozen weights, and scores given tokens.

A sampler checks requests; its scheduler, which other samplers of the same base may share, runs
them. A sampled token's log-probability is at temperature 1 and untruncated, as from a fresh forward
pass over the same tokens. The token that ends a reply is part of the reply.

Reproducibility: a sample's random stream is keyed by the sampler's seed, the prompt, the number of
earlier requests with that prompt, and the sample's index. If the request has a ``seed``, the key is
that seed, the prompt and the index. So the same requests give the same tokens, up to rounding,
whatever else is in the batch. Only the last 65,536 prompts are counted. The count of any other
prompt starts at the highest count that was dropped, so that no stream is used twice.
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

_COUNTED_PROMPTS = 2**16  # Prompts whose requests are counted; takes 15 MB


class ModelSampler:
    """Samples from one frozen model; see the module's docstring."""

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
        self._request_counts: OrderedDict[int, int] = OrderedDict()  # By the prompt's digest
        self._dropped_count = 0  # Highest count of a prompt dropped from ``_request_counts``
        self._count_lock = Lock()

    @property
    def stats(self) -> SchedulerStats:
        """Counts of the scheduler's work, also for other samplers of the same base."""
        return self.scheduler.stats

    def sample(
        self,
        prompt: Sequence[int],
        num_samples: int,
        params: types.SamplingParams,
        pictures: Sequence[Picture] = (),
        watch: Callable[[list[int]], None] | None = None,
    ) -> "Future[list[types.SampledSequence]]":
        """Sample replies to a prompt; cancelling the future stops sampling.

        The worker thread calls ``watch`` with a sample's tokens after each new token. Copy the
        list, because the scheduler keeps changing it.
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
        """Compute the log-probabilities of the last n tokens (None: all), given the tokens before.

        ``reader`` may read other values from the logits; requests with the same reader are read
        together. The future has a value per token: None for the first and for unread tokens.
        """
        return self.score_all(tokens, [(last_n, reader)], pictures)[0]

    def score_all(
        self,
        tokens: Sequence[int],
        reads: Sequence[tuple[int | None, Reader]],
        pictures: Sequence[Picture] = (),
    ) -> "list[Future[list[Any]]]":
        """Like ``score``, for several pairs of (last n, reader) in one pass over the tokens."""
        if not 1 <= len(tokens) <= self._context_length:
            raise SamplingRequestError(
                f"Log-probabilities of {len(tokens)} tokens were requested; expected 1 to the "
                f"model's context of {self._context_length}. Shorten the input."
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
                f"max_tokens={params.max_tokens}; need at least 1 prompt token, 1 sample and 1 "
                f"new token. (The context holds {self._context_length} tokens.)"
            )
        self._check_ids(prompt, pictures)
        if max_tokens > room:
            raise SamplingRequestError(
                f"A prompt of {len(prompt)} tokens and max_tokens={max_tokens} need "
                f"{len(prompt) + max_tokens}; the model's context holds {self._context_length}. "
                f"Shorten the prompt, or request at most {max(room, 0)} tokens."
            )
        return max_tokens

    def _check_ids(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> None:
        if pictures and tokens[-1] < 0:
            raise SamplingRequestError(
                "The prompt ends with an image; expected text at its end. Add text after the image."
            )
        if (min(tokens) < 0 and not pictures) or max(tokens) >= self._model.vocabulary:
            raise SamplingRequestError(
                f"The prompt has token ids from {min(tokens)} to {max(tokens)}; the model knows 0 "
                f"to {self._model.vocabulary - 1}. Encode the prompt with its tokenizer."
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
