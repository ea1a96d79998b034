"""Seats: agents with several trained roles, one Env a role.

    ChatAgentGroupBuilder(agent, task, group_size=4, seats=("player", "judge"))

The agent asks for a role's client with ``client.seat("judge")``, or names the model
``evert/judge``; it runs once an episode, and each role's calls are the observations of that role's
Env. It returns one reward for all, or a dict with one a seat. What ends an episode at one seat (a
limit, an overflow, a rollout that is given up) ends it at all: the others stop with
``stop/peer_stopped`` and what they have earned.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from evert.bridge.agent import NO_TASK, Agent
from evert.bridge.env import ChatAgentEnv, EnvOptions
from evert.bridge.errors import (
    EnvClosedError,
    EnvStateError,
    InvalidDatasetError,
    RewardError,
)
from evert.bridge.switch import AgentRun, seat_model


def check_seats(seats: Sequence[str]) -> None:
    """Check the names of seats.

    Raises:
        InvalidDatasetError: They are no different non-empty strings, or there is only one.
    """
    if (
        isinstance(seats, str)
        or len(seats) < 2
        or len(set(seats)) < len(seats)
        or not all(isinstance(seat, str) and seat for seat in seats)
    ):
        raise InvalidDatasetError(
            f"seats must be two or more different names, got {seats!r}. An agent with one trained "
            "role needs none."
        )


def seat_envs(
    agent: Agent, seats: Sequence[str], task: object = NO_TASK, **options: Unpack[EnvOptions]
) -> "list[SeatEnv]":
    """The Envs of one episode, one a seat. They must be played at the same time.

    Raises:
        InvalidDatasetError: The seats are not two or more different names.
        InvalidAgentError, RendererMismatchError: As ``ChatAgentEnv``.
    """
    check_seats(seats)
    table = _Table(tuple(seats))
    return [SeatEnv(table, seat, agent, task, options) for seat in seats]


class _Table:
    """What the seats of one episode share: their runs, and whether all have arrived."""

    def __init__(self, seats: tuple[str, ...]) -> None:
        self.seats = seats
        self.runs: dict[str, AgentRun] = {}
        self.settled = asyncio.Event()
        """Set when the agent has started, or never will."""
        self.closed = False


class SeatEnv(ChatAgentEnv):
    """One seat of an episode; made by ``seat_envs``."""

    def __init__(
        self, table: _Table, seat: str, agent: Agent, task: object, options: EnvOptions
    ) -> None:
        named: Any = {**options, "model_name": seat_model(seat)}
        super().__init__(agent, task, **named)
        self._table = table
        self.seat = seat

    def renewed(self) -> "SeatEnv":
        """This seat of a new episode, whose other seats nobody plays.

        Raises:
            EnvStateError: Always: an episode's seats are made together.
        """
        raise EnvStateError(
            f"The seat {self.seat!r} has no new episode of its own: make all seats of one with "
            "evert.bridge.seats.seat_envs, and play them at the same time."
        )

    async def _begin(self, run: AgentRun, model: str) -> None:
        """Take the seat; the last to arrive starts the agent, as the first seat's.

        Raises:
            EnvClosedError: The episode was given up before all seats were taken.
        """
        table = self._table
        table.runs[self.seat] = run
        if len(table.runs) == len(table.seats) and not table.closed:
            runs = {seat_model(seat): table.runs[seat] for seat in table.seats}
            for seated in runs.values():
                seated.seats = runs
            first = seat_model(table.seats[0])
            await super()._begin(runs[first], first)
            table.settled.set()
        await table.settled.wait()
        if not run.seats:
            missing = [seat for seat in table.seats if seat not in table.runs]
            raise EnvClosedError(
                f"The episode was given up before its agent began: the seat {self.seat!r} waited "
                f"for {', '.join(missing)}. All seats of an episode are played at the same time."
            )

    def _own_share(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if set(value) != set(self._table.seats):
            raise RewardError(
                f"The agent returned rewards for {', '.join(map(str, value)) or 'no seat'}; its "
                f"seats are {', '.join(self._table.seats)}. Return one for each, or one number for "
                "all."
            )
        return value[self.seat]

    async def close(self) -> None:
        """Give the episode up, at every seat; see ``ChatAgentEnv.close``."""
        table = self._table
        table.closed = True
        table.settled.set()  # whoever waits for the others learns that it is over
        if self._run is None or self._run.seats:
            await super().close()
        else:
            self._closed = True
