"""``ChatAgentGroupBuilder``: a picklable builder for one agent's episodes on one task."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Unpack

from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.types import (
    PARSE_ERROR_MASKED_METRIC_KEY,
    Env,
    EnvGroupBuilder,
    Metrics,
    Trajectory,
)
from tinker_cookbook.utils.misc_utils import dict_mean

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.env.pending import GIVEN_UP
from evert.bridge.env.seats import SeatEnv, SeatGroup, check_seats, frozen_seats, with_opponents
from evert.bridge.episode.agent import NO_TASK, Agent, Outcome, agent_name, inspect_agent, unwrapped
from evert.bridge.episode.seeds import seed_of
from evert.bridge.errors import InvalidAgentError, InvalidDatasetError
from evert.bridge.groups.advantages import Advantages, Group, check_credit, totals
from evert.bridge.groups.pieces import put_in_pieces
from evert.bridge.groups.rewards import GroupReward, PlayedGroup, further_rewards
from evert.bridge.import_paths import resolve
from evert.bridge.models.frozen import FrozenModel
from evert.bridge.records.recorder import Recorder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchPosition:
    """Position in training: group ``number`` (from 0) out of ``groups``, in batch ``index``."""

    index: int
    groups: int
    number: int = 0


class GroupOptions(EnvOptions, total=False):
    """Options for ``ChatAgentGroupBuilder`` (documented there), including Env options."""

    seats: Sequence[str]
    group_reward: GroupReward | None
    tags: Sequence[str]
    record: Recorder | None
    advantages: Advantages
    gamma: float | None


def load_agent(agent: Agent | str) -> Agent:
    """Import an agent from a path ``package.module:function``. Functions are returned unchanged."""
    return resolve(agent, "agent", InvalidAgentError) if isinstance(agent, str) else agent


def require_import_path(function: Callable[..., Any], role: str = "agent") -> None:
    """Check that another process can import ``function``.

    Raises:
        InvalidAgentError: ``function`` is a lambda or a nested function.
    """
    inner = unwrapped(function)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    if "<lambda>" in name or "<locals>" in name:
        raise InvalidAgentError(
            f"The {role} {agent_name(function)} has no import path, because it is a lambda or a "
            "nested function. So this group builder cannot be pickled for rollouts in another "
            "process. Define it at the top level of a module (you can bind arguments with "
            "functools.partial), or run the rollouts in this process."
        )


class ChatAgentGroupBuilder(EnvGroupBuilder):
    """Builds ``group_size`` environments for one agent and one task.

    Args:
        agent: The agent, or its import path 'package.module:function'. Any callable works, but for
            rollouts in other processes it must be defined at the top level of a module.
        task: The task for the agent. If omitted, the agent is called without a task.
        group_size: Number of episodes, at least 1.
        seats: Names of the agent's trained roles, if it has several. Each episode then consists of
            one Env per seat, which are played at the same time (``seats.py``).
        group_reward: Function that compares the episodes and adds rewards (``rewards.py``).
        tags: Names under which the Cookbook aggregates metrics.
        seed: The seed from which the seeds of all episodes are derived (default: random seeds).
        record: Writes every trajectory to a file (default: nothing is recorded).
        advantages: "group" (each token gets the reward of its trajectory minus the mean reward of
            the seat), or a function that takes a ``Group`` and returns numbers per episode, turn or
            token.
        gamma: Discount factor for the return of each turn, if ``advantages`` is "group" (default:
            use the reward of the whole trajectory).
        branch: Function that takes the agent, the task and the options and returns an Env that
            continues a record (``branches.py``). By default, episodes start from the beginning.
        **options: Options for ``ChatAgentEnv``.

    Attributes:
        batch: The group's place in a training dataset, or None. If ``batch`` is set, a group
            without any trainable tokens is dropped (``compute_group_rewards``).
        on_rewards: A function that is called with the group's rewards. It is not pickled, so it is
            only called in this process.
        rewards: Total reward of each trajectory, or None if the group has not been played yet.

    Raises:
        InvalidAgentError: ``agent`` is not an agent, or does not accept these arguments.
        InvalidDatasetError: ``group_size`` is below 1, or two seats have the same name.
    """

    def __init__(
        self,
        agent: Agent | str,
        task: object = NO_TASK,
        group_size: int = 1,
        *,
        seats: Sequence[str] = (),
        group_reward: GroupReward | None = None,
        tags: Sequence[str] = (),
        seed: int | None = None,
        record: Recorder | None = None,
        advantages: Advantages = "group",
        gamma: float | None = None,
        branch: Callable[..., ChatAgentEnv] | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        self.agent = load_agent(agent)
        inspect_agent(self.agent, task)
        if group_size < 1:
            raise InvalidDatasetError(f"group_size must be at least 1, got {group_size}.")
        self.task = task
        self.group_size = group_size
        if seats:
            check_seats(seats, frozen_seats(options.get("models")))
        self.seats = tuple(seats)
        self.group_reward = group_reward
        self.tags = list(tags)
        check_credit(advantages, gamma)
        self.advantages: Advantages = advantages
        self.gamma = gamma
        self.seed = seed
        self.record = record
        self.options = options
        self.batch: BatchPosition | None = None
        self.branch = branch
        self.on_rewards: Callable[[Sequence[float]], None] | None = None
        self.rewards: list[float] | None = None
        self._envs: list[ChatAgentEnv] = []
        self._members = 0
        self._seat_group: SeatGroup | None = None

    def __getstate__(self) -> dict[str, Any]:
        require_import_path(self.agent)
        if self.group_reward is not None:
            require_import_path(self.group_reward, "group reward")
        if callable(self.advantages):
            require_import_path(self.advantages, "advantage function")
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return the state to pickle, without the running episodes and ``on_rewards``."""
        reset: Any = {"_envs": [], "_seat_group": None, "_members": 0, "on_rewards": None}
        return {**self.__dict__, **reset}

    def meet(self, opponents: Mapping[str, FrozenModel]) -> None:
        """Let frozen models play some seats. These seats have no Envs and are not trained."""
        self.seats, self.options = with_opponents(self.seats, self.options, opponents)

    async def make_envs(self) -> Sequence[Env]:
        """Create new environments, which are closed by ``cleanup``.

        To retry a failed rollout, the Cookbook calls ``make_envs`` again and only plays the first
        Env. For agents with seats, later calls therefore return a single Env, which is the next
        seat of a new episode.
        """
        if not self._envs:
            self.rewards = None
        envs: list[ChatAgentEnv]
        if not self.seats:
            envs = [self._new_env() for _ in range(self.group_size)]
        elif self._seat_group is None:
            group = SeatGroup(self.agent, self.seats, self.task, self.options)
            episodes = [group.new_episode(self._next_seed()) for _ in range(self.group_size)]
            envs = [env for episode in episodes for env in episode]
            self._seat_group = group
        else:
            envs = [self._seat_group.next_seat(self._next_seed())]
        self._envs += envs
        return envs if self.record is None else [*map(self.record.watch, envs)]

    def _new_env(self) -> ChatAgentEnv:
        if self.branch is not None:
            return self.branch(self.agent, self.task, **self.options)
        return ChatAgentEnv(self.agent, self.task, seed=self._next_seed(), **self.options)

    def _next_seed(self) -> int | None:
        """Return the seed for the next episode. Retried episodes also get a new seed."""
        self._members += 1
        return None if self.seed is None else seed_of(self.seed, self._members - 1)

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Return additional rewards and metrics, and sort transitions by lineage in place.

        Every seat has a separate baseline. The Cookbook subtracts the group's mean from all
        rewards, so the rewards of a seat are shifted by the group's mean minus the seat's mean. The
        metric ``seat/<name>/reward`` is the total before this shift. The other ``seat/<name>/...``
        metrics are the trajectory's own metrics, averaged over its turns.

        Raises:
            AllTrajectoriesFailedError: A training group has no trainable tokens. We raise because
                a batch without data would fail. The Cookbook then drops the group, regardless of
                the rollout strategy.
        """
        if self.batch is not None and not any(map(can_be_learned_from, trajectory_group)):
            raise AllTrajectoriesFailedError(
                f"Nothing can be learned from {len(trajectory_group)} episodes of the agent "
                f"{agent_name(self.agent)} because it did not call the model or because all "
                "replies are masked. The group is dropped."
            )
        pairs = [*zip(trajectory_group, env_group, strict=True)]
        evert_pairs = [
            (trajectory, env) for trajectory, env in pairs if isinstance(env, ChatAgentEnv)
        ]
        for trajectory, env in evert_pairs:
            if not any("lineages" in turn.metrics for turn in trajectory.transitions):
                for last in trajectory.transitions[-1:]:  # the runner ended the episode
                    last.metrics.update(env.report())
        outcomes = [Outcome(0.0)] * len(pairs)
        if self.group_reward is not None:
            group = PlayedGroup(trajectory_group, self.task, env_group)
            outcomes = await further_rewards(self.group_reward, group)
        rewards = [outcome.reward or 0.0 for outcome in outcomes]
        metrics: list[Metrics] = [{**outcome.metrics} for outcome in outcomes]
        if self.record is not None:
            notes: Any = {"rewards": rewards, "metrics": metrics, "tags": self.tags}
            iteration = self.batch.index if self.batch is not None else 0
            self.record.add(trajectory_group, env_group, iteration=iteration, **notes)
        lineages = [env.turn_lineages if isinstance(env, ChatAgentEnv) else [] for env in env_group]
        order = [*map(sort_by_lineage, trajectory_group, lineages)]
        seats = [env.seat if isinstance(env, SeatEnv) else "" for env in env_group]
        shifted = rewards
        if self.seats:
            shifted = _shifted_by_seat(rewards, trajectory_group, seats, metrics)
        turns = [trajectory.transitions for trajectory in trajectory_group]
        self.report_rewards(totals(turns, shifted))
        if self.advantages == "group" and self.gamma is None:
            return list(zip(shifted, metrics, strict=True))
        return self._in_pieces(seats, trajectory_group, order, rewards, metrics)

    def _in_pieces(
        self, seats: Sequence[str], trajectories: list[Trajectory], *columns: Sequence[Any]
    ) -> list[tuple[float, Metrics]]:
        """Split trajectories by advantage in place, and return additional rewards and metrics."""
        groups, metrics = list[Group](), list[list[Metrics]]()
        for seat in dict.fromkeys(seats):
            members = [number for number, name in enumerate(seats) if name == seat]
            table: Any = ([column[n] for n in members] for column in (trajectories, *columns))
            seat_trajectories, order, rewards, seat_metrics = table
            groups.append(Group(self.task, seat_trajectories, order, rewards, seat))
            metrics.append(seat_metrics)
        trajectories[:], further = put_in_pieces(groups, metrics, self.advantages, self.gamma)
        return further

    def report_rewards(self, rewards: Sequence[float]) -> None:
        """Store and report the total reward of each trajectory ([] if the group failed)."""
        self.rewards = [*rewards]
        if self.on_rewards is not None:
            self.on_rewards(self.rewards)

    async def cleanup(self) -> None:
        """Close all environments created so far. Never raises."""
        if self._envs and self.rewards is None:
            try:
                self.report_rewards([])
            except Exception:
                logger.exception("Could not tell the sampler that a group failed")
        envs, self._envs, self._seat_group, self._members = self._envs, [], None, 0
        results = await asyncio.gather(*(env.close() for env in envs), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                logger.error("Failed to close an environment: %r", result)

    def logging_tags(self) -> list[str]:
        """Return the names under which the Cookbook aggregates this group's metrics."""
        return self.tags


