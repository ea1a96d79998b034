"""``Model``: one model in training, with what a loop of one's own does with it.

In order: what is sampled from it, what it is asked, how it learns. A step's forward and backward
pass and its optimizer's step are submitted together, so that a service does both in one go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tinker
from tinker_cookbook.renderers import Renderer

from evert.bridge.episode.agent import Agent
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
