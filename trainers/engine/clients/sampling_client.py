"""The sampling client: samples from frozen weights, in this process or in others.

A client holds a future for its sampler, so you can use it while the weights are still loading.
Pickling a client produces a reference to it. In the same process, unpickling the reference returns
the original client; in another process, unpickling loads the weights from disk. If the weights are
not on disk yet, pickling saves them first.
"""

import asyncio
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

import tinker
from tinker import APIFuture, types

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.clients.futures import (
    AnyFuture,
    ReadyClient,
    chain,
    finished_future,
    gather_futures,
)
from evert.trainers.engine.clients.readings import PromptOptions, Score, check_last_n, prompt_fields
from evert.trainers.engine.clients.surface import refuse_hosted
from evert.trainers.engine.common.errors import SamplingRequestError, UnsupportedError
from evert.trainers.engine.models.base_models import load_tokenizer
from evert.trainers.engine.models.loading import EngineSettings
from evert.trainers.engine.models.pictures import PictureReader, PictureRow, is_text
from evert.trainers.engine.sampling.sampler import ModelSampler
from evert.trainers.engine.sampling.scoring import Reader, log_probabilities
from evert.trainers.engine.training.provenance import mark_recorded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


T = TypeVar("T")

_NO_HANDLES = "it has no handles. Pickle the client to get a copy that uses the same weights."

REFUSED = {
    "create": "it has no connection. Use ServiceClient.create_sampling_client.",
    "from_sampler_handle": _NO_HANDLES,
    "get_sampler_handle": _NO_HANDLES,
}
"""SDK methods that the engine can't serve, mapped to the reason and what to do instead."""

REFUSED_OPTIONS = {
    "topk_sample_logprobs": "Request topk_prompt_logprobs on the prompt followed by its reply",
    "prompt_alt_tokens_k": "Sample one token after each prefix of the prompt",
}
"""Options of ``sample`` that the engine doesn't support, mapped to what to do instead."""


class Source:
    """Where other processes find a client's weights: the base model and a checkpoint path.

    ``path`` may be a function that saves the weights and returns the path.
    """

    def __init__(self, base_model: str, path: str | Callable[[], str] | None) -> None:
        self.base_model = base_model
        self._path = path
        self._lock = threading.Lock()

    def path(self) -> str | None:
        """Return the checkpoint's path (None: the base model). Save the weights first if needed."""
        with self._lock:
            if callable(self._path):
                self._path = self._path()
            return self._path


@dataclass(frozen=True)
class _Pickled:
    process: int
    key: int
    """The client's number in the process that created it."""
    copy: int = field(compare=False)
    """The copy's number, which starts at 1 and seeds the copy's random streams."""
    base_model: str
    path: str | None
    settings: EngineSettings
    records: bool


