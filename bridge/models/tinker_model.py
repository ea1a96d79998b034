"""``TinkerModel``: a frozen model, defined by its weights and sampled with the engine in use.

A ``TinkerModel`` is plain data, so it can be pickled and stored in a configuration. On the first
call, the current ``tinker.ServiceClient`` (of the hosted service or the embedded engine) creates a
sampling client, which is shared by all Envs in the process. By default, the chat format of the base
model is used.
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
    """A frozen model that is sampled with the engine in use: a base model or saved weights.

    Attributes:
        base_model: Name of the base model (default: the base model of ``model_path``).
        model_path: A ``tinker://`` path or, with the embedded engine, a checkpoint folder (default:
            the weights of the base model).
        renderer_name: Name of a Cookbook renderer (default: the one for the base model).
        temperature: Sampling temperature; 0 is greedy.
        max_tokens: Maximum tokens per reply (default: 2048). The request or the context length may
            impose a lower limit.
        base_url: URL of your own Tinker service (default: the engine in use).
        seed: Seed for the first reply in an episode, which is incremented for each later reply. By
            default, the engine chooses the seeds.

    Raises:
        InvalidModelError: Both ``base_model`` and ``model_path`` are missing, or a number is out of
            range.
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
                "TinkerModel got neither base_model nor model_path; expected the name of a base "
                "model (TinkerModel('Qwen/Qwen3-8B')) or model_path='tinker://...'."
            )
        if (fault := out_of_range(self)) is not None:
            raise InvalidModelError(f"TinkerModel got {fault}.")


@dataclass(frozen=True)
class OpenWeights:
    """Weights that are ready for sampling."""

    client: tinker.SamplingClient
    renderer: PromptRenderer
    context_length: int | None  # maximum tokens of prompt and reply together; None if unknown


async def sample_weights(
    model: TinkerModel,
    weights: OpenWeights,
    number: int,
    prompt: tinker.ModelInput,
    stop: StopCondition,
    *,
    max_tokens: int | None = None,
) -> TokensWithLogprobs:
    """Sample a reply. ``number`` is the index of the call in the episode.

    Raises:
        openai.BadRequestError: There is no room left in the context (``context_length_exceeded``).
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
    """Return the maximum length of a reply: ``limit``, or less if the context has less room.

    Raises:
        openai.BadRequestError: There is no room left in the context (``context_length_exceeded``).
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
"""The open weights of each ``ServiceClient`` class (one per engine). Freed with the class."""


async def open_weights(model: TinkerModel) -> OpenWeights:
    """Open a model's weights (once per process and engine)."""
    key = _key(model)
    with _lock:
        futures = _open.setdefault(tinker.ServiceClient, {})
        opening = futures.get(key)
        if opening is None or (opening.done() and opening.exception() is not None):
            opening = Future()
            name, work = "evert-open-weights", (opening, model)
            # Opening loads files or queries a service, so it may outlive its first caller.
            threading.Thread(target=_open_into, args=work, name=name, daemon=True).start()
            futures[key] = opening
    return await shield(wrap_future(opening))  # other callers may be waiting for it as well


def register_client(
    model: TinkerModel, client: tinker.SamplingClient, context_length: int | None
) -> None:
    """From now on, sample the model with a client that another process created.

    This replaces any earlier client. A worker may outlive an engine, and the client of a closed
    engine no longer works.
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
    """Ask a service for the context length of a model, in tokens. Returns None if unknown."""
    try:
        supported = service.get_server_capabilities().supported_models
    except tinker.TinkerError as error:
        logger.warning("Could not get context lengths from the service: %s", error)
        return None
    lengths = {model.model_name: model.max_context_length for model in supported}
    return lengths.get(base_model)


def context_length_here(base_model: str) -> int | None:
    """Return a model's context length if the embedded engine is in use, or None.

    Unlike with a remote service, this does not need a request.
    """
    if not hasattr(tinker.ServiceClient, "engine"):
        return None
    return context_length_of(tinker.ServiceClient(), base_model)
