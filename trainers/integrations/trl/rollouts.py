"""``Rollouts``: evert's agents as the ``rollout_func`` of TRL's ``GRPOTrainer``.

    rollouts = Rollouts("my.module:agent", tasks, renderer_name="qwen3_instruct")
    GRPOTrainer(model=..., rollout_func=rollouts, train_dataset=rollouts.dataset,
                reward_funcs=rollouts.reward, args=GRPOConfig(...))

TRL hands a ``rollout_func`` the column ``prompt`` alone, each prompt as often as it wants rollouts
of it: the column holds the task's number. What an episode earned, its task and its metrics travel
beside the tokens to the reward function.
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
from evert.bridge.groups.dataset import load_tasks
from evert.bridge.groups.group import load_agent
from evert.bridge.tokens.bases import BASES, base_path, renderer_name_of
from evert.envs.as_gymnasium.loop import Loop
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.models.loading import EngineSettings
from evert.trainers.episodes.failures import Failures
from evert.trainers.episodes.playing import side_by_side
from evert.trainers.integrations.trl.episodes import DROPPED, Episode, columns, play, with_all_ends
from evert.trainers.integrations.trl.policies import Sampling, sampling, tokenizer_of

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

METRICS = "evert/"
"""Where TRL's log has what episodes count."""


class Rollouts:
    """Plays the episodes of TRL's ``GRPOTrainer``; see the module for how it is handed over.

    As with TRL's own tools, a completion is all that comes after the first prompt, and has at most
    ``max_completion_length`` tokens: the agent is refused a longer prompt, as one over the model's
    context. Replies are drawn at the trainer's ``temperature``; ``limits`` and ``context_length``
    bound them further (``RolloutLimits(max_turn_tokens=...)`` one reply). An episode whose agent
    fails is left out: it has no reward, no part in its group's mean and no token that is trained.
    ``on_agent_error`` scores it instead.

    Args:
        agent: The agent, or its import path.
        tasks: One a row of the dataset; or the import path of such a sequence.
        test_tasks: The same, for ``eval_dataset``.
        renderer_name: The Cookbook renderer of the model's chat format. None: the one that the
            Cookbook has for a model of this name.
        parallel: Most episodes at a time.
        **options: Of ``ChatAgentEnv``.

    Attributes:
        dropped_lineages: Token sequences so far that TRL could not be given, since it takes one a
            rollout.
        failed: Episodes so far that were left out.

    Raises:
        InvalidAgentError: ``agent`` is none, takes other arguments, or needs a group or seats.
        InvalidDatasetError: There is no task.
        TypeError, ValueError: There is no such option, or not such a value.
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
            raise InvalidDatasetError("Rollouts need at least one task, got none.")
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

    # -- what GRPOTrainer takes ------------------------------------------------------------------

    @property
    def dataset(self) -> "Dataset":
        """``train_dataset``: a row a task."""
        return _dataset(range(self._train))

    @property
    def eval_dataset(self) -> "Dataset":
        """``eval_dataset``: a row a test task."""
        return _dataset(range(self._train, len(self._tasks)))

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """``rollout_func``: an episode for each prompt.

        Args:
            prompts: Of this process, each as often as there are to be rollouts of it.
            trainer: TRL's.

        Returns:
            ``prompt_ids``, ``completion_ids``, ``env_mask`` and ``logprobs``, and for reward
            functions ``task``, ``episode_reward`` and ``episode_metrics``: a row a prompt. No
            ``logprobs`` (None) where the policy's are not of the temperature it draws at.

        Raises:
            AgentError: Every episode failed.
            InvalidDatasetError: The prompts are not of ``dataset``.
            UsageError: The trainer is set up as no policy here can follow.
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
            "episode_reward": [each.reward for each in episodes],
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
        """``reward_funcs``: what each episode earned; logs the episodes' metrics.

        Returns:
            One a completion; None for an episode that is left out.
        """
        for metrics in episode_metrics:
            for name, value in metrics.items():
                log_metric(METRICS + name, value)
        log_extra("task", [str(each) for each in task])
        return [*episode_reward]

    # -- playing ---------------------------------------------------------------------------------

    async def _play(
        self, tasks: Sequence[Any], source: Sampling, options: EnvOptions
    ) -> list[Episode]:
        places = asyncio.Semaphore(self._parallel)

        async def one(task: Any) -> Episode:
            async with places:
                return await play(ChatAgentEnv(self._agent, task, **options), source.policy)

        return await side_by_side(map(one, tasks))

    def _options_with(self, source: Sampling, trainer: Any) -> EnvOptions:
        """The options, with the model's renderer where they have none, within what has room."""
        renderer = self._options.get("renderer")
        if renderer is None:
            model = str(trainer.accelerator.unwrap_model(trainer.model).config.name_or_path)
            shipped = {str(base_path(name)): name for name in BASES}
            name = self._renderer_name or renderer_name_of(shipped.get(model, model))
            renderer = get_renderer(name, tokenizer_of(trainer), model_name=model)
        context = tightest(self._options.get("context_length"), source.context_length)
        given = chz.asdict(self._options.get("limits") or RolloutLimits())
        limits = SequenceLimits(**given | {"max_response_tokens": trainer.max_completion_length})
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
                f"rollout_func got the prompt {prompt!r:.200}; expected the number of one of "
                f"{len(self._tasks)} tasks. Pass train_dataset=rollouts.dataset, of these rollouts."
            ) from error

    # -- what is said ----------------------------------------------------------------------------

    def _count(self, episodes: Sequence[Episode]) -> None:
        """Count what was left out, and say it.

        Raises:
            AgentError: Every episode failed.
        """
        dropped = int(sum(each.metrics[DROPPED] for each in episodes))
        if dropped and not self.dropped_lineages:
            logger.warning(
                "Episodes of the agent %s have several token sequences (sub-agents, or an edited "
                "history), and TRL trains one a rollout, the last: %s of %s are left out in this "
                "step. %s%s counts them from now on.",
                agent_name(self._agent),
                dropped,
                dropped + len(episodes),
                METRICS,
                DROPPED,
            )
        self.dropped_lineages += dropped
        found = Failures.of(
            len(episodes), [(each.failure, 1) for each in episodes if each.failure is not None]
        )
        if found.count:
            logger.warning("%s", found.said())
        left_out = sum(each.reward is None for each in episodes)
        self.failed += left_out
        if left_out == len(episodes):
            raise AgentError(f"No episode is left to learn from: {found.said()}")


def _check_options(agent: Agent, options: EnvOptions) -> None:
    reasons = {
        "seats": "one policy and one token sequence a rollout: train agents with several seats "
        "under the Cookbook's loop",
        "group_reward": "and may spread a group over processes: give GRPOTrainer a reward function "
        "of your own beside this one, which gets task and episode_reward",
    }
    for name, reason in reasons.items():
        if name in options:
            raise InvalidAgentError(
                f"Rollouts of the agent {agent_name(agent)} got {name}=; TRL has {reason}."
            )
    settings_of(options)


def _dataset(numbers: range) -> "Dataset":
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [str(number) for number in numbers]})