@refuse_hosted(tinker.SamplingClient, REFUSED)
class SamplingClient(ReadyClient):
    """Samples from frozen weights. Copies in other processes use separate random streams."""

    def __init__(
        self,
        engine: Engine,
        sampler: "Future[ModelSampler]",
        source: Source,
        *,
        records: bool = False,
    ) -> None:
        self._records = records
        self._engine = engine
        self._sampler = sampler
        self._source = source
        self._key = next(_client_numbers)
        self._copies = itertools.count(1)
        _clients[self._key] = self

    def sample(
        self,
        prompt: types.ModelInput,
        num_samples: int,
        sampling_params: types.SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: types.TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> APIFuture[types.SampleResponse]:
        """Sample replies. See ``sampler.py`` for how their log-probabilities are computed."""
        _check_options(
            topk_sample_logprobs=topk_sample_logprobs, prompt_alt_tokens_k=prompt_alt_tokens_k
        )
        options = PromptOptions(
            include_prompt_logprobs,
            topk_prompt_logprobs,
            target_prompt_logprobs,
            prompt_logprobs_last_n,
        )
        return self._read(
            prompt, lambda row: self._sample(row, num_samples, sampling_params, options)
        )

    def watch(
        self,
        prompt: types.ModelInput,
        sampling_params: types.SamplingParams,
        watch: Callable[[list[int]], None],
    ) -> APIFuture[types.SampleResponse]:
        """Sample one reply, streaming its tokens to ``watch`` (see ``ModelSampler.sample``)."""
        return self._read(
            prompt, lambda row: self._sample(row, 1, sampling_params, PromptOptions(), watch)
        )

    def compute_logprobs(
        self, prompt: types.ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> APIFuture[list[float | None]]:
        """Compute each prompt token's log-probability (None for the first token)."""

        def ask(row: PictureRow) -> "Future[list[Any]]":
            check_last_n(prompt_logprobs_last_n, len(row.ids))
            scores = self._scorer(row)([(prompt_logprobs_last_n, log_probabilities)])
            return chain(scores, lambda values: finished_future(values[0]).future())

        return self._read(prompt, ask)

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """Return the model's tokenizer."""
        return load_tokenizer(self._source.base_model)

    def get_base_model(self) -> str:
        """Return the base model's name."""
        return self._source.base_model

    def on_queue_state_change(self, queue_state: Any, queue_state_reason: str | None) -> None:
        """Do nothing: the engine has no queue."""

    @property
    def sampler(self) -> ModelSampler:
        """The client's sampler (waits until it is loaded). See its ``stats`` for its counters."""
        self._engine.check_process()
        return self._sampler.result()

    async def result_async(self, timeout: float | None = None) -> Self:  # noqa: ASYNC109
        """Wait until the weights are loaded and return the client; raise if loading failed."""
        self._engine.check_process()
        async with asyncio.timeout(timeout):
            # Cancelling doesn't stop the load, because other callers may be waiting for it.
            await asyncio.wrap_future(chain(self._sampler, lambda _: self.future()))
        return self

    def __reduce__(self) -> tuple[Any, tuple[_Pickled]]:
        # path() saves the weights if they are not on disk yet
        state = _Pickled(
            os.getpid(),
            self._key,
            next(self._copies),
            self._source.base_model,
            self._source.path(),
            replace(self._engine.settings, root=self._engine.store.root),
            self._records,
        )
        return _unpickle, (state,)

    def _read(
        self, prompt: types.ModelInput, ask: "Callable[[PictureRow], Future[T]]"
    ) -> "AnyFuture[T]":
        """Parse the prompt and call ``ask`` with it. Images are decoded in another thread."""
        self._engine.check_open()
        reader = self._engine.reader(self._source.base_model)
        if is_text(prompt):
            return AnyFuture(ask(reader.read(prompt)))
        return AnyFuture(
            chain(self._engine.image_worker.submit(self._read_images, reader, prompt), ask)
        )

    def _read_images(self, reader: PictureReader, prompt: types.ModelInput) -> PictureRow:
        self._engine.check_open()  # the engine may have been closed in the meantime
        try:
            return reader.read(prompt)
        except ValueError as error:
            raise SamplingRequestError(f"The prompt {error}") from error

    def _sample(
        self,
        row: PictureRow,
        num_samples: int,
        params: types.SamplingParams,
        options: PromptOptions,
        watch: Callable[[list[int]], None] | None = None,
    ) -> "Future[types.SampleResponse]":
        options.check(len(row.ids))
        replies = chain(
            self._sampler,
            lambda sampler: sampler.sample(row.ids, num_samples, params, row.pictures, watch),
        )
        parts = prompt_fields(self._scorer(row), options)
        answer = chain(replies, lambda sequences: self._respond(sequences, parts))
        answer.add_done_callback(lambda _: replies.cancel())  # if cancelled, stop sampling
        return answer

    def _scorer(self, row: PictureRow) -> Score:
        def score(reads: Sequence[tuple[int | None, Reader]]) -> "Future[list[list[Any]]]":
            return chain(
                self._sampler,
                lambda sampler: gather_futures(sampler.score_all(row.ids, reads, row.pictures)),
            )

        return score

    def _respond(
        self, sequences: Sequence[types.SampledSequence], parts: "Future[dict[str, Any]]"
    ) -> "Future[types.SampleResponse]":
        marked = mark_recorded(sequences) if self._records else sequences
        return chain(
            parts,
            lambda values: finished_future(
                types.SampleResponse(sequences=marked, **values)
            ).future(),
        )


_client_numbers = itertools.count()
_clients: "weakref.WeakValueDictionary[int, SamplingClient]" = weakref.WeakValueDictionary()
"""The clients created in this process, by key. Unpickling one here returns the original."""


def _unpickle(state: _Pickled) -> SamplingClient:
    client = _clients.get(state.key) if state.process == os.getpid() else None
    return _load_client(state, os.getpid()) if client is None else client


@lru_cache(maxsize=4)
def _load_client(state: _Pickled, process: int) -> SamplingClient:
    """Load another process's client. Cached, because pool workers unpickle it for every task."""
    engine = _engine_of(state.settings, process)
    if state.path is None:
        sampler = engine.base_sampler(state.base_model)
    else:
        sampler = engine.saved_sampler(state.path, state.key, state.copy)
    source = Source(state.base_model, state.path)
    return SamplingClient(engine, finished_future(sampler).future(), source, records=state.records)


@cache
def _engine_of(settings: EngineSettings, process: int) -> Engine:
    """Return the engine that this process's unpickled clients share."""
    return Engine(settings)


def saved_client(engine: Engine, path: str, *, records: bool = False) -> SamplingClient:
    """Return a client for a checkpoint, which is loaded in the background."""
    engine.check_open()
    info = engine.store.read(path)
    engine.requested_models.add(info.base_model)
    loading = engine.loader.submit(engine.saved_sampler, path, engine.occasion(info.steps))
    source = Source(info.base_model, path)
    return SamplingClient(engine, loading, source, records=records)


def model_client(
    engine: Engine, name: str, model: Any, tokenizer: Any, *number: int
) -> SamplingClient:
    """Return a client that samples from the current weights of another trainer's model.

    The client can be used until its ``sampler.scheduler`` is closed.
    """

    def refuse_to_save() -> str:
        raise SamplingRequestError(
            f"This client samples from a model ({name}) that another trainer holds in this "
            "process's memory, but pickling needs weights on disk. Sample in this process, or "
            "make the client available to other processes through a policy service."
        )

    sampler = finished_future(engine.new_sampler(model, tokenizer, *number)).future()
    return SamplingClient(engine, sampler, Source(name, refuse_to_save))


def _check_options(**options: int) -> None:
    for name, instead in REFUSED_OPTIONS.items():
        if options[name]:
            raise UnsupportedError(
                f"{name} is {options[name]}, but the embedded engine doesn't support this option. "
                f"{instead}."
            )