def can_be_learned_from(trajectory: Trajectory) -> bool:
    """Whether a trajectory has any sampled tokens that are not masked."""
    return any(
        transition.ac.tokens and not transition.metrics.get(PARSE_ERROR_MASKED_METRIC_KEY)
        for transition in trajectory.transitions
    )


def _shifted_by_seat(
    rewards: list[float],
    trajectories: Sequence[Trajectory],
    seats: Sequence[str],
    metrics: Sequence[Metrics],
) -> list[float]:
    """Shift rewards so that all seats have the same mean as the group, and add seat metrics."""
    earned = totals([trajectory.transitions for trajectory in trajectories], rewards)
    pairs = [*zip(earned, seats, strict=True)]
    means = {seat: fmean([total for total, name in pairs if name == seat]) for seat in seats}
    for extra, seat, total, trajectory in zip(metrics, seats, earned, trajectories, strict=True):
        turn_means = dict_mean([transition.metrics for transition in trajectory.transitions])
        extra.update({f"seat/{seat}/{name}": value for name, value in turn_means.items()})
        extra[f"seat/{seat}/reward"] = total
    overall = fmean(earned) if earned else 0.0
    return [reward + overall - means[seat] for reward, seat in zip(rewards, seats, strict=True)]


def sort_by_lineage(trajectory: Trajectory, turn_lineages: Sequence[int]) -> list[int]:
    """Sort a trajectory's transitions by ``lineage_order`` in place, and return the order."""
    order, turns = lineage_order(trajectory, turn_lineages), trajectory.transitions
    turns[:] = [turns[turn] for turn in order]
    return order


def lineage_order(trajectory: Trajectory, turn_lineages: Sequence[int]) -> list[int]:
    """Return an episode's turn numbers in an order that keeps the turns of a lineage together.

    This is needed because ``trajectory_to_data`` only merges adjacent turns. The order within a
    lineage does not change. The lineage that ends last comes last, so the last transition of the
    episode, which contains the report, stays last. Calls that the agent gave up on come first,
    because no later turn extends them.
    """
    turns = trajectory.transitions
    if len(turns) > len(turn_lineages):
        return [*range(len(turns))]  # the runner adds a placeholder if there are no turns
    given_up = [number for number, turn in enumerate(turns[:-1]) if GIVEN_UP in turn.metrics]
    read_turns = [number for number in range(len(turns)) if number not in given_up]
    ends = {turn_lineages[number]: number for number in read_turns}  # lineage -> its last turn
    return given_up + sorted(read_turns, key=lambda number: (ends[turn_lineages[number]], number))
