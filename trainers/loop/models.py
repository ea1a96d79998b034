"""``evert.models``: creates models to play with and train, as adapters on a shared base model.

    with evert.embedded_engine(full_parameter=False):
        comp, rec = await evert.models("evert-tiny", ("compressor", "reconstructor"), rank=32)

The embedded engine keeps a single copy of the base model in memory for all adapters. Each training
step submits its forward-backward pass and its optimizer step together, so that a remote service
doesn't have to wait in between.
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
        client: The Tinker training client, for saving, loading, custom losses and so on.
        renderer: The Cookbook renderer that formats its conversations.
        context_length: Maximum number of tokens in a prompt plus its reply (None: unknown).
        learning_rate: Default learning rate for ``step`` and ``sft``.
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
        """Play episodes with the current weights.

        This is the same as ``evert.rollout(agent, tasks, model, ...)``.

        Args:
            agent: The agent, or its import path.
            tasks: P tasks. A group of episodes is played for each of them.
            **settings: Passed to ``evert.rollout``: ``group_size``, ``max_tokens``, ``seed``, ...

        Raises:
            EvertError: See ``evert.rollout``.
        """
        return await rollout(agent, tasks, self, **settings)

    async def sampler(self) -> tinker.SamplingClient:
        """Return a client that samples from the current weights and isn't affected by later steps.

        You can use it as a policy, or as a frozen model for agents to call:
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
        """Compute the log-probability of each target given its prompt, with the current weights.

            told, untold = await model.logprobs([f"Code: {code}", "Code: "], [text, text])
            gain = told.sum() - untold.sum()

        Args:
            prompts: Each prompt is a string (a user message), a list of messages, or token ids.
            targets: The text after each prompt: a string or token ids. If the prompt is a string
                or messages and the target is a string, the target is an assistant message, and its
                end-of-turn token is scored too.

        Returns:
            One array [T] per target, with the log-probabilities of its T tokens in order.

        Raises:
            ModelInputError: The numbers of prompts and targets differ, or one of them is empty.
        """
        if isinstance(prompts, str) or isinstance(targets, str) or len(prompts) != len(targets):
            raise ModelInputError(
                f"logprobs got prompts={prompts!r:.80} and targets={targets!r:.80}; expected two "
                "lists of the same length."
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
        """Take one reinforcement learning step.

        To train several models concurrently, await their steps together:
        ``await asyncio.gather(player.step(batch.seats["player"]), judge.step(...))``.

        Args:
            batch: The episodes that this model played (with seats, ``batch.seats["judge"]``), or
                a list of datums.
            loss: Name of a Tinker loss: "importance_sampling", "ppo", "cispo" and so on.
            advantages: See ``batch.data``. Ignored for datums, which already have advantages.
            gamma: See ``batch.data``.
            loss_config: Settings for the loss, such as ``{"clip_high_threshold": 1.3}``.
            learning_rate: AdamW learning rate (default: the model's).
            grad_clip_norm: Maximum gradient norm, to which larger gradients are clipped (0: no
                clipping).

        Returns:
            Loss and optimizer metrics: ``loss:sum``, ``optim/grad_norm`` and so on. If there is
            no data to train on, no step is taken and the result is empty.

        Raises:
            AdvantagesError: The advantages have the wrong shape or are not finite.
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
        """Take one supervised learning step on the assistant messages.

        Args:
            lessons: Each lesson is a conversation (a list of messages in OpenAI's format) or a
                pair ``(prompt, reply)``, as in ``logprobs``. All lessons have equal weight,
                regardless of their length.
            learning_rate: AdamW learning rate (default: the model's).
            grad_clip_norm: Maximum gradient norm, to which larger gradients are clipped (0: no
                clipping).

        Returns:
            ``nll``, the mean negative log-likelihood per token before the step, and loss and
            optimizer metrics. Empty if there are no lessons.

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
    """Create several models to train, as adapters on the same base model.

    Args:
        base_model: A bundled base model, a Hugging Face folder, or a model available on the
            service.
        names: Unique names for the models, used in logs.
        rank: LoRA rank of the adapters.
        learning_rate: Default learning rate for ``step`` and ``sft``.
        renderer_name: Name of a Cookbook renderer (default: the one that matches the base model).
        base_url: URL of your own service (default: the engine in use).
        seed: Seed for initializing the adapters (default: the engine's seed).

    Returns:
        The models, in the same order as ``names``.

    Raises:
        InvalidModelError: The names are not unique, no engine is in use, or the Cookbook has no
            renderer for the base model.
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
            f"models got names={names!r}; expected a unique name for each model, such as "
            "('compressor', 'reconstructor')."
        )


def _check_engine(base_url: str | None) -> None:
    in_use = hasattr(tinker.ServiceClient, "engine")
    if not in_use and base_url is None and not os.environ.get("TINKER_API_KEY"):
        raise InvalidModelError(
            "evert.models needs an engine, but TINKER_API_KEY is not set and no embedded engine is "
            "in use. Call it inside `with evert.embedded_engine(full_parameter=False):`, or set "
            "the API key."
        )


def _warn_of_copies(clients: Sequence[tinker.TrainingClient], base_model: str, rank: int) -> None:
    """Warn if the embedded engine trains all weights instead of adapters."""
    trains_all = hasattr(tinker.ServiceClient, "engine") and not clients[0].get_info().is_lora
    if trains_all:
        logger.warning(
            "The embedded engine trains all weights of %s, so rank=%s is ignored, and each of the "
            "%s models has a separate copy of the base model. To train adapters that share one "
            "copy, use embedded_engine(full_parameter=False).",
            base_model,
            rank,
            len(clients),
        )
