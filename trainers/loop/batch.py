"""``Batch``: episodes as named arrays, and the data to train on.

    batch.rewards                   [P, G]
    batch.turn_rewards              [P, G, T]
    batch.seats["judge"].rewards    [P, G], for one seat
    batch.data("group", gamma=0.9)  ready for ``forward_backward``

Shapes: P tasks, G episodes per task, T turns in the longest episode. Failed episodes are NaN, so
use ``np.nanmean(batch.rewards)`` to ignore them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import tinker
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Trajectory, TrajectoryGroup

from evert.bridge.errors import AdvantagesError
from evert.bridge.groups.advantages import (
    Advantages,
    ByToken,
    Floats,
    Group,
    check_gamma,
    padded,
    spread,
    token_advantages,
)
from evert.trainers.episodes.failures import Failures


@dataclass(frozen=True)
class TaskEpisodes:
    """One seat's episodes of a task, without failed episodes, and their indices in the group."""

    group: Group
    members: Sequence[int]


@dataclass(frozen=True)
class Batch:
    """The episodes returned by ``evert.rollout``: G episodes for each of P tasks.

    Attributes:
        tasks: [P], as passed to ``rollout``.
        group_size: G.
        played: Maps each seat to its episodes, as a list [P] with an entry per task. An agent
            without seats has a single seat "".
        failures: How many episodes failed, and why.
    """

    tasks: Sequence[Any]
    group_size: int
    played: Mapping[str, Sequence[TaskEpisodes]]
    failures: Failures

    # -- arrays ----------------------------------------------------------------------------------

    @cached_property
    def seats(self) -> "dict[str, Batch]":
        """Maps each seat to its batch (empty for an agent without seats)."""
        seat_names = [seat for seat in self.played if seat]
        return {
            seat: Batch(self.tasks, self.group_size, {"": self.played[seat]}, self.failures)
            for seat in seat_names
        }

    @cached_property
    def rewards(self) -> Floats:
        """[P, G]: each episode's reward, averaged over seats (NaN if the episode failed)."""
        by_seat = [_reward_table(self, by_task) for by_task in self.played.values()]
        return np.asarray(np.mean(by_seat, axis=0))

    @cached_property
    def turn_rewards(self) -> Floats:
        """[P, G, T]: each turn's reward, in the order of play, padded with NaN.

        Raises:
            AttributeError: The agent has seats. Use one of ``seats`` instead.
        """
        rows = [
            [turn for turn in row if not np.isnan(turn)]
            for task in self._episodes(lambda group: [*group.turn_rewards])
            for row in task
        ]
        return padded(rows).reshape(len(self.tasks), self.group_size, -1)

    @property
    def turns(self) -> Floats:
        """[P, G]: the number of turns in each episode (0 if it failed)."""
        return np.asarray([[len(row) for row in task] for task in self.tokens])

    @cached_property
    def tokens(self) -> list[list[list[int]]]:
        """[P, G, turns] nested lists: number of sampled tokens per turn, in the order of play."""
        return self._episodes(lambda group: group.tokens)

    @cached_property
    def trajectories(self) -> list[list[Trajectory | None]]:
        """[P, G] nested lists: the Cookbook trajectories (None if the episode failed)."""
        rows = self._episodes(lambda group: group.trajectories)
        return [[trajectory or None for trajectory in task] for task in rows]

    def _episodes(self, values_of: Any) -> list[list[Any]]:
        """[P, G] nested lists: each episode's item of ``values_of(group)``, or [] if it failed."""
        if self.seats:
            raise AttributeError(
                f"This batch has several seats ({', '.join(self.seats)}), which have different "
                f"turns. Use batch.seats[{next(iter(self.seats))!r}]."
            )
        rows = list[list[Any]]()
        for episodes in self.played[""]:
            row: list[Any] = [[] for _ in range(self.group_size)]
            for member, value in zip(episodes.members, values_of(episodes.group), strict=True):
                row[member] = value
            rows.append(row)
        return rows

    def metrics(self) -> dict[str, float]:
        """Return means over the batch, named as in the Cookbook: ``env/all/reward/total`` etc.

        There are also metrics for each seat, such as ``env/judge/reward/total``.
        """
        groups, tags = list[TrajectoryGroup](), list[list[str]]()
        for seat, by_task in self.played.items():
            for episodes in by_task:
                if episodes.members:
                    finals, trajectories = episodes.group.final_rewards, episodes.group.trajectories
                    nothing: list[dict[str, float | int]] = [{} for _ in finals]
                    groups.append(TrajectoryGroup([*trajectories], [*finals], nothing))
                    tags.append([seat])
        return compute_trajectory_metrics(groups, tags)

    # -- data ------------------------------------------------------------------------------------

    def data(
        self,
        advantages: Advantages | Sequence[Any] | Floats | Mapping[str, Any] = "group",
        *,
        gamma: float | None = None,
    ) -> list[tinker.Datum]:
        """Return the data to train on, with an advantage for each sampled token.

            await client.forward_backward_async(batch.data(), "importance_sampling")

        Args:
            advantages: With "group", each token's advantage is the episode's reward minus the mean
                reward of its group. You can also pass numbers per episode [P, G], per turn
                [P, G, T] or per token [P, G, T, N], as lists (ragged or padded) or an array, or a
                function that takes a ``Group`` and returns numbers without the P axis. If there
                are seats, pass one value for all of them or a mapping from seats to values;
                "group" then takes the mean over episodes of the same seat.
            gamma: Only for "group": a turn's advantage is its discounted return minus the mean
                return of that turn in the group. The return is the sum of the rewards from this
                turn on, discounted by ``gamma`` per turn. By default, all turns have the episode's
                advantage.

        Returns:
            One datum per lineage (a linear conversation has one lineage), with ``target_tokens``,
            ``logprobs`` and ``advantages``. There are no datums for failed episodes.

        Raises:
            AdvantagesError: The advantages have the wrong shape or are not finite.
        """
        if self.seats:
            if not isinstance(advantages, Mapping):
                advantages = dict.fromkeys(self.seats, advantages)
            if advantages.keys() != self.seats.keys():
                raise AdvantagesError(
                    f"advantages has the seats {', '.join(map(str, advantages)) or 'none'}, but "
                    f"the batch has {', '.join(self.seats)}. Pass all of them, or use one seat: "
                    f"batch.seats[{next(iter(self.seats))!r}].data(...)."
                )
            by_seat = [s.data(advantages[name], gamma=gamma) for name, s in self.seats.items()]
            return [datum for data in by_seat for datum in data]
        return [
            datum
            for episodes, by_token in zip(
                self.played[""], self._by_token(advantages, gamma), strict=True
            )
            for datum in _data_of(episodes.group, by_token)
        ]

    def _by_token(self, advantages: Any, gamma: float | None) -> list[ByToken]:
        """Return [P]: for each group, the advantages of the episodes that did not fail."""
        if isinstance(advantages, str) or callable(advantages):
            method: Any = advantages
            return [
                token_advantages(episodes.group, method, gamma) if episodes.members else []
                for episodes in self.played[""]
            ]
        check_gamma(gamma)
        spread_out = spread(advantages, self.tokens, "advantages", "PG")
        return [
            [values[member] for member in episodes.members]
            for episodes, values in zip(self.played[""], spread_out, strict=True)
        ]


def _reward_table(batch: Batch, by_task: Sequence[TaskEpisodes]) -> Floats:
    rewards = np.full((len(batch.tasks), batch.group_size), np.nan)
    for row, episodes in zip(rewards, by_task, strict=True):
        row[list(episodes.members)] = episodes.group.rewards
    return rewards


def _data_of(group: Group, by_token: ByToken) -> list[tinker.Datum]:
    data = list[tinker.Datum]()
    for trajectory, order, advantages in zip(
        group.trajectories, group.order, by_token, strict=True
    ):
        stream = (
            value
            for turn, number in zip(trajectory.transitions, order, strict=True)
            if not turn.metrics.get(PARSE_ERROR_MASKED_METRIC_KEY)
            for value in advantages[number]
        )
        for datum in trajectory_to_data(trajectory, 0.0):
            inputs = {**datum.loss_fn_inputs}
            sampled = inputs.pop("mask").to_numpy() > 0
            values = np.zeros(len(sampled), np.float32)
            values[sampled] = [*islice(stream, int(sampled.sum()))]
            inputs["advantages"] = tinker.TensorData.from_numpy(values)
            data.append(tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs))
    return data
