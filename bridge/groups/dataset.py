"""``AgentDataset`` turns a sequence of tasks into batches of groups for the Cookbook."""

import inspect
import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Unpack

import chz
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder

from evert.bridge.env.options import EnvOptions
from evert.bridge.episode.agent import Agent
from evert.bridge.episode.seeds import seed_of
from evert.bridge.errors import AdvantagesError, InvalidDatasetError, repr_of
from evert.bridge.groups.curriculum import Sampler, SamplerLog, make_sampler
from evert.bridge.groups.group import BatchPosition, ChatAgentGroupBuilder, GroupOptions
from evert.bridge.groups.kept import Kept, unwrap
from evert.bridge.groups.opponents import Opponents
from evert.bridge.groups.tasks import check_tasks, load_tasks
from evert.bridge.import_paths import resolve
from evert.bridge.models.remote import RemoteModel
from evert.bridge.models.tinker_model import TinkerModel, context_length_here
from evert.bridge.records.recorder import Recorder
from evert.bridge.tokens.bases import BASE_MODEL, BASE_RENDERER, model_renderer


class AgentDataset(RLDataset):
    """A Cookbook dataset in which an agent plays a sequence of tasks.

    Args:
        agent: The agent, or its import path.
        tasks: Any sequence of tasks. There is one group per task.
        batch_size: Groups per batch. The last batch of an epoch may be smaller; tasks are never
            dropped.
        group_size: Episodes per group.
        epochs: Number of passes over the tasks.
        shuffle: Whether to shuffle the tasks in every epoch, based on the seed.
        seed: Seed for shuffling. The seed of each episode (``client.seed``) is derived from this
            seed, the task, the index of the episode in its group and, in training, the batch.
        sampler: Chooses the tasks of each batch and receives their rewards. The number of batches
            stays the same. By default, every task is used once per epoch.
        sampler_log: File for logging the sampler's rewards (default: no log). If the file exists,
            the sampler first receives the logged rewards of all steps before the first requested
            batch.
        opponents: Chooses frozen models for seats (``opponents.py``). By default, the policy plays
            all seats.
        held_out: Whether the tasks are for evaluation. Otherwise, groups without any trainable
            tokens are dropped (``ChatAgentGroupBuilder.batch``).
        **options: Other options for ``ChatAgentGroupBuilder``, including Env options.

    Raises:
        InvalidAgentError: See ``ChatAgentGroupBuilder``.
        InvalidDatasetError: ``tasks`` is empty or not a sequence, or a size is below 1.
    """

    def __init__(
        self,
        agent: Agent | str,
        tasks: Sequence[Any],
        *,
        batch_size: int,
        group_size: int,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        sampler: Sampler | None = None,
        sampler_log: str | Path | None = None,
        opponents: Opponents | None = None,
        held_out: bool = False,
        **options: Unpack[GroupOptions],
    ) -> None:
        for name, size in (("batch_size", batch_size), ("epochs", epochs)):
            if size < 1:
                raise InvalidDatasetError(f"{name} must be at least 1, got {size}.")
        check_tasks(tasks)
        if len(tasks) == 0:
            raise InvalidDatasetError("A dataset needs at least one task, but tasks is empty.")
        if opponents is not None and len(options.get("seats", ())) < 2:
            raise InvalidDatasetError(
                "opponents=... requires an agent with at least two roles. Pass their names as "
                "seats=(...), or leave opponents out."
            )
        self.agent = agent
        self.tasks = tasks
        self.batch_size = batch_size
        self.group_size = group_size
        self.epochs = epochs
        self.shuffle = shuffle
        self.seed = seed
        self.sampler = sampler
        self.opponents = opponents
        self.held_out = held_out
        self._log = None if sampler is None else SamplerLog(sampler, sampler_log)
        self.options = options
        self._batches_per_epoch = math.ceil(len(tasks) / batch_size)
        self.group(0)  # fail early instead of in the middle of a run

    def __len__(self) -> int:
        return self.epochs * self._batches_per_epoch

    def get_batch(self, index: int) -> Sequence[ChatAgentGroupBuilder]:
        """Return the groups of batch ``index``, ``0 <= index < len(self)``.

        Raises:
            IndexError: ``index`` is out of range.
            InvalidDatasetError: The sampler chose tasks that do not exist.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"There is no batch {index} in a dataset with {len(self)} batches.")
        order = self._in_turn(index) if self._log is None else self._sampled(index, self._log)
        groups = [self.group(number) for number in order]
        times = Counter[int]()
        for place, (group, number) in enumerate(zip(groups, order, strict=True)):
            repeat = [times[number]] if times[number] else []
            group.seed = seed_of(self.seed, "test" if self.held_out else index, number, *repeat)
            times[number] += 1
            if self.opponents is not None:
                group.meet(self.opponents(group.seats, index, number, group.seed))
            if not self.held_out:
                group.batch = BatchPosition(index, len(groups), place)
                if group.record is not None and not group.record.takes(place):
                    group.record = None
            if self._log is not None:
                group.on_rewards = partial(self._log.update, index, number)
        return groups

    def _in_turn(self, index: int) -> Sequence[int]:
        epoch, batch = divmod(index, self._batches_per_epoch)
        order = list(range(len(self.tasks)))
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order[batch * self.batch_size : (batch + 1) * self.batch_size]

    def _sampled(self, index: int, log: SamplerLog) -> Sequence[int]:
        log.begin(index)
        chosen, numbers = [*log.sampler.next(index)], range(len(self.tasks))
        if not chosen or not all(isinstance(n, Integral) and n in numbers for n in chosen):
            raise InvalidDatasetError(
                f"The sampler {type(log.sampler).__name__} chose {repr_of(chosen)} for batch "
                f"{index}; expected one or more task numbers from 0 to {numbers[-1]}."
            )
        return [int(number) for number in chosen]

    def group(self, number: int) -> ChatAgentGroupBuilder:
        """Create a group for a task outside of any batch, without a seed and without opponents."""
        return ChatAgentGroupBuilder(
            self.agent, self.tasks[number], self.group_size, **self.options
        )


def _keep(_: object, value: Any) -> Any:
    is_plain = isinstance(value, str | type(None) | RemoteModel | TinkerModel | Kept)
    return value if is_plain or inspect.isfunction(value) else Kept(value)


def _with_kept_models(_: object, options: EnvOptions) -> EnvOptions:
    models = {name: _keep(None, model) for name, model in (options.get("models") or {}).items()}
    return {**options, "models": models} if models else options


@chz.chz
class AgentDatasetBuilder(RLDatasetBuilder):
    """A chz configuration that builds a training and a test ``AgentDataset``."""

    agent: str | Any = chz.field(
        munger=_keep, doc="The agent, or its import path 'package.module:function'."
    )
    train_tasks: str | Any = chz.field(doc="A sequence of tasks, its import path, or a file.")
    test_tasks: str | Any | None = chz.field(
        default=None, doc="Held-out tasks, their import path, or a file (default: no test set)."
    )
    batch_size: int = chz.field(default=32, doc="Groups per batch.")
    group_size: int = chz.field(default=8, doc="Episodes per group in training.")
    test_group_size: int = chz.field(default=1, doc="Episodes per test task.")
    epochs: int = chz.field(default=1, doc="Number of passes over the training tasks.")
    shuffle: bool = chz.field(default=True, doc="Whether to shuffle the training tasks.")
    seed: int = chz.field(default=0, doc="Seed for shuffling and for the episodes.")
    sampler: str | Any | None = chz.field(
        default=None,
        munger=_keep,
        doc="Chooses the training tasks of each step: a Sampler, a function that creates one from "
        "(tasks, batch_size, seed), such as evert.Curriculum, or an import path (default: every "
        "task once per epoch).",
    )
    sampler_log: str | None = chz.field(
        default=None, doc="File for logging the sampler's rewards, so that a run can be resumed."
    )
    opponents: Any | None = chz.field(
        default=None,
        munger=_keep,
        doc="Chooses frozen models for seats in training, e.g. a League (default: the policy plays "
        "all seats).",
    )
    test_opponents: Any | None = chz.field(
        default=None,
        munger=_keep,
        doc="Chooses frozen models for seats in test episodes, e.g. Against.",
    )
    model_name: str = chz.field(default=BASE_MODEL, doc="Name of the model whose tokenizer to use.")
    renderer_name: str = chz.field(default=BASE_RENDERER, doc="Name of a Cookbook renderer.")
    limits: RolloutLimits | None = chz.field(default=None, doc="Limits for an episode.")
    seats: Sequence[str] = chz.field(
        default=(), doc="Names of the trained roles, if the agent has several."
    )
    group_reward: str | Any | None = chz.field(
        default=None,
        munger=_keep,
        doc="Function that compares the episodes in a group, or its import path.",
    )
    advantages: str | Any = chz.field(
        default="group",
        munger=_keep,
        doc="Token advantages: 'group', a function that takes a Group, or its import path.",
    )
    gamma: float | None = chz.field(
        default=None,
        doc="Discount factor for the return of each turn (default: use the reward of the whole "
        "episode).",
    )
    tags: Sequence[str] = chz.field(default=(), doc="Names under which metrics are aggregated.")
    record: str | None = chz.field(
        default=None,
        doc="Folder or *.jsonl file to record training rollouts in (default: don't record).",
    )
    record_share: float = chz.field(
        default=1.0, doc="Fraction of the groups in each batch to record (at least one group)."
    )
    env_options: EnvOptions = chz.field(
        default_factory=EnvOptions,
        munger=_with_kept_models,
        doc="Other options for ChatAgentEnv.",
    )

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Build the training dataset and the test dataset (None if there are no test tasks).

        With the embedded engine, ``context_length`` defaults to the model's context length.

        Raises:
            InvalidAgentError, InvalidDatasetError: The agent, tasks, group reward or sampler is
                invalid.
        """
        group_reward: Any = unwrap(self.group_reward)
        if isinstance(group_reward, str):
            group_reward = resolve(group_reward, "group reward", InvalidDatasetError)
        advantages: Any = unwrap(self.advantages)
        if isinstance(advantages, str) and advantages != "group":
            advantages = resolve(advantages, "advantages", AdvantagesError)
        dataset = partial(
            AgentDataset,
            unwrap(self.agent),
            batch_size=self.batch_size,
            seed=self.seed,
            seats=self.seats,
            group_reward=group_reward,
            tags=self.tags,
            **self._env_options(),
        )
        tasks = load_tasks(self.train_tasks)
        sampler = make_sampler(unwrap(self.sampler), len(tasks), self.batch_size, self.seed)
        train = dataset(
            tasks,
            sampler=sampler,
            sampler_log=self.sampler_log,
            opponents=unwrap(self.opponents),
            group_size=self.group_size,
            epochs=self.epochs,
            shuffle=self.shuffle,
            record=Recorder(self.record, self.record_share) if self.record is not None else None,
            advantages=advantages,
            gamma=self.gamma,
        )
        if self.test_tasks is None:
            return train, None
        tests = load_tasks(self.test_tasks)
        held_out = partial(dataset, shuffle=False, held_out=True, group_size=self.test_group_size)
        return train, held_out(tests, opponents=unwrap(self.test_opponents))

    def _env_options(self) -> EnvOptions:
        renderer = model_renderer(self.model_name, self.renderer_name)
        env_options: EnvOptions = {"renderer": renderer, **self.env_options}
        if self.limits is not None:
            env_options["limits"] = self.limits
        if context := context_length_here(self.model_name):
            env_options.setdefault("context_length", context)
        if models := env_options.get("models"):
            env_options["models"] = {name: unwrap(model) for name, model in models.items()}
        return env_options
