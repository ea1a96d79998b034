"""Seats: agents with several trained roles, one Env a role.

    ChatAgentGroupBuilder(agent, task, group_size=4, seats=("player", "judge"))

The agent asks for a role's client with ``client.seat("judge")``, or names the model
``evert/judge``; it runs once an episode, and each role's calls are the observations of that role's
Env. It returns one reward for all, or a dict with one a seat. What ends an episode at one seat (a
limit, an overflow, a rollout that is given up) ends it at all: the others stop with
``stop/peer_stopped`` and what they have earned.

A seat may be played by a frozen model: ``seats=("player",), models={"evert/judge": ...}``. It has
no Env, and nothing that it says is trained on.

An episode begins when all of its seats are taken. A strategy that plays a failed trajectory again
asks its builder for one Env at a time: ``SeatGroup`` hands out the seats of a new episode one after
the other, so that whole episodes are played again, and tells a seat that waits in vain.
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
"""Seconds that a seat waits for others after the last Env that could still bring them is over."""


def frozen_seats(models: Mapping[str, object] | None) -> tuple[str, ...]:
    """The seats that frozen models play, by the models' names."""
    return tuple(n.removeprefix(SEAT_PREFIX) for n in models or () if n.startswith(SEAT_PREFIX))


def with_opponents(
    seats: Sequence[str], options: EnvOptions, opponents: Mapping[str, FrozenModel]
) -> tuple[tuple[str, ...], EnvOptions]:
    """The seats that are left, and the options with frozen models at the others."""
    models = {**(options.get("models") or {})}
    models |= {seat_model(seat): model for seat, model in opponents.items()}
    left = tuple(seat for seat in seats if seat not in opponents)
    return left, {**options, "models": models}


def check_seats(seats: Sequence[str], frozen: Sequence[str] = ()) -> None:
    """Check the names of seats.

    Raises:
        InvalidDatasetError: They are no different non-empty strings, or there is only one.
    """
    if (
        isinstance(seats, str)
        or len(seats) + len(frozen) < 2
        or len({*seats, *frozen}) < len(seats) + len(frozen)
        or not all(isinstance(seat, str) and seat for seat in seats)
    ):
        raise InvalidDatasetError(
            f"seats must be two or more different names, got {seats!r}"
            + (f" beside {', '.join(frozen)}, which frozen models play" if frozen else "")
            + ". An agent with one trained role needs none."
        )


