"""``ServedSamplingClient``: a ``tinker.SamplingClient`` for servers that accept token ids.

It implements the methods that the Cookbook and evert call. It can be pickled, and only connects
when it is first used.
"""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import tinker
from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from evert.bridge.models.sampling_ranges import out_of_range
from evert.trainers.engine.common.errors import SamplingRequestError
from evert.trainers.serving.connection import KEEP_ALIVE, KEEP_ALIVE_EVERT, ask
from evert.trainers.serving.errors import NotServedError
from evert.trainers.serving.wire import (
    CompletionAnswer,
    CompletionRequest,
    ServerKind,
    read_answer,
    write_request,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TIMEOUT = 600.0
"""Seconds to wait for each response."""


class ServedSamplingClient:
    """Samples from a model behind vLLM's ``/v1/completions`` API, sending and receiving token ids.

    ``base_model`` defaults to ``model``. If ``dialect`` is None, it is determined from the server's
    list of models on first use.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        base_model: str | None = None,
        dialect: ServerKind | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._key = api_key
        self._base_model = base_model or model
        self._dialect = dialect
        self._timeout = timeout

    async def sample_async(
        self,
        prompt: types.ModelInput,
        num_samples: int,
        sampling_params: types.SamplingParams,
        include_prompt_logprobs: bool = False,
        **options: Any,
    ) -> types.SampleResponse:
        """Sample replies, like ``tinker.SamplingClient``.

        Raises:
            SamplingRequestError: The server rejected the request or doesn't support it.
            EngineClosedError: The engine behind the server is closed.
            ServingError: The server is unreachable, failed, or is not suitable for training.
        """
        if any(options.values()):
            raise SamplingRequestError(
                f"sample got {', '.join(options)}, which served models don't support. Leave "
                "them out."
            )
        if (fault := out_of_range(sampling_params)) is not None:
            raise SamplingRequestError(f"SamplingParams has {fault}.")
        tokens = _text_tokens(prompt)
        request = CompletionRequest(
            self.model, tokens, sampling_params, num_samples, include_prompt_logprobs
        )
        answer = await self.request(request)
        scores = answer.prompt_logprobs
        return types.SampleResponse(
            sequences=answer.sequences,
            prompt_logprobs_np=None if scores is None else np.array(scores, dtype=np.float32),
        )

    def sample(self, *args: Any, **options: Any) -> AwaitableConcurrentFuture[types.SampleResponse]:
        """Like ``sample_async``, but run the request on a background event loop."""
        return _in_background(self.sample_async(*args, **options))

    async def compute_logprobs_async(self, prompt: types.ModelInput) -> list[float | None]:
        """Return each prompt token's log-probability (None for the first token)."""
        is_evert = await self.dialect() is ServerKind.EVERT
        params = types.SamplingParams(max_tokens=0 if is_evert else 1)
        request = CompletionRequest(self.model, _text_tokens(prompt), params, prompt_logprobs=True)
        return (await self.request(request)).prompt_logprobs or []

    def compute_logprobs(
        self, prompt: types.ModelInput
    ) -> AwaitableConcurrentFuture[list[float | None]]:
        """Like ``compute_logprobs_async``, but run it on a background event loop."""
        return _in_background(self.compute_logprobs_async(prompt))

    async def request(self, request: CompletionRequest) -> CompletionAnswer:
        """Send a request. Raises the same errors as ``sample_async``."""
        dialect = await self.dialect()
        keep_alive = KEEP_ALIVE_EVERT if dialect is ServerKind.EVERT else KEEP_ALIVE
        url, body = f"{self.base_url}/completions", write_request(request, dialect)
        return read_answer(await ask(url, self._key, body, self._timeout, keep_alive), request)

    async def post(self, url: str, body: Mapping[str, Any]) -> bytes:
        """Send JSON to a different URL and return the response.

        Raises the same errors as ``sample_async``.
        """
        return await ask(url, self._key, orjson.dumps(body), self._timeout)

    async def models(self) -> list[dict[str, Any]]:
        """Return the server's list of models, with their ``id``, ``owned_by`` and so on."""
        content = await ask(f"{self.base_url}/models", self._key, None, self._timeout)
        try:
            return [dict(model) for model in orjson.loads(content)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise NotServedError(
                f"{self.base_url}/models did not return a list of models: {content[:200]!r}. Pass "
                "the URL of an OpenAI-compatible server, which usually ends in /v1."
            ) from error

    async def dialect(self) -> ServerKind:
        """Return the server's type, which is only looked up once."""
        if self._dialect is None:
            models = {str(model.get("id")): model for model in await self.models()}
            if self.model not in models:
                raise NotServedError(
                    f"{self.base_url} does not serve the model {self.model!r}. Available models: "
                    f"{', '.join(map(repr, models)) or 'none'}. Pass one of these."
                )
            self._dialect = ServerKind.of(models[self.model].get("owned_by"))
        return self._dialect

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """Return the base model's tokenizer, loaded on this machine."""
        from evert.trainers.engine.models.base_models import load_tokenizer

        return load_tokenizer(self._base_model)

    def get_base_model(self) -> str:
        """Return the base model's name."""
        return self._base_model


def _text_tokens(prompt: tinker.ModelInput) -> list[int]:
    try:
        return prompt.to_ints()
    except ValueError as error:
        raise SamplingRequestError(
            "The prompt contains a chunk that is not text, but served models only accept token ids."
        ) from error


def _in_background(work: Coroutine[Any, Any, Any]) -> AwaitableConcurrentFuture[Any]:
    return AwaitableConcurrentFuture(asyncio.run_coroutine_threadsafe(work, _background()))


@cache
def _background() -> asyncio.AbstractEventLoop:
    """Return the event loop for synchronous calls, which runs until the process exits."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="evert served samples", daemon=True).start()
    return loop
