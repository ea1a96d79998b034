"""Plays episodes and records each.

An episode is identified by the contestant's digest, split, task and seed; the last three seed
everything random in it. Recorded episodes (``episodes.jsonl``) are not played again, so that an
interrupted evaluation ends with the same table. Further training of weights changes their digest.

In order: the record, its file, :func:`plan_episodes` (the episodes to play), :func:`play`.
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
    """A record of an episode that this version of evert cannot read."""


@dataclass(frozen=True)
class EpisodeResult:
    """The result of one episode, a line of ``episodes.jsonl``; a missing text is "".

    Attributes:
        digest: The contestant's digest (``players.py``); "" if the episode is never looked up.
        reward: The episode's reward; None if the agent failed.
        tokens: Number of sampled tokens.
        metrics: Metrics of the agent and the Env, summed over the turns.
        failure: Kind of the failure, a key of ``failures.KINDS``.
        dialogue: For each model call, ``told`` is the new text of the prompt, and ``said`` the
            reply; empty unless requested.
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
        """Seed of everything random in the episode, different even for similar tasks."""
        return seed_of(self.split, self.task, self.seed) >> 1

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "EpisodeResult":
        """Read an episode from its recorded fields."""
        try:
            return cls(**record)
        except TypeError as error:
            raise EpisodeError(
                f"A record of an episode has other fields than this version of evert expects: "
                f"{error}. Start again in another folder, or use the version that wrote it."
            ) from error


class EpisodeLog:
    """The episodes of an evaluation, written as soon as each ends; ``by_key`` keeps that order."""

    def __init__(self, folder: Path) -> None:
        """Read the recorded episodes; one that a crash cut off is dropped, and played again."""
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
    """Return all episodes for a model to play: one for each split, task and seed."""
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
    """A contestant that is ready to play, with functions from a seed to its agent and its policy.

    Attributes:
        opponents: Models that play some of the seats; None: the policy plays all seats.
        strict: Whether an agent's failure is raised; if not, the episode has no reward.
        dialogues: Number of tasks per split for which dialogues are recorded.
        record: Records every rollout; None: no record.
        hooks: Returns the hooks into an Env's rollout; None: no hooks.
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
    """Play episodes concurrently; return their results in the planned order.

    Args:
        when_over: Called with each result.
        success: Lowest reward that counts as a success.
        places: Limits how many episodes are played at a time; None: ``at_a_time``.

    Raises:
        openai.OpenAIError: The policy's endpoint cannot answer.
        EvertError: Something other than an agent failed; or an agent, if the player is strict.
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
    """Run coroutines concurrently; return their results, or raise the first error and end all."""
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
    """Return a seat's policy seed, so that seats sample different replies to the same prompt."""
    return (draws + 1_000_003 * number) % 2**31


async def gather_seats(rollouts: Sequence[Coroutine[Any, Any, Trajectory]]) -> list[Trajectory]:
    """Play an episode's seats concurrently.

    A failure of this episode is raised after all seats have ended. Any other error is raised at
    once: if the policy fails at one seat, the other seats would never end.
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
        if failure.kind != NO_CALL:  # some players make no model calls
            episode = _with_failure(episode, failure)
            break
    by_seat = {f"seat/{s}/reward": r for s, r in zip(player.seats, rewards, strict=False)}
    return replace(
        episode,
        reward=reward,
        success=reward >= success or math.isclose(reward, success),  # a sum of ten 0.1 is below 1
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
    """Sum the metrics of the agent and the Env over all turns."""
    metrics = defaultdict[str, float](float)
    for transition in transitions:
        for name, value in transition.metrics.items():
            metrics[name] += value
    return dict(metrics)


def _with_failure(episode: EpisodeResult, failure: Failure) -> EpisodeResult:
    error, kind, traceback = failure.error, failure.kind, failure.traceback
    return replace(episode, error=error, failure=kind, traceback=traceback)


def failures(episodes: Sequence[EpisodeResult]) -> Failures:
    """Return the failures of some episodes."""
    failed_episodes = [episode for episode in episodes if episode.failure]
    pairs = [
        (Failure(e.failure, e.error, e.traceback, e.reward is not None), 1) for e in failed_episodes
    ]
    return Failures.of(len(episodes), pairs)
