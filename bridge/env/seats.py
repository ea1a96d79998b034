"""Seats: agents with several trained roles, each with its own Env.

    ChatAgentGroupBuilder(agent, task, group_size=4, seats=("player", "judge"))

The agent gets a client for a role with ``client.seat("judge")``, or uses the model name
``evert/judge``. The agent runs once per episode, and each role's calls become observations of that
role's Env. The agent returns either one reward for all seats or a dict with a reward per seat. If
an episode ends at one seat (because of a limit, an overflow, or an aborted rollout), it ends at all
seats. The other seats stop with ``stop/peer_stopped`` and keep their rewards.

A frozen model can also play a seat: ``seats=("player",), models={"evert/judge": ...}``. Such a seat
has no Env.

An episode starts when all of its seats are taken, that is, when all of its Envs are being played.
Rollout strategies that retry failed trajectories ask the builder for one Env at a time.
``SeatGroup`` then returns the seats of a new episode one by one, so that a whole episode is
retried. It also closes episodes whose missing seats will never be taken.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    InitialObservationOverflow,
    Observation,
    StepResult,
)

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.episode.agent import NO_TASK, Agent
from evert.bridge.episode.episode import Episode
from evert.bridge.episode.inbox import Inbox
from evert.bridge.episode.routes import SEAT_PREFIX, seat_model
from evert.bridge.errors import (
    EnvClosedError,
    EnvStateError,
    InvalidDatasetError,
    RewardError,
    text_of,
)
from evert.bridge.models.frozen import FrozenModel

T = TypeVar("T")

LONE_SEAT_PATIENCE = 1.0
"""Seconds to wait for missing seats once every unfinished Env of the group waits for them."""


def frozen_seats(models: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return the names of seats that are played by frozen models."""
    return tuple(n.removeprefix(SEAT_PREFIX) for n in models or () if n.startswith(SEAT_PREFIX))


def with_opponents(
    seats: Sequence[str], options: EnvOptions, opponents: Mapping[str, FrozenModel]
) -> tuple[tuple[str, ...], EnvOptions]:
    """Return the trained seats, and the options with the opponents added as frozen models."""
    models = {**(options.get("models") or {})}
    models |= {seat_model(seat): model for seat, model in opponents.items()}
    policy_seats = tuple(seat for seat in seats if seat not in opponents)
    return policy_seats, {**options, "models": models}


def check_seats(seats: Sequence[str], frozen: Sequence[str] = ()) -> None:
    """Validate seat names.

    Raises:
        InvalidDatasetError: The names are not unique non-empty strings, or there is only one name.
    """
    if (
        isinstance(seats, str)
        or len(seats) + len(frozen) < 2
        or len({*seats, *frozen}) < len(seats) + len(frozen)
        or not all(isinstance(seat, str) and seat for seat in seats)
    ):
        raise InvalidDatasetError(
            f"seats must be two or more unique names, got {seats!r}"
            + (f" plus {', '.join(frozen)} (played by frozen models)" if frozen else "")
            + ". An agent with only one trained role does not need seats."
        )


def seat_envs(
    agent: Agent,
    seats: Sequence[str],
    task: object = NO_TASK,
    *,
    seed: int | None = None,
    **options: Unpack[EnvOptions],
) -> "list[SeatEnv]":
    """Create the Envs of one episode, one per seat. They must be played concurrently.

    Raises:
        InvalidDatasetError: There are fewer than two seats, or their names are not unique.
        InvalidAgentError, RendererMismatchError: Same as ``ChatAgentEnv``.
    """
    return SeatGroup(agent, seats, task, options).new_episode(seed)


def episode_envs(
    agent: Agent,
    task: object,
    seats: Sequence[str],
    *,
    seed: int | None = None,
    **options: Unpack[EnvOptions],
) -> list[ChatAgentEnv]:
    """Create the Envs of one episode: one per seat, or a single Env if there are no seats.

    Raises:
        EvertError: Same as ``ChatAgentEnv`` and ``seat_envs``.
    """
    if seats:
        return [*seat_envs(agent, seats, task, seed=seed, **options)]
    return [ChatAgentEnv(agent, task, seed=seed, **options)]


