"""``evert.models``: models in training, adapters of one base, each with what a loop does with it.

    with evert.embedded_engine(full_parameter=False):
        comp, rec = await evert.models("evert-tiny", ("compressor", "reconstructor"), rank=32)

The embedded engine holds a base in memory once, whoever trains adapters of it. A step's forward and
backward pass and its optimizer's step are submitted together, so that a service does both in one.
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
from evert.trainers.loop.errors import ModelInputError
from evert.trainers.loop.rollout import rollout
from evert.trainers.loop.scoring import (
    Lesson,
    LogProbs,
    Prompt,
    Target,
    lesson_datum,
    target_datum,
    target_logprobs,
)

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Model:
    """A model in training; ``evert.models`` makes it.

    Attributes:
        name: What it is called in logs.
        client: Tinker's training client, for all that is not here: saving, loading, custom losses.
        renderer: Of the Cookbook, in which its conversations are written.
        context_length: Tokens of prompt and reply together; None: the service does not say.
        learning_rate: Of steps that are given none.
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

    # -- what is sampled -----------------------------------------------------------------------

    async def rollout(self, agent: Agent | str, tasks: Sequence[Any], **settings: Any) -> Batch:
        """Episodes that the present weights play: ``evert.rollout(agent, tasks, model, ...)``.

        Args:
            agent: The agent, or its import path.
            tasks: P of them, each of which is a group.
            **settings: Of ``evert.rollout``: ``group_size``, ``max_tokens``, ``seed`` and so on.

        Raises:
            EvertError: As ``evert.rollout``.
        """
        return await rollout(agent, tasks, self, **settings)

    async def sampler(self) -> tinker.SamplingClient:
        """A client that samples the present weights; what is learned later does not change it.

        It plays as any policy does, or answers an agent that calls it as a frozen model:
        ``models={"judge": await model.sampler()}``.
        """
        steps = self._steps
        if self._sampler is None or self._sampler[0] != steps:
            self._sampler = steps, await self.client.save_weights_and_get_sampling_client()
        return self._sampler[1]

    # -- what it is asked ----------------------------------------------------------------------

    async def logprobs(
        self, prompts: Sequence[Prompt], targets: Sequence[Target]
    ) -> list[LogProbs]:
        """Log-probabilities of what might follow some prompts, by the present weights.

            told, untold = await model.logprobs([f"Code: {code}", "Code: "], [text, text])
            gain = told.sum() - untold.sum()

        Args:
            prompts: Each a string (one message of a user's), messages, or token ids.
            targets: What follows each prompt: a string (after messages, the assistant's reply with
                its end of turn), or token ids as they are.

        Returns:
            One array [T] a target, of its T tokens, in order.

        Raises:
            ModelInputError: Other numbers of prompts and targets, or an empty one.
        """
        if isinstance(prompts, str) or isinstance(targets, str) or len(prompts) != len(targets):
            raise ModelInputError(
                f"logprobs got prompts={prompts!r:.80} and targets={targets!r:.80}; expected a "
                "list of each, of one length."
            )
        if not prompts:
            return []
        data = [target_datum(self._prompts, *pair) for pair in zip(prompts, targets, strict=True)]
        return target_logprobs(await self.client.forward(data, "cross_entropy"), data)

    # -- how it learns -------------------------------------------------------------------------

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
        """One step of reinforcement learning.

        Models whose steps are awaited together learn at the same time:
        ``await asyncio.gather(player.step(batch.seats["player"]), judge.step(...))``.

        Args:
            batch: What this model played; with seats, its own: ``batch.seats["judge"]``. Or data.
            loss: Tinker's name of it: "importance_sampling", "ppo", "cispo" and so on.
            advantages: As ``batch.data`` takes them; data have them already.
            gamma: The same.
            loss_config: The loss's settings, ``{"clip_high_threshold": 1.3}``, say.
            learning_rate: Of AdamW; None for the model's.
            grad_clip_norm: A longer gradient is cut to this norm; 0: none is.

        Returns:
            What the loss and the optimizer say: ``loss:sum``, ``optim/grad_norm`` and so on; empty
            where there was nothing to learn from, so that no step was made.

        Raises:
            AdvantagesError: The advantages have another shape, or are not finite.
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
        """One step of supervised learning: what the assistant says becomes likelier.

        Args:
            lessons: Each a conversation, as a list of messages in OpenAI's format, or a pair
                ``(prompt, reply)`` as ``logprobs`` takes them. They count alike, however long.
            learning_rate: Of AdamW; None for the model's.
            grad_clip_norm: A longer gradient is cut to this norm; 0: none is.

        Returns:
            ``nll``, the mean negative log-likelihood of a token before the step, and what the
            optimizer says.

        Raises:
            ModelInputError: The assistant says nothing in one.
        """
        data = [lesson_datum(self._prompts, each) for each in lessons]
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
        passed = self.client.forward_backward(data, loss, dict(loss_config or {}) or None)
        stepped = self.client.optim_step(adam)
        output = await passed
        done = await stepped
        return output, {**output.metrics, **(done.metrics or {})}


# -- made ------------------------------------------------------------------------------------------


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
