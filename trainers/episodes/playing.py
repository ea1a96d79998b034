"""Plays episodes and records them.

An episode is identified by the contestant's digest, split, task and seed. The split, task and seed
determine all random numbers in the episode. Recorded episodes (``episodes.jsonl``) are not played
again, so you can resume an interrupted evaluation and get the same table. If the weights are
trained further, their digest changes.
"""

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias, TypeVar

from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.rl.rollout_runner import RolloutHooks
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.env.endings import NO_CALL
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.env.parallel import do_parallel_rollout
from evert.bridge.env.seats import episode_envs, with_opponents
from evert.bridge.episode.seeds import seed_of
from evert.bridge.errors import EvertError
from evert.bridge.groups.opponents import Opponents
from evert.bridge.models.tinker_model import TinkerModel
from evert.bridge.records.recorder import Recorder
from evert.bridge.records.sequences import dialogue
from evert.bridge.redaction import redacted
from evert.trainers.config.fields import at_a_time
from evert.trainers.episodes.failures import (
    REFUSALS,
    Failure,
    Failures,
    failure_in,
    failure_of,
)
from evert.trainers.system.files import drop_broken_lines, read_jsonl

EPISODES = "episodes.jsonl"
T = TypeVar("T")


class EpisodeError(EvertError, ValueError):
    """This version of evert can't read the record of an episode."""


@dataclass(frozen=True)
class EpisodeResult:
    """The result of an episode (a line in ``episodes.jsonl``). A text that is missing is "".

    Attributes:
        digest: The contestant's digest (``players.py``), or "" if the episode is not reusable.
        reward: The episode's reward, or None if the agent failed.
        tokens: Number of sampled tokens.
        metrics: The agent's and the Env's metrics, summed over all turns.
        failure: Kind of failure, a key in ``failures.KINDS``.
        dialogue: For each model call, ``told`` is the new text in the prompt and ``said`` is the
            reply. Only recorded on request.
    """

    model: str
    digest: str
    split: str
    task: int
    seed: int
    category: str = ""
    target: str = ""
    reward: float | None = None
    success: bool = False
    turns: int = 0
    tokens: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""
    failure: str = ""
    traceback: str = ""
    transcript: str = ""
    dialogue: list[dict[str, str]] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, int, int]:
        """The key that identifies the episode."""
        return self.digest, self.split, self.task, self.seed

    @property
    def draws(self) -> int:
        """Seed for everything random in the episode. Identical tasks get different seeds."""
        return seed_of(self.split, self.task, self.seed) >> 1

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "EpisodeResult":
        """Create a result from a recorded line."""
        try:
            return cls(**record)
        except TypeError as error:
            raise EpisodeError(
                f"The record of an episode has different fields than this version of evert "
                f"expects: {error}. Use a different folder, or the version that wrote it."
            ) from error


