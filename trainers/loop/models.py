"""``evert.models``: models that play and learn, each an adapter on a shared base.

    with evert.embedded_engine(full_parameter=False):
        comp, rec = await evert.models("evert-tiny", ("compressor", "reconstructor"), rank=32)

The embedded engine keeps a base in memory once for all its adapters. A step submits its
forward-backward pass and its optimizer step together, so that a service does not wait in between.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tinker
from tinker_cookbook.renderers import Renderer

from evert.bridge.episode.agent import Agent
from evert.bridge.errors import InvalidModelError
from evert.bridge.models.older_servers import complete_client
from evert.bridge.models.tinker_model import context_length_of
from evert.bridge.tokens.bases import model_renderer
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer
from evert.trainers.loop.batch import Batch
from evert.trainers.loop.rollout import rollout
from evert.trainers.loop.scoring import (
    Lesson,
    LogProbs,
    ModelInputError,
    Prompt,
    Target,
    lesson_datum,
    target_datum,
    target_logprobs,
)

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Model:
    """A model in training, as returned by ``evert.models``.

    Attributes:
        name: The model's name in logs.
        client: Tinker's training client, to save, load, use custom losses and so on.
        renderer: The Cookbook renderer that formats its conversations.
        context_length: Maximum tokens of a prompt and its reply together; None: unknown.
        learning_rate: The default of ``step`` and ``sft``.
    """

    name: str
    client: tinker.TrainingClient
    renderer: Renderer
    context_length: int | None = None
    learning_rate: float = 1e-4
    _steps: int = field(default=0, init=False)
    _sampler: "tuple[int, tinker.SamplingClient] | None" = field(default=None, init=False)

    @property
    def _prompts(self) -> PromptRenderer:
        return prompt_renderer(self.renderer)

    # -- sampling ------------------------------------------------------------------------------

    async def rollout(self, agent: Agent | str, tasks: Sequence[Any], **settings: Any) -> Batch:
        """Play episodes with the current weights: ``evert.rollout(agent, tasks, model, ...)``.

        Args:
            agent: The agent, or its import path.
            tasks: P tasks; each gets a group of episodes.
            **settings: Settings of ``evert.rollout``: ``group_size``, ``max_tokens``, ``seed``, ...

        Raises:
            EvertError: See ``evert.rollout``.
        """
        return await rollout(agent, tasks, self, **settings)

    async def sampler(self) -> tinker.SamplingClient:
        """Return a client that samples from the current weights; later steps do not change it.

        Use it as a policy, or as a frozen model that agents call:
        ``models={"judge": await model.sampler()}``.
        """
        steps = self._steps
        if self._sampler is None or self._sampler[0] != steps:
            self._sampler = steps, await self.client.save_weights_and_get_sampling_client()
        return self._sampler[1]

    # -- log-probabilities ---------------------------------------------------------------------

    async def logprobs(
        self, prompts: Sequence[Prompt], targets: Sequence[Target]
    ) -> list[LogProbs]:
        """Return the current weights' log-probabilities of targets after prompts.

            told, untold = await model.logprobs([f"Code: {code}", "Code: "], [text, text])
            gain = told.sum() - untold.sum()

        Args:
            prompts: Each a string (one user message), messages, or token ids.
            targets: The text after each prompt: token ids, or a string. A string after a string or
                messages is an assistant message, so its end-of-turn token is scored, too.

        Returns:
            One array [T] per target, for its T tokens in order.

        Raises:
            ModelInputError: There are not as many prompts as targets, or one of them is empty.
        """
        if isinstance(prompts, str) or isinstance(targets, str) or len(prompts) != len(targets):
            raise ModelInputError(
                f"logprobs got prompts={prompts!r:.80} and targets={targets!r:.80}; expected two "
                "lists of equal length."
            )
        if not prompts:
            return []
        data = [target_datum(self._prompts, *pair) for pair in zip(prompts, targets, strict=True)]
        return target_logprobs(await self.client.forward(data, "cross_entropy"), data)

    # -- learning ------------------------------------------------------------------------------

    async def step(
        self,
        batch: Batch | Sequence[tinker.Datum],
        loss: str = "ppo",
        *,
        advantages: Any = "group",
        gamma: float | None = None,
        loss_config: Mapping[str, float] | None = None,
        learning_rate: float | None = None,
        grad_clip_norm: float = 0.0,
    ) -> dict[str, float]:
        """Make one step of reinforcement learning.

        Models learn concurrently if you await their steps together:
        ``await asyncio.gather(player.step(batch.seats["player"]), judge.step(...))``.

        Args:
            batch: The episodes that this model played (with seats: ``batch.seats["judge"]``), or
                datums.
            loss: Tinker's name of the loss: "importance_sampling", "ppo", "cispo" and so on.
            advantages: See ``batch.data``; ignored for datums, which already have advantages.
            gamma: See ``batch.data``.
            loss_config: Settings of the loss, such as ``{"clip_high_threshold": 1.3}``.
            learning_rate: The learning rate of AdamW; None: the model's.
            grad_clip_norm: Maximum gradient norm; gradients above it are scaled to it. 0: no limit.

        Returns:
            Metrics of the loss and the optimizer: ``loss:sum``, ``optim/grad_norm`` and so on.
            Empty, without a step, if there is nothing to learn from.

        Raises:
            AdvantagesError: The advantages have the wrong shape, or are not finite.
        """
        data = batch.data(advantages, gamma=gamma) if isinstance(batch, Batch) else [*batch]
        if not data:
            return {}
        _, metrics = await self._learn(data, loss, loss_config, learning_rate, grad_clip_norm)
        return metrics

    async def sft(
        self,
        lessons: Sequence[Lesson],
        *,
        learning_rate: float | None = None,
        grad_clip_norm: float = 0.0,
    ) -> dict[str, float]:
        """Make one step of supervised learning on the assistant's messages.

        Args:
            lessons: Each is a conversation (a list of messages in OpenAI's format) or a pair
                ``(prompt, reply)`` as for ``logprobs``. All count equally, whatever their length.
            learning_rate: The learning rate of AdamW; None: the model's.
            grad_clip_norm: Maximum gradient norm; gradients above it are scaled to it. 0: no limit.

        Returns:
            ``nll``, the mean negative log-likelihood per token before the step, and metrics of
            the loss and the optimizer. Empty if there are no lessons.

        Raises:
            ModelInputError: A conversation has no assistant message.
        """
        data = [lesson_datum(self._prompts, lesson) for lesson in lessons]
        if not data:
            return {}
        output, metrics = await self._learn(
            data, "cross_entropy", None, learning_rate, grad_clip_norm
        )
        return {"nll": -float(np.concatenate(target_logprobs(output, data)).mean()), **metrics}

    async def _learn(
        self,
        data: list[tinker.Datum],
        loss: Any,
        loss_config: Mapping[str, float] | None,
        learning_rate: float | None,
        grad_clip_norm: float,
    ) -> tuple[tinker.ForwardBackwardOutput, dict[str, float]]:
        rate = self.learning_rate if learning_rate is None else learning_rate
        adam = tinker.AdamParams(learning_rate=rate, grad_clip_norm=grad_clip_norm)
        self._steps += 1
        forward_pass = self.client.forward_backward(data, loss, dict(loss_config or {}) or None)
        optim_step = self.client.optim_step(adam)
        output = await forward_pass
        step_output = await optim_step
        return output, {**output.metrics, **(step_output.metrics or {})}


# -- making models ---------------------------------------------------------------------------------


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
    """Create several models to train, each an adapter on one base.

    Args:
        base_model: A shipped base, a Hugging Face folder, or a model of the service.
        names: The models' names in logs, all different.
        rank: The rank of the adapters.
        learning_rate: The default of ``step`` and ``sft``.
        renderer_name: The Cookbook's name of the renderer; None: the renderer that fits the base.
        base_url: URL of your own service; None: the engine in use.
        seed: The seed of the adapters' initial weights; None: the engine's seed.

    Returns:
        The models, in the order of their names.

    Raises:
        InvalidModelError: The names are not all different, there is no engine to train on, or the
            Cookbook has no renderer for the base.
    """
    _check_names(names)
    _check_engine(base_url)
    complete_client(base_url)
    service = tinker.ServiceClient(base_url=base_url)
    renderer = model_renderer(base_model, renderer_name)
    futures = [
        service.create_lora_training_client(
            base_model, rank=rank, seed=seed, user_metadata={"evert_model": name}
        )
        for name in names
    ]
    clients = [await future for future in futures]
    context = await asyncio.to_thread(context_length_of, service, base_model)
    _warn_of_copies(clients, base_model, rank)
    return tuple(
        Model(name, client, renderer, context, learning_rate)
        for name, client in zip(names, clients, strict=True)
    )


def _check_names(names: Sequence[str]) -> None:
    if isinstance(names, str) or not names or len(set(names)) < len(names):
        raise InvalidModelError(
            f"models got names={names!r}; expected a different name for each model, such as "
            "('compressor', 'reconstructor')."
        )


def _check_engine(base_url: str | None) -> None:
    in_use = hasattr(tinker.ServiceClient, "engine")
    if not in_use and base_url is None and not os.environ.get("TINKER_API_KEY"):
        raise InvalidModelError(
            "models found no engine: no TINKER_API_KEY is set, and no embedded engine is in use. "
            "Call it inside `with evert.embedded_engine(full_parameter=False):`, or set a key."
        )


def _warn_of_copies(clients: Sequence[tinker.TrainingClient], base_model: str, rank: int) -> None:
    """Warn if the embedded engine trains all weights instead of adapters."""
    trains_all = hasattr(tinker.ServiceClient, "engine") and not clients[0].get_info().is_lora
    if trains_all:
        logger.warning(
            "The embedded engine trains all weights of %s: rank=%s is ignored, and each of %s "
            "models has its own copy of the base. embedded_engine(full_parameter=False) trains "
            "adapters on one copy.",
            base_model,
            rank,
            len(clients),
        )
