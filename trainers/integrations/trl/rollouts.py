"""``Rollouts``: evert agents as a ``rollout_func`` for TRL's ``GRPOTrainer``.

    rollouts = Rollouts("my.module:agent", tasks, renderer_name="qwen3_instruct")
    GRPOTrainer(model=..., rollout_func=rollouts, train_dataset=rollouts.dataset,
                reward_funcs=rollouts.reward, args=GRPOConfig(...))

TRL only passes the ``prompt`` column to a ``rollout_func``, once per rollout, so we store the index
of the task in that column. In addition to the tokens, the ``rollout_func`` returns the episode's
reward, task and metrics, which TRL then passes to the reward function.
"""
# pyright: reportMissingImports=false

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import chz
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.limits import SequenceLimits, tightest
from evert.bridge.env.options import EnvOptions, options_with_own, settings_of
from evert.bridge.episode.agent import Agent, agent_name, inspect_agent
from evert.bridge.errors import AgentError, InvalidAgentError, InvalidDatasetError
from evert.bridge.groups.group import load_agent
from evert.bridge.groups.tasks import load_tasks
from evert.bridge.tokens.bases import BASES, base_path, register_variant, renderer_name_of
from evert.envs.as_gymnasium.loop import Loop
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.models.loading import EngineSettings
from evert.trainers.episodes.failures import Failures
from evert.trainers.episodes.playing import side_by_side
from evert.trainers.integrations.trl.episodes import (
    DROPPED,
    TrlResult,
    columns,
    play,
    with_all_ends,
)
from evert.trainers.integrations.trl.policies import TrlPolicy, sampling, tokenizer_of

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

METRICS = "evert/"
"""Prefix for episode metrics in TRL's logs."""