def seat_envs(
    agent: Agent,
    seats: Sequence[str],
    task: object = NO_TASK,
    *,
    seed: int | None = None,
    **options: Unpack[EnvOptions],
) -> "list[SeatEnv]":
    """The Envs of one episode, one a seat. They must be played at the same time.

    Raises:
        InvalidDatasetError: The seats are not two or more different names.
        InvalidAgentError, RendererMismatchError: As ``ChatAgentEnv``.
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
    """The Envs of one episode: one, or one a seat where there are seats.

    Raises:
        EvertError: As ``ChatAgentEnv`` and ``seat_envs``.
    """
    if seats:
        return [*seat_envs(agent, seats, task, seed=seed, **options)]
    return [ChatAgentEnv(agent, task, seed=seed, **options)]


class SeatGroup:
    """The episodes of a group whose agent has seats.

    Raises:
        InvalidDatasetError: The seats are not two or more different names, or the options name
            the policy beside them.
    """

    def __init__(
        self, agent: Agent, seats: Sequence[str], task: object, options: EnvOptions
    ) -> None:
        frozen = frozen_seats(options.get("models"))
        check_seats(seats, frozen)
        if "policy_names" in options:
            raise InvalidDatasetError(
                f"policy_names={options['policy_names']!r} beside seats={tuple(seats)!r}: each "
                f"seat has a name of its own. Leave policy_names out, and let the agent ask for "
                f"{seat_model(seats[0])!r}, or use client.seat({seats[0]!r})."
            )
        self._made_of = (agent, task, options)
        self._seats = tuple(seats)
        self.roles = (*seats, *frozen)
        self._owed: list[SeatEnv] = []
        self._waits: dict[SeatEnv, bool] = {}  # of each that is not over: waits it for others?

    def new_episode(self, seed: int | None = None) -> "list[SeatEnv]":
        """The Envs of a new episode, one a seat."""
        envs = self._new_envs(seed)
        self._waits.update(dict.fromkeys(envs, False))
        return envs

    def next_seat(self, seed: int | None = None) -> "SeatEnv":
        """One Env to play in the place of one that failed: the next seat of a new episode."""
        self._owed = self._owed or self._new_envs(seed)
        env = self._owed.pop(0)
        self._waits[env] = False
        return env

    def _new_envs(self, seed: int | None) -> "list[SeatEnv]":
        table = _Table(self._seats, seed)
        return [SeatEnv(self, table, seat, *self._made_of) for seat in self._seats]

    def waits(self, env: "SeatEnv") -> None:
        """A seat was taken whose episode has not begun."""
        self._waits[env] = True
        self._look()

    def begins(self, table: "_Table") -> None:
        """An episode begins: its seats wait no more."""
        self._waits.update({env: False for env in self._waits if env.table is table})

    def is_over(self, env: "SeatEnv") -> None:
        """A seat has been played to its end, or failed, or was given up."""
        self._waits.pop(env, None)
        self._look()

    def _look(self) -> None:
        """Give up waiting seats once no seat is left that could fail and be played again."""
        if self._waits and all(self._waits.values()):
            asyncio.get_running_loop().call_later(LONE_SEAT_PATIENCE, self._tell_lone_seats)

    def _tell_lone_seats(self) -> None:
        if all(self._waits.values()):
            for env in self._waits:
                env.table.settled.set()


class _Table:
    def __init__(self, seats: tuple[str, ...], seed: int | None) -> None:
        self.seats = seats
        self.seed = seed
        self.taken: set[str] = set()
        self.loop: asyncio.AbstractEventLoop | None = None  # of those who have taken theirs
        self.episode: Episode | None = None
        self.problem: BaseException | None = None
        self.settled = asyncio.Event()  # the episode has begun, or never will

    async def wait(self, seat: str) -> tuple[Episode, Inbox[Any]]:
        """The episode and the seat's inbox, once all seats are taken.

        Raises:
            EnvClosedError: The episode was given up before, or its agent could not be started.
        """
        await self.settled.wait()
        if self.problem is not None:
            raise EnvClosedError(
                f"The episode has no agent: it could not be started when the last seat was taken. "
                f"{type(self.problem).__name__}: {text_of(self.problem)}"
            ) from self.problem
        if self.episode is None:
            missing = [seat for seat in self.seats if seat not in self.taken]
            raise EnvClosedError(
                f"The episode was given up before its agent began: the seat {seat!r} waited for "
                f"{', '.join(missing)}. All seats of an episode are played at the same time. (A "
                "strategy that keeps partial groups, like MinViableGroup, may play one seat again "
                "without the others; RetryOnFailure plays all.)"
            )
        return self.episode, self.episode.routes.seats[seat]


class SeatEnv(ChatAgentEnv):
    """One seat of an episode; made by ``seat_envs``."""

    def __init__(
        self,
        group: SeatGroup,
        table: _Table,
        seat: str,
        agent: Agent,
        task: object,
        options: EnvOptions,
    ) -> None:
        self._share = partial(_share_of, seat, group.roles)
        named: EnvOptions = {**options, "policy_names": seat_model(seat)}
        super().__init__(agent, task, **named)
        self._group = group
        self.table = table
        self.seat = seat

    def renewed(self) -> "SeatEnv":
        """This seat of a new episode, whose other seats nobody plays.

        Raises:
            EnvStateError: Always: an episode's seats are made together.
        """
        raise EnvStateError(
            f"The seat {self.seat!r} has no new episode of its own: make all seats of one with "
            "evert.bridge.env.seats.seat_envs, and play them at the same time."
        )

    async def _begin(self) -> tuple[Episode, Inbox[Any]]:
        table = self.table
        table.taken.add(self.seat)
        table.loop = asyncio.get_running_loop()
        if len(table.taken) == len(table.seats) and not table.settled.is_set():
            roles = [[seat_model(seat)] for seat in table.seats]
            try:
                table.episode = self._start(roles, table.seed)
            except BaseException as error:
                table.problem = error
                raise
            finally:
                table.settled.set()
            self._group.begins(table)
        else:
            self._group.waits(self)
        return await table.wait(self.seat)

    async def initial_observation(
        self,
    ) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        """As ``ChatAgentEnv``'s, once all seats are taken."""
        return await self._told(super().initial_observation())

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """As ``ChatAgentEnv``'s."""
        return await self._told(super().step(action, extra=extra))

    async def _told(self, moment: Awaitable[T]) -> T:
        try:
            result = await moment
        except BaseException:
            self._group.is_over(self)
            raise
        if isinstance(result, InitialObservationOverflow) or getattr(result, "episode_done", False):
            self._group.is_over(self)
        return result

    async def close(self) -> None:
        """Give the episode up, at every seat; see ``ChatAgentEnv.close``."""
        loop = self.table.loop
        if loop is not None and loop is not asyncio.get_running_loop() and loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), loop))
            return
        self.table.settled.set()  # whoever waits for the others learns that it is over
        await self._turns.close(self.table.episode)
        self._group.is_over(self)


def _share_of(seat: str, seats: Sequence[str], value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if set(value) != set(seats):
        raise RewardError(
            f"The agent returned rewards for {', '.join(map(str, value)) or 'no seat'}; its "
            f"seats are {', '.join(seats)}. Return one for each, or one number for all."
        )
    return value[seat]
