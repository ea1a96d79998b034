"""Branches: episodes that replay a recorded rollout up to some turn and sample from there on.

    BranchDataset(agent, records, turn=3, batch_size=8, group_size=4)

Only newly sampled tokens are trained on, because the replayed replies are part of the prompt.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import InitialObservationOverflow, Observation

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.env.transcript import Transcript
from evert.bridge.episode.agent import NO_TASK, Agent
from evert.bridge.errors import InvalidDatasetError, ReplayError
from evert.bridge.groups.dataset import AgentDataset
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.bridge.records.record import RolloutRecord
from evert.bridge.records.replay import ReplayPolicy, check_seatless

ChooseTurn = int | Callable[[RolloutRecord], int]
"""Index of the first sampled turn (-1 for the last turn), or a function that takes a record."""


class BranchEnv(ChatAgentEnv):
    """An episode that starts with the first turns of a recorded episode.

    Args:
        record: The recorded rollout.
        turn: The first sampled turn. Earlier turns are replayed from the record.
        agent: The agent.
        task: The task (default: the recorded task).
        **options: Options for ``ChatAgentEnv``. Replayed turns count towards the limits.

    Attributes:
        earned: Reward of the replayed turns, which is not part of the trajectory's reward.

    Raises:
        InvalidDatasetError: The record has no such turn.
        RecordError: The record has no task, or belongs to a seat.
    """

    def __init__(
        self,
        record: RolloutRecord,
        turn: int,
        agent: Agent,
        task: object = NO_TASK,
        **options: Unpack[EnvOptions],
    ) -> None:
        check_seatless(record)
        task = record.task if task is NO_TASK else task
        super().__init__(agent, task, seed=record.row["seed"], **options)
        _check_turn(record, turn)
        self._record, self._turn = record, turn % record.turns
        self.earned = 0.0

    def renewed(self) -> "BranchEnv":
        """Create another branch of the same record that starts at the same turn."""
        return BranchEnv(self._record, self._turn, self.agent, self.task, **self._options)

    async def initial_observation(
        self,
    ) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        """Replay the agent up to the first sampled turn, and return the prompt of that turn.

        Raises:
            ReplayError: The agent did not behave as recorded before that turn.
            AgentError, AgentTimeoutError, RewardError, EnvClosedError: See ``step``.
        """
        policy, queue = ReplayPolicy(self._record, self), self.open_calls.queue
        replayed = policy.queue()
        self.open_calls.use(replayed, overlap=True)  # answer in the recorded order
        current = await super().initial_observation()
        replayed_turns = (t for t in range(self._turn) if not self._record.is_given_up(t))
        for turn in replayed_turns:
            if isinstance(current, InitialObservationOverflow):
                break
            action = await replayed(*current)
            result = await self.step(action.tokens, extra={"stop_reason": action.stop_reason})
            self.earned += result.reward
            if result.episode_done:
                raise ReplayError(
                    f"The agent differs from its record at turn {turn + 1}: the episode ended, but "
                    f"the branch starts at turn {self._turn}."
                )
            current = result.next_observation, result.next_stop_condition
        if isinstance(current, InitialObservationOverflow):
            policy.check_over()
            return current
        policy.check_at(self._turn, current[0])
        self.open_calls.use(queue)  # the policy answers the remaining calls
        self.earned += self._turns.account.take_late_reward()
        self.turn_lineages.clear()
        self.turn_callers.clear()
        self.transcript = self.transcript and Transcript()
        return current


class BranchDataset(AgentDataset):
    """A dataset with one group of branches per record.

    Args:
        agent: The agent, or its import path.
        records: Recorded rollouts of the agent, which must not have seats.
        turn: The first sampled turn (0 samples the whole episode, -1 only the last turn), or a
            function that takes a record and returns this turn. It is called for every group.
        **options: Options for ``AgentDataset``: ``batch_size``, ``group_size``, ``epochs``, ...

    Raises:
        InvalidDatasetError: ``records`` is empty, or a record belongs to a seat or does not have
            that turn.
        RecordError: A record has no task.
    """

    def __init__(
        self,
        agent: Agent | str,
        records: Sequence[RolloutRecord],
        *,
        turn: ChooseTurn,
        **options: Any,
    ) -> None:
        for record in records:
            if record.row["seat"] is not None:
                raise InvalidDatasetError(
                    f"A record belongs to the seat {record.row['seat']!r}. Episodes with seats "
                    "cannot be branched because the replies of the other seats are in different "
                    "records."
                )
            if isinstance(turn, int):
                _check_turn(record, turn)
        self._choose = turn
        super().__init__(agent, records, **options)

    def group(self, number: int) -> ChatAgentGroupBuilder:
        """Create the group of branches for a record."""
        record: RolloutRecord = self.tasks[number]
        turn = self._choose if isinstance(self._choose, int) else self._choose(record)
        options: Any = {**self.options, "seats": ()}  # episodes with seats cannot be branched
        branch = partial(BranchEnv, record, turn)
        return ChatAgentGroupBuilder(
            self.agent, record.task, self.group_size, branch=branch, **options
        )


def _check_turn(record: RolloutRecord, turn: int) -> None:
    if not -record.turns <= turn < record.turns:
        raise InvalidDatasetError(
            f"A record with {record.turns} turns has no turn {turn}; expected a number from 0 to "
            f"{record.turns - 1}, or -1 for the last turn."
        )
