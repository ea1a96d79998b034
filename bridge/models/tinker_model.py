"""``TinkerModel``: a frozen model, given by its weights and sampled by the engine in use.

It is plain data, so it can be pickled and written to a configuration. At the first call, the
current ``tinker.ServiceClient`` (the hosted service's or the embedded engine's) creates a sampling
client, which all Envs of the process share. The default chat format is the base's.
"""

import logging
import threading
from asyncio import shield, wrap_future
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import tinker
from tinker_cookbook.completers import StopCondition, TokensWithLogprobs

from evert.bridge.chat.bad_requests import context_length_exceeded
from evert.bridge.errors import InvalidModelError
from evert.bridge.models.older_servers import complete_client
from evert.bridge.models.sampling_ranges import out_of_range
from evert.bridge.tokens.bases import model_renderer
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer

logger = logging.getLogger(__name__)

MAX_TOKENS = 2048  # default cap on a frozen model's reply


@dataclass(frozen=True)
class TinkerModel:
    """A frozen model that the engine in use samples: a base, or saved weights.

    Attributes:
        base_model: Name of the base; None: the base of ``model_path``.
        model_path: A ``tinker://`` path or, with the embedded engine, a checkpoint's folder. None:
            the base's own weights.
        renderer_name: Name of a Cookbook renderer; None: the base's default renderer.
        temperature: Sampling temperature; 0 is greedy.
        max_tokens: Cap on a reply's tokens, which the request or the context may lower. None: 2048.
        base_url: URL of your own service; None: the engine in use.
        seed: Seed of an episode's first reply; each later reply adds 1. None: the engine chooses
            the seeds.

    Raises:
        InvalidModelError: Both the base and the path are missing, or a number is out of range.
    """

    base_model: str | None = None
    model_path: str | None = None
    renderer_name: str | None = None
    temperature: float = 1.0
    max_tokens: int | None = None
    base_url: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.base_model and not self.model_path:
            raise InvalidModelError(
                "A TinkerModel got neither base_model nor model_path; expected the name of a base "
                "(TinkerModel('Qwen/Qwen3-8B')), or model_path='tinker://...'."
            )
        if (fault := out_of_range(self)) is not None:
            raise InvalidModelError(f"A TinkerModel got {fault}.")


@dataclass(frozen=True)
class OpenWeights:
    """Weights that are ready to be sampled."""

    client: tinker.SamplingClient
    renderer: PromptRenderer
    context_length: int | None  # tokens of prompt and reply together; None: unknown


async def sample_weights(
    model: TinkerModel,
    weights: OpenWeights,
    number: int,
    prompt: tinker.ModelInput,
    stop: StopCondition,
    *,
    max_tokens: int | None = None,
) -> TokensWithLogprobs:
    """Sample a model's reply; ``number`` is the call's index in the episode.

    Raises:
        openai.BadRequestError: The context has no room left (``context_length_exceeded``).
    """
    model_limit = model.max_tokens or MAX_TOKENS
    limit = model_limit if max_tokens is None else min(model_limit, max_tokens)
    params = tinker.SamplingParams(
        stop=stop,
        max_tokens=reply_cap(prompt.length, weights.context_length, limit),
        temperature=model.temperature,
        seed=None if model.seed is None else model.seed + number,
    )
    result = await weights.client.sample_async(prompt=prompt, num_samples=1, sampling_params=params)
    [sequence] = result.sequences
    return TokensWithLogprobs(sequence.tokens, sequence.logprobs, sequence.stop_reason)


def reply_cap(prompt_length: int, context: int | None, limit: int) -> int:
    """Return a reply's maximum tokens: ``limit``, or less if the context has less room left.

    Raises:
        openai.BadRequestError: The context has no room left (``context_length_exceeded``).
    """
    if context is None:
        return limit
    if prompt_length >= context:
        raise context_length_exceeded(prompt_length, context - 1)
    return min(limit, context - prompt_length)


_lock = threading.Lock()
_open: "WeakKeyDictionary[type, dict[tuple[str | None, ...], Future[OpenWeights]]]" = (
    WeakKeyDictionary()
)
"""Opened weights by ``ServiceClient`` class (each engine has its own), freed with that class."""


async def open_weights(model: TinkerModel) -> OpenWeights:
    """Return a model's weights, opened once per process and engine."""
    key = _key(model)
    with _lock:
        futures = _open.setdefault(tinker.ServiceClient, {})
        opening = futures.get(key)
        if opening is None or (opening.done() and opening.exception() is not None):
            opening = Future()
            name, work = "evert-open-weights", (opening, model)
            # Opening may load files or query a service, and may take longer than its first caller.
            threading.Thread(target=_open_into, args=work, name=name, daemon=True).start()
            futures[key] = opening
    return await shield(wrap_future(opening))  # other callers may await it too


def register_client(
    model: TinkerModel, client: tinker.SamplingClient, context_length: int | None
) -> None:
    """From now on, sample a model with this client, which comes from another process.

    A worker may outlive an engine, and the client of a closed engine cannot sample.
    """
    future: Future[OpenWeights] = Future()
    with _lock:
        futures = _open.setdefault(tinker.ServiceClient, {})
        earlier = futures.get(_key(model))
    if earlier is not None and earlier.done() and earlier.exception() is None:
        renderer = earlier.result().renderer
    else:
        base = model.base_model or client.get_base_model()
        renderer = prompt_renderer(model_renderer(base, model.renderer_name))
    future.set_result(OpenWeights(client, renderer, context_length))
    with _lock:
        futures[_key(model)] = future


def _key(model: TinkerModel) -> tuple[str | None, ...]:
    return model.base_url, model.base_model, model.model_path, model.renderer_name


def _open_into(opening: "Future[OpenWeights]", model: TinkerModel) -> None:
    try:
        opening.set_result(_load(model))
    except BaseException as error:
        opening.set_exception(error)


def _load(model: TinkerModel) -> OpenWeights:
    complete_client(model.base_url)
    service = tinker.ServiceClient(base_url=model.base_url)
    weights: dict[str, Any] = {"base_model": model.base_model}
    if model.model_path is not None:
        weights = {"model_path": model.model_path}
    client = service.create_sampling_client(**weights)
    base = model.base_model or client.get_base_model()
    renderer = prompt_renderer(model_renderer(base, model.renderer_name))
    return OpenWeights(client, renderer, context_length_of(service, base))


def context_length_of(service: tinker.ServiceClient, base_model: str) -> int | None:
    """Return a model's context length in tokens from its service; None if it is unknown."""
    try:
        supported = service.get_server_capabilities().supported_models
    except tinker.TinkerError as error:
        logger.warning("The service does not report context lengths: %s", error)
        return None
    lengths = {model.model_name: model.max_context_length for model in supported}
    return lengths.get(base_model)


def context_length_here(base_model: str) -> int | None:
    """Return a model's context length, at no cost, from the embedded engine; else None."""
    if not hasattr(tinker.ServiceClient, "engine"):
        return None
    return context_length_of(tinker.ServiceClient(), base_model)