class Rollouts:
    """Plays episodes for TRL's ``GRPOTrainer``. See the module docstring for an example.

    As with TRL's own tools, everything after the first prompt is part of the completion, which has
    at most ``max_completion_length`` tokens. Later prompts that exceed this limit are rejected, and
    so are all prompts that exceed the model's context. Replies are sampled at the trainer's
    ``temperature``. You can set additional limits with ``limits`` and ``context_length``
    (``RolloutLimits(max_turn_tokens=...)`` limits the length of a reply). If an agent fails, its
    episode is excluded: it gets no reward, does not affect the group's mean, and is not trained on.
    To give it a reward instead, set ``on_agent_error``.

    Args:
        agent: The agent, or its import path.
        tasks: The tasks, or their import path. Each one becomes a row of the dataset.
        test_tasks: The tasks for ``eval_dataset``, or their import path.
        renderer_name: The Cookbook renderer for the model's chat format. Defaults to the renderer
            that the Cookbook recommends for the model.
        parallel: Maximum number of concurrent episodes.
        **options: Options for ``ChatAgentEnv``.

    Attributes:
        dropped_lineages: How many token sequences have been dropped so far, because TRL only uses
            one per rollout.
        failed: How many episodes have been excluded so far.

    Raises:
        InvalidAgentError: ``agent`` is invalid, has the wrong signature, or needs a group or seats.
        InvalidDatasetError: There are no tasks.
        TypeError, ValueError: An option is unknown or has an invalid value.
    """

    def __init__(
        self,
        agent: Agent | str,
        tasks: Sequence[Any] | str,
        *,
        test_tasks: Sequence[Any] | str = (),
        renderer_name: str | None = None,
        parallel: int = 256,
        **options: Unpack[EnvOptions],
    ) -> None:
        self._agent = load_agent(agent)
        train, test = load_tasks(tasks), load_tasks(test_tasks)
        if not train:
            raise InvalidDatasetError("Rollouts requires at least one task, got none.")
        inspect_agent(self._agent, train[0])
        self._options = options_with_own(self._agent, options)
        if renderer_name is not None and "renderer" not in options:
            self._options.pop("renderer", None)
        _check_options(self._agent, self._options)
        self._tasks = [*train, *test]
        self._train = len(train)
        self._renderer_name = renderer_name
        self._parallel = parallel
        self._calls = itertools.count()
        self._engine: Engine | None = None
        self._loop: Loop | None = None
        self.dropped_lineages = 0
        self.failed = 0

    # -- arguments for GRPOTrainer ---------------------------------------------------------------

    @property
    def dataset(self) -> "Dataset":
        """The ``train_dataset``, with one row per task."""
        return _dataset(range(self._train))

    @property
    def eval_dataset(self) -> "Dataset":
        """The ``eval_dataset``, with one row per test task."""
        return _dataset(range(self._train, len(self._tasks)))

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Play one episode per prompt. This is the ``rollout_func`` that TRL calls.

        Returns:
            A dict of columns with one row per prompt: ``prompt_ids``, ``completion_ids``,
            ``env_mask`` and ``logprobs``, plus ``task``, ``episode_reward`` and ``episode_metrics``
            for reward functions. ``logprobs`` is None if the policy cannot return log-probabilities
            at the sampling temperature.

        Raises:
            AgentError: All episodes failed.
            InvalidDatasetError: A prompt is not from ``dataset``.
            UsageError: The trainer's settings are not supported.
        """
        tasks = [self._task(prompt) for prompt in prompts]
        tokenizer = tokenizer_of(trainer)
        with sampling(trainer, self._own_engine(trainer), next(self._calls)) as source:
            options = self._options_with(source, trainer)
            self._loop = self._loop if self._loop and self._loop.is_ours else Loop(self)
            episodes = self._loop.run(partial(self._play, tasks, source, options))
        self._count(episodes)
        return {
            **columns(episodes, tokenizer.eos_token_id, with_logprobs=source.has_logprobs),
            "task": tasks,
            "episode_reward": [episode.reward for episode in episodes],
            "episode_metrics": with_all_ends(episodes),
        }

    def reward(
        self,
        completions: Sequence[Any],
        episode_reward: Sequence[float | None],
        episode_metrics: Sequence[dict[str, float]],
        task: Sequence[Any],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **_: Any,
    ) -> list[float | None]:
        """Return the episodes' rewards and log their metrics. Pass this to ``reward_funcs``.

        Returns:
            One reward per completion, or None for excluded episodes.
        """
        for metrics in episode_metrics:
            for name, value in metrics.items():
                log_metric(METRICS + name, value)
        log_extra("task", [*map(str, task)])
        return [*episode_reward]

    # -- playing ---------------------------------------------------------------------------------

    async def _play(
        self, tasks: Sequence[Any], source: TrlPolicy, options: EnvOptions
    ) -> list[TrlResult]:
        places = asyncio.Semaphore(self._parallel)

        async def play_task(task: Any) -> TrlResult:
            async with places:
                return await play(ChatAgentEnv(self._agent, task, **options), source.policy)

        return await side_by_side(map(play_task, tasks))

    def _options_with(self, source: TrlPolicy, trainer: Any) -> EnvOptions:
        """Return the options plus a renderer and the limits of the model and the trainer."""
        renderer = self._options.get("renderer")
        if renderer is None:
            model = str(trainer.accelerator.unwrap_model(trainer.model).config.name_or_path)
            shipped = {str(base_path(name)): name for name in BASES}
            name = self._renderer_name or renderer_name_of(shipped.get(model, model))
            register_variant(name)
            renderer = get_renderer(name, tokenizer_of(trainer), model_name=model)
        context = tightest(self._options.get("context_length"), source.context_length)
        budgets = chz.asdict(self._options.get("limits") or RolloutLimits())
        limits = SequenceLimits(**budgets | {"max_response_tokens": trainer.max_completion_length})
        return {**self._options, "renderer": renderer, "context_length": context, "limits": limits}

    def _own_engine(self, trainer: Any) -> Engine:
        if self._engine is None:
            device = str(trainer.accelerator.device)
            self._engine = Engine(EngineSettings(device=device, seed=trainer.args.seed))
        return self._engine

    def _task(self, prompt: str) -> Any:
        try:
            return self._tasks[int(prompt)]
        except (IndexError, TypeError, ValueError) as error:
            raise InvalidDatasetError(
                f"rollout_func got the prompt {prompt!r:.200}; expected the index of one of its "
                f"{len(self._tasks)} tasks. Pass train_dataset=rollouts.dataset from this Rollouts."
            ) from error

    # -- counts and warnings ---------------------------------------------------------------------

    def _count(self, episodes: Sequence[TrlResult]) -> None:
        """Count and log the token sequences that were dropped and the episodes that were excluded.

        Raises:
            AgentError: All episodes failed.
        """
        dropped = int(sum(episode.metrics[DROPPED] for episode in episodes))
        if dropped and not self.dropped_lineages:
            logger.warning(
                "Episodes of the agent %s have several token sequences (because of sub-agents or "
                "an edited history). TRL only trains on the last one per rollout, so %s of %s were "
                "dropped in this step. See the metric %s%s.",
                agent_name(self._agent),
                dropped,
                dropped + len(episodes),
                METRICS,
                DROPPED,
            )
        self.dropped_lineages += dropped
        failures = Failures.of(
            len(episodes),
            [(episode.failure, 1) for episode in episodes if episode.failure is not None],
        )
        if failures.count:
            logger.warning("%s", failures.describe())
        left_out = sum(episode.reward is None for episode in episodes)
        self.failed += left_out
        if left_out == len(episodes):
            raise AgentError(f"Nothing to train on: all episodes failed. {failures.describe()}")


def _check_options(agent: Agent, options: EnvOptions) -> None:
    reasons = {
        "seats": "only supports one policy and one token sequence per rollout. Use the Cookbook's "
        "training loop for agents with several seats",
        "group_reward": "may split a group across processes. Pass GRPOTrainer a second reward "
        "function, which receives task and episode_reward",
    }
    for name, reason in reasons.items():
        if name in options:
            raise InvalidAgentError(
                f"Got {name}=... for the agent {agent_name(agent)}, but TRL {reason}."
            )
    settings_of(options)


def _dataset(numbers: range) -> "Dataset":
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [str(number) for number in numbers]})
