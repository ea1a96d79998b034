"""``evert.models``: several models in training, adapters of one base.

    with evert.embedded_engine(full_parameter=False):
        comp, rec = await evert.models("evert-tiny", ("compressor", "reconstructor"), rank=32)

The embedded engine holds a base in memory once, whoever trains adapters of it.
"""

import asyncio
import logging
import os
from collections.abc import Sequence

import tinker

from evert.bridge.errors import InvalidModelError
from evert.bridge.models.older_servers import complete_client
from evert.bridge.models.tinker_model import context_length_of
from evert.bridge.tokens.bases import model_renderer
from evert.trainers.loop.model import Model

logger = logging.getLogger(__name__)


async def models(
    base_model: str,
    names: Sequence[str],
    *,
    rank: int = 32,
    learning_rate: float = 1e-4,
    renderer_name: str | None = None,
    base_url: str | None = None,
    seed: int | None = None,
) -> tuple[Model, ...]:
    """Several models in training, each an adapter of its own on one base.

    Args:
        base_model: A shipped base, a Hugging Face folder, or a model of the service's.
        names: One a model, all different: what they are called in logs.
        rank: Of the adapters.
        learning_rate: Of steps that are given none.
        renderer_name: The Cookbook's; None for the one that fits the base.
        base_url: Address of a service of one's own; None: the engine in use.
        seed: Of the adapters' first weights; None: the engine's own.

    Returns:
        The models, in the order of their names.

    Raises:
        InvalidModelError: No different names, no engine that could train them, or a base for which
            the Cookbook names no renderer.
    """
    _check_names(names)
    _check_engine(base_url)
    complete_client(base_url)
    service = tinker.ServiceClient(base_url=base_url)
    renderer = model_renderer(base_model, renderer_name)
    starting = [
        service.create_lora_training_client(
            base_model, rank=rank, seed=seed, user_metadata={"evert_model": name}
        )
        for name in names
    ]
    clients = [await each for each in starting]
    context = await asyncio.to_thread(context_length_of, service, base_model)
    _tell_of_copies(clients, base_model, rank)
    return tuple(
        Model(name, client, renderer, context, learning_rate)
        for name, client in zip(names, clients, strict=True)
    )


def _check_names(names: Sequence[str]) -> None:
    if isinstance(names, str) or not names or len(set(names)) < len(names):
        raise InvalidModelError(
            f"models got names={names!r}; expected one different name a model, for example "
            "('compressor', 'reconstructor')."
        )


def _check_engine(base_url: str | None) -> None:
    in_use = hasattr(tinker.ServiceClient, "engine")
    if not in_use and base_url is None and not os.environ.get("TINKER_API_KEY"):
        raise InvalidModelError(
            "models found no engine: no TINKER_API_KEY is set, and no embedded engine is in use. "
            "Call it inside `with evert.embedded_engine(full_parameter=False):`, or set a key."
        )


def _tell_of_copies(clients: Sequence[tinker.TrainingClient], base_model: str, rank: int) -> None:
    """Warn that the embedded engine trains a small base whole unless it is told otherwise."""
    whole = hasattr(tinker.ServiceClient, "engine") and not clients[0].get_info().is_lora
    if whole:
        logger.warning(
            "The embedded engine trains all weights of %s, so that rank=%s counts for nothing and "
            "each of %s models has the base to itself. embedded_engine(full_parameter=False) "
            "trains adapters of one.",
            base_model,
            rank,
            len(clients),
        )