class SeatGroup:
    """Creates and tracks the episodes of a group whose agent has seats.

    Raises:
        InvalidDatasetError: There are fewer than two seats, or ``policy_names`` is set.
    """

    def __init__(
        self, agent: Agent, seats: Sequence[str], task: object, options: EnvOptions
    ) -> None:
        frozen = frozen_seats(options.get("models"))
        check_seats(seats, frozen)
        if "policy_names" in options:
            raise InvalidDatasetError(
                f"Got policy_names={options['policy_names']!r} with seats={tuple(seats)!r}, "
                f"but each seat has its own model name. Omit policy_names, and have the agent "
                f"call {seat_model(seats[0])!r} or use client.seat({seats[0]!r})."
            )
        self._episode_arguments = (agent, task, options)
        self._seats = tuple(seats)
        self.roles = (*seats, *frozen)
        self._next_seats: list[SeatEnv] = []
        self._waits: dict[SeatEnv, bool] = {}  # whether each unfinished Env is waiting

    def new_episode(self, seed: int | None = None) -> "list[SeatEnv]":
        """Create the Envs of a new episode, one per seat."""
        envs = self._new_envs(seed)
        self._waits.update(dict.fromkeys(envs, False))
        return envs

    def next_seat(self, seed: int | None = None) -> "SeatEnv":
        """Return an Env to replace a failed one. It is the next seat of a new episode."""
        self._next_seats = self._next_seats or self._new_envs(seed)
        env = self._next_seats.pop(0)
        self._waits[env] = False
        return env

    def _new_envs(self, seed: int | None) -> "list[SeatEnv]":
        table = _SeatTable(self._seats, seed)
        return [SeatEnv(self, table, seat, *self._episode_arguments) for seat in self._seats]

    def note_waiting(self, env: "SeatEnv") -> None:
        """Record that a seat was taken and is waiting for its episode to start."""
        self._waits[env] = True
        self._check_lone_seats()

    def note_begun(self, table: "_SeatTable") -> None:
        """Record that an episode has started, so its seats are no longer waiting."""
        self._waits.update({env: False for env in self._waits if env.table is table})

    def note_over(self, env: "SeatEnv") -> None:
        """Record that a seat's Env has ended, failed or been closed."""
        self._waits.pop(env, None)
        self._check_lone_seats()

    def _check_lone_seats(self) -> None:
        """If all remaining seats are waiting for other seats, release them after a while."""
        if self._waits and all(self._waits.values()):
            asyncio.get_running_loop().call_later(LONE_SEAT_PATIENCE, self._release_lone_seats)

    def _release_lone_seats(self) -> None:
        if all(self._waits.values()):
            for env in self._waits:
                env.table.settled.set()


class _SeatTable:
    def __init__(self, seats: tuple[str, ...], seed: int | None) -> None:
        self.seats = seats
        self.seed = seed
        self.occupied: set[str] = set()
        self.loop: asyncio.AbstractEventLoop | None = None  # the event loop that plays the seats
        self.episode: Episode | None = None
        self.problem: BaseException | None = None
        self.settled = asyncio.Event()  # the episode has started, or will never start

    async def wait(self, seat: str) -> tuple[Episode, Inbox[Any]]:
        """Wait until all seats are taken, and return the episode and the seat's inbox.

        Raises:
            EnvClosedError: The episode was closed before it started, or its agent failed to start.
        """
        await self.settled.wait()
        if self.problem is not None:
            raise EnvClosedError(
                f"The episode's agent could not be started when the last seat was taken. "
                f"{type(self.problem).__name__}: {text_of(self.problem)}"
            ) from self.problem
        if self.episode is None:
            missing = [seat for seat in self.seats if seat not in self.occupied]
            raise EnvClosedError(
                f"The episode was closed before its agent started: the seat {seat!r} was waiting "
                f"for {', '.join(missing)}. Play all seats of an episode concurrently. (Strategies "
                "that keep partial groups, such as MinViableGroup, may retry only one of the "
                "seats; RetryOnFailure retries all of them.)"
            )
        return self.episode, self.episode.routes.seats[seat]


class SeatEnv(ChatAgentEnv):
    """One seat of an episode. Created by ``seat_envs``."""

    def __init__(
        self,
        group: SeatGroup,
        table: _SeatTable,
        seat: str,
        agent: Agent,
        task: object,
        options: EnvOptions,
    ) -> None:
        self._share = partial(_share_of, seat, group.roles)
        seat_options: EnvOptions = {**options, "policy_names": seat_model(seat)}
        super().__init__(agent, task, **seat_options)
        self._group = group
        self.table = table
        self.seat = seat

    def renewed(self) -> "SeatEnv":
        """Not supported for a single seat.

        Raises:
            EnvStateError: Always, because the seats of an episode must be created together.
        """
        raise EnvStateError(
            f"The seat {self.seat!r} cannot be renewed on its own. Create all seats of a new "
            "episode with evert.bridge.env.seats.seat_envs, and play them concurrently."
        )

    async def _begin(self) -> tuple[Episode, Inbox[Any]]:
        table = self.table
        table.occupied.add(self.seat)
        table.loop = asyncio.get_running_loop()
        if len(table.occupied) == len(table.seats) and not table.settled.is_set():
            roles = [[seat_model(seat)] for seat in table.seats]
            try:
                table.episode = self._start(roles, table.seed)
            except BaseException as error:
                table.problem = error
                raise
            finally:
                table.settled.set()
            self._group.note_begun(table)
        else:
            self._group.note_waiting(self)
        return await table.wait(self.seat)

    async def initial_observation(
        self,
    ) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        """See ``ChatAgentEnv``. This also waits until all seats are taken."""
        return await self._until_over(super().initial_observation())

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """See ``ChatAgentEnv``."""
        return await self._until_over(super().step(action, extra=extra))

    async def _until_over(self, moment: Awaitable[T]) -> T:
        try:
            result = await moment
        except BaseException:
            self._group.note_over(self)
            raise
        if isinstance(result, InitialObservationOverflow) or getattr(result, "episode_done", False):
            self._group.note_over(self)
        return result

    async def close(self) -> None:
        """Abort the episode at all seats (see ``ChatAgentEnv.close``)."""
        loop = self.table.loop
        if loop is not None and loop is not asyncio.get_running_loop() and loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), loop))
            return
        self.table.settled.set()  # wakes up seats that wait for other seats
        await self._turns.close(self.table.episode)
        self._group.note_over(self)


def _share_of(seat: str, seats: Sequence[str], value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if set(value) != set(seats):
        raise RewardError(
            f"The agent returned rewards for {', '.join(map(str, value)) or 'no seat'}, but its "
            f"seats are {', '.join(seats)}. Return a reward for each seat, or one number for all."
        )
    return value[seat]