class EpisodeLog:
    """The recorded episodes of an evaluation. Each is written to disk as soon as it finishes.

    ``by_key`` contains them in the order in which they finished.
    """

    def __init__(self, folder: Path) -> None:
        """Read the recorded episodes. If the last one was truncated by a crash, drop it."""
        self.folder = folder
        self._path = folder / EPISODES
        drop_broken_lines(self._path)
        episodes = [EpisodeResult.read(record) for record in read_jsonl(self._path)]
        self.by_key = {episode.key: episode for episode in episodes}

    def add(self, episode: EpisodeResult) -> None:
        """Record an episode."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(redacted(json.dumps(asdict(episode))) + "\n")
        self.by_key[episode.key] = episode


PlannedEpisode: TypeAlias = tuple[EpisodeResult, Any]
"""An episode to play, and its task."""


def plan_episodes(
    model: str, digest: str, tasks: Mapping[str, Sequence[Any]], seeds: Sequence[int]
) -> list[PlannedEpisode]:
    """Return the episodes that a model should play: one for each split, task and seed."""
    return [
        (EpisodeResult(model, digest, split, number, seed, _category(task), str(task)), task)
        for split, listed in tasks.items()
        for number, task in enumerate(listed)
        for seed in seeds
    ]


def _category(task: Any) -> str:
    return str(task.get("category", "")) if isinstance(task, Mapping) else ""


# -- playing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Player:
    """A contestant that is ready to play. Its agent and policy are functions of a seed.

    Attributes:
        opponents: Models that play some of the seats (None: the policy plays all seats).
        strict: Whether to raise an error if an agent fails. Otherwise, the episode has no reward.
        dialogues: Number of tasks per split for which dialogues are recorded.
        record: Records all rollouts, if set.
        hooks: Takes an Env and returns hooks for its rollout, or None.
    """

    agent: Callable[[int], Any]
    policy: Callable[[ChatAgentEnv, int], TokenCompleter]
    options: EnvOptions = field(default_factory=EnvOptions)
    seats: Sequence[str] = ()
    opponents: Opponents | None = None
    strict: bool = False
    dialogues: int = 0
    record: Recorder | None = None
    hooks: Callable[[ChatAgentEnv], RolloutHooks | None] = lambda env: None


async def play(
    episodes: Sequence[PlannedEpisode],
    player: Player,
    *when_over: Callable[[EpisodeResult], None],
    success: float = 1.0,
    places: asyncio.Semaphore | None = None,
) -> list[EpisodeResult]:
    """Play episodes concurrently and return their results in the same order.

    Args:
        when_over: Called with each result.
        success: Minimum reward that counts as a success.
        places: Limits how many episodes are played concurrently (default: ``at_a_time``).

    Raises:
        openai.OpenAIError: A request to the policy's endpoint failed.
        EvertError: An agent failed and the player is strict, or something else failed.
    """
    free = places or asyncio.Semaphore(at_a_time(None))

    async def play_one(episode: EpisodeResult, task: Any) -> EpisodeResult:
        async with free:
            result = await _play_one(episode, task, player, success)
        for callback in when_over:
            callback(result)
        return result

    return await side_by_side(play_one(*pair) for pair in episodes)


async def side_by_side(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results.

    If one of them fails, cancel the others and raise the error.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from errors
    return [task.result() for task in tasks]


async def _play_one(
    episode: EpisodeResult, task: Any, player: Player, success: float
) -> EpisodeResult:
    draws = episode.draws
    player = _seated(player, episode)
    options = _seeded(player.options, draws)
    envs = episode_envs(player.agent(draws), task, player.seats, seed=draws, **options)
    if player.record is not None:
        envs = [*map(player.record.watch, envs)]
    rollouts = [
        do_parallel_rollout(
            player.policy(env, _seat_seed(draws, number)), env, hooks=player.hooks(env)
        )
        for number, env in enumerate(envs)
    ]
    try:
        trajectories = await gather_seats(rollouts)
    except (EvertError, *REFUSALS) as error:
        failure = failure_of(error)
        if failure is None or player.strict:
            raise
        return _with_failure(episode, failure)
    finally:
        for env in envs:
            await env.close()
    if player.record is not None:
        about = {"model": episode.model, "task_number": episode.task, "seed": episode.seed}
        player.record.add(trajectories, envs, split=episode.split, about=about)
    return _result(episode, trajectories, envs, player, success)


def _seated(player: Player, episode: EpisodeResult) -> Player:
    if player.opponents is None:
        return player
    number = episode.task + episode.seed
    opponents = player.opponents(player.seats, 0, number, episode.draws)
    seats, options = with_opponents(player.seats, player.options, opponents)
    return replace(player, seats=seats, options=options)


def _seeded(options: EnvOptions, seed: int) -> EnvOptions:
    frozen = options.get("models")
    if not frozen:
        return options
    unseeded = {n: m for n, m in frozen.items() if isinstance(m, TinkerModel) and m.seed is None}
    seeded = {name: replace(model, seed=seed) for name, model in unseeded.items()}
    return {**options, "models": {**frozen, **seeded}}


def _seat_seed(draws: int, number: int) -> int:
    """Return a different seed for each seat, so that seats reply differently to the same prompt."""
    return (draws + 1_000_003 * number) % 2**31


async def gather_seats(rollouts: Sequence[Coroutine[Any, Any, Trajectory]]) -> list[Trajectory]:
    """Play an episode's seats concurrently.

    Failures that only affect this episode are raised after all seats have finished. Other errors
    are raised immediately, because if the policy fails for one seat, the others would never finish.
    """
    ends = await side_by_side(map(_trajectory_or_failure, rollouts))
    for end in ends:
        if isinstance(end, Exception):
            raise end
    return [end for end in ends if isinstance(end, Trajectory)]


async def _trajectory_or_failure(
    rollout: Coroutine[Any, Any, Trajectory],
) -> Trajectory | Exception:
    try:
        return await rollout
    except (EvertError, *REFUSALS) as error:
        if failure_of(error) is None:
            raise
        return error


def _result(
    episode: EpisodeResult,
    trajectories: Sequence[Trajectory],
    envs: Sequence[ChatAgentEnv],
    player: Player,
    success: float,
) -> EpisodeResult:
    rewards = [sum(turn.reward for turn in trajectory.transitions) for trajectory in trajectories]
    reward = fmean(rewards)
    transitions = [turn for trajectory in trajectories for turn in trajectory.transitions]
    for failure in filter(None, map(failure_in, trajectories)):
        if failure.kind != NO_CALL:  # some players don't make model calls
            episode = _with_failure(episode, failure)
            break
    by_seat = {f"seat/{s}/reward": r for s, r in zip(player.seats, rewards, strict=False)}
    return replace(
        episode,
        reward=reward,
        success=reward >= success or math.isclose(reward, success),  # the sum of ten 0.1s is < 1
        turns=sum(env.turns for env in envs),
        tokens=sum(len(transition.ac.tokens) for transition in transitions),
        metrics={**summed(transitions), **by_seat},
        transcript=str(transitions[-1].logs.get("transcript", "")),
        dialogue=[
            turn
            for env, trajectory in zip(envs, trajectories, strict=True)
            if episode.task < player.dialogues
            for turn in dialogue(trajectory, env.renderer.tokenizer)
        ],
    )


def summed(transitions: Iterable[Transition]) -> dict[str, float]:
    """Sum the agent's and the Env's metrics over all turns."""
    metrics = defaultdict[str, float](float)
    for transition in transitions:
        for name, value in transition.metrics.items():
            metrics[name] += value
    return dict(metrics)


def _with_failure(episode: EpisodeResult, failure: Failure) -> EpisodeResult:
    error, kind, traceback = failure.error, failure.kind, failure.traceback
    return replace(episode, error=error, failure=kind, traceback=traceback)


def failures(episodes: Sequence[EpisodeResult]) -> Failures:
    """Collect the failures of the given episodes."""
    failed_episodes = [episode for episode in episodes if episode.failure]
    pairs = [
        (Failure(e.failure, e.error, e.traceback, e.reward is not None), 1) for e in failed_episodes
    ]
    return Failures.of(len(episodes), pairs)
