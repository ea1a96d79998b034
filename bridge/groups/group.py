"""``ChatAgentGroupBuilder``: several episodes of one agent on one task; data, which pickles."""

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
class Batch:
    """The batch of a training dataset that a group is in: the group is ``number`` of ``groups``."""

    index: int
    groups: int
    number: int = 0


class GroupOptions(EnvOptions, total=False):
    """Options of ``ChatAgentGroupBuilder``, which say what they mean; all of an Env's too."""

    seats: Sequence[str]
    group_reward: GroupReward | None
    tags: Sequence[str]
    record: Recorder | None
    advantages: Advantages
    gamma: float | None


def load_agent(agent: Agent | str) -> Agent:
    """The agent that ``agent`` names: an import path ``package.module:function``, or itself."""
    return resolve(agent, "agent", InvalidAgentError) if isinstance(agent, str) else agent


def require_import_path(function: Callable[..., Any], role: str = "agent") -> None:
    """Check that another process could find ``function`` by name."""
    inner = unwrapped(function)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    if "<lambda>" in name or "<locals>" in name:
        raise InvalidAgentError(
            f"The {role} {agent_name(function)} has no import path, so this group builder cannot "
            "be pickled for rollouts in another process, where a lambda or an inner function "
            "cannot be found. Define it at the top level of a module (functools.partial may bind "
            "arguments), or play the rollouts in this process."
        )


class ChatAgentGroupBuilder(EnvGroupBuilder):
    """Builds ``group_size`` environments of one agent and task.

    Args:
        agent: The agent, or its import path 'package.module:function'. Any callable will do; for
            rollouts in other processes it has to stand at the top level of a module.
        task: Handed to the agent. Left out: the agent takes the client only.
        group_size: Number of episodes, at least 1.
        seats: Names of the agent's trained roles, where it has several: each episode then gives one
            Env a seat, side by side (``seats.py``). Empty: one policy.
        group_reward: Further rewards that compare the episodes (``rewards.py``).
        tags: Names under which the Cookbook aggregates metrics.
        seed: Of what its episodes draw, each its own; None: another each time.
        record: Writes every trajectory down; None: nobody does.
        advantages: Of every token: "group", a trajectory's reward less the mean of its seat, or a
            function from a ``Group`` to numbers by episode, turn or token.
        gamma: With "group": each turn has its own return, so much less for each later reward; None:
            the whole trajectory's.
        branch: Makes an environment of the agent, the task and the options that goes on from a
            record (``branches.py``); None: they begin anew.
        **options: Of ``ChatAgentEnv``.

    Attributes:
        batch: The batch of a training dataset that the group is in; None: of none. In training, a
            group that nothing can be learned from is dropped (``compute_group_rewards``).
        on_rewards: Is told what came of the group where it was played here (``earned``); it does
            not pickle.
        rewards: The total of each trajectory, when the group was played; else None.

    Raises:
        InvalidAgentError: The agent is none, or takes other arguments.
        InvalidDatasetError: ``group_size`` is below 1, or the seats have no different names.
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
        self.batch: Batch | None = None
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
            require_import_path(self.advantages, "function that gives advantages")
        return self.state()

    def state(self) -> dict[str, Any]:
        """What goes to another process; episodes stay where they run."""
        own: dict[str, Any] = {"_envs": [], "_seat_group": None, "_members": 0, "on_rewards": None}
        return {**self.__dict__, **own}

    def meet(self, opponents: Mapping[str, FrozenModel]) -> None:
        """Have frozen models play some of the seats, not all: no Envs, nothing to train on."""
        self.seats, self.options = with_opponents(self.seats, self.options, opponents)

    async def make_envs(self) -> Sequence[Env]:
        """New environments; ``cleanup`` closes them all.

        Asked again, by a strategy that plays a failed rollout once more and takes the first, a
        builder with seats gives the next seat of a new episode.
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
        """The seed of the next episode; an episode that is played again gets another."""
        self._members += 1
        return None if self.seed is None else seed_of(self.seed, self._members - 1)

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """The group's further rewards; puts each trajectory's transitions in lineage order.

        Seats have a baseline of their own: the Cookbook centres all rewards of a group on their
        mean, so each seat is shifted by what lies between its own mean and the group's. What was
        really earned is in the metric ``seat/<name>/reward``, beside the means of its own metrics.

        Raises:
            AllTrajectoriesFailedError: In training, where the group has no token to learn from. The
                Cookbook then goes on without the group, whatever its strategy; a whole batch of
                such groups would be no data, which its training step does not survive.
        """
        if self.batch is not None and not any(map(can_be_learned_from, trajectory_group)):
            raise AllTrajectoriesFailedError(
                f"Nothing can be learned from {len(trajectory_group)} episodes of the agent "
                f"{agent_name(self.agent)}: it called no model in them, or every reply is masked. "
                "Their group is left out."
            )
        played = [*zip(trajectory_group, env_group, strict=True)]
        ours = [(each, env) for each, env in played if isinstance(env, ChatAgentEnv)]
        for trajectory, env in ours:
            if not any("lineages" in turn.metrics for turn in trajectory.transitions):
                for last in trajectory.transitions[-1:]:  # the runner ended it
                    last.metrics.update(env.report())
        outcomes = [Outcome(0.0)] * len(played)
        if self.group_reward is not None:
            group = PlayedGroup(trajectory_group, self.task, env_group)
            outcomes = await further_rewards(self.group_reward, group)
        rewards = [outcome.reward or 0.0 for outcome in outcomes]
        metrics: list[Metrics] = [{**outcome.metrics} for outcome in outcomes]
        if self.record is not None:
            noted: Any = {"rewards": rewards, "metrics": metrics, "tags": self.tags}
            iteration = self.batch.index if self.batch is not None else 0
            self.record.add(trajectory_group, env_group, iteration=iteration, **noted)
        lineages = [env.turn_lineages if isinstance(env, ChatAgentEnv) else [] for env in env_group]
        order = [*map(sort_by_lineage, trajectory_group, lineages)]
        seats = [env.seat if isinstance(env, SeatEnv) else "" for env in env_group]
        shifted = rewards
        if self.seats:
            shifted = _shifted_by_seat(rewards, trajectory_group, seats, metrics)
        self.earned(totals([each.transitions for each in trajectory_group], shifted))
        if self.advantages == "group" and self.gamma is None:
            return list(zip(shifted, metrics, strict=True))
        return self._in_pieces(seats, trajectory_group, order, rewards, metrics)

    def _in_pieces(
        self, seats: Sequence[str], trajectories: list[Trajectory], *columns: Sequence[Any]
    ) -> list[tuple[float, Metrics]]:
        """Cut the trajectories by their advantages, in place; further rewards and metrics."""
        groups, metrics = list[Group](), list[list[Metrics]]()
        for seat in dict.fromkeys(seats):
            members = [number for number, its in enumerate(seats) if its == seat]
            own: Any = ([column[n] for n in members] for column in (trajectories, *columns))
            played, order, rewards, noted = own
            groups.append(Group(self.task, played, order, rewards, seat))
            metrics.append(noted)
        trajectories[:], further = put_in_pieces(groups, metrics, self.advantages, self.gamma)
        return further

    def earned(self, rewards: Sequence[float]) -> None:
        """Take note of the total of each trajectory, as the Cookbook centres them; of none: []."""
        self.rewards = [*rewards]
        if self.on_rewards is not None:
            self.on_rewards(self.rewards)

    async def cleanup(self) -> None:
        """Close every environment made so far; never raises."""
        if self._envs and self.rewards is None:
            try:
                self.earned([])
            except Exception:
                logger.exception("A sampler was not told of a group that failed")
        envs, self._envs, self._seat_group, self._members = self._envs, [], None, 0
        results = await asyncio.gather(*(env.close() for env in envs), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                logger.error("Closing an environment failed: %r", result)

    def logging_tags(self) -> list[str]:
        """Names under which the Cookbook aggregates this group's metrics."""
        return self.tags


def can_be_learned_from(trajectory: Trajectory) -> bool:
    """Whether a trajectory holds a sampled token that is not masked out of the training."""
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
    """Further rewards after which each seat's mean total is the group's; notes the real totals."""
    earned = totals([each.transitions for each in trajectories], rewards)
    pairs = [*zip(earned, seats, strict=True)]
    means = {seat: fmean([total for total, its in pairs if its == seat]) for seat in seats}
    for own, seat, total, trajectory in zip(metrics, seats, earned, trajectories, strict=True):
        noted = dict_mean([transition.metrics for transition in trajectory.transitions])
        own.update({f"seat/{seat}/{name}": value for name, value in noted.items()})
        own[f"seat/{seat}/reward"] = total
    overall = fmean(earned) if earned else 0.0
    return [reward + overall - means[seat] for reward, seat in zip(rewards, seats, strict=True)]


def sort_by_lineage(trajectory: Trajectory, turn_lineages: Sequence[int]) -> list[int]:
    """Put transitions in their ``lineage_order``, which is returned, in place."""
    order, turns = lineage_order(trajectory, turn_lineages), trajectory.transitions
    turns[:] = [turns[turn] for turn in order]
    return order


def lineage_order(trajectory: Trajectory, turn_lineages: Sequence[int]) -> list[int]:
    """The numbers of an episode's turns, those that continue each other side by side.

    ``trajectory_to_data`` merges neighbours only. Each lineage keeps its order, and the one that
    ends last comes last: so does the transition that ends the episode, with its report.
    """
    played = range(len(trajectory.transitions))
    if len(played) > len(turn_lineages):
        return [*played]  # the one made-up transition of an episode without a turn
    ends = {turn_lineages[turn]: turn for turn in played}  # of each lineage, its last turn
    return sorted(played, key=lambda turn: (ends[turn_lineages[turn]], turn))
