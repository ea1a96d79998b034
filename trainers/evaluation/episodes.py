"""Playing the episodes of an evaluation, and the record of every one, ``episodes.jsonl``.

An episode is known by model, split, task and seed, and drawn from that seed alone: those that are
on record are not played again, and an evaluation that was interrupted ends with the same table.

In order: the record, its file, :func:`planned` (what there is to play), :func:`play`.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from evert.bridge.env import ChatAgentEnv
from evert.bridge.errors import AgentError, AgentTimeoutError, RewardError
from evert.trainers.evaluation.settings import EvaluateSettings
from evert.trainers.runs.folder import drop_broken_lines, read_jsonl

if TYPE_CHECKING:
    from tinker_cookbook.rl.types import Trajectory

    from evert.trainers.evaluation.contestants import Seat

EPISODES = "episodes.jsonl"

Key: TypeAlias = tuple[str, str, int, int]


@dataclass(frozen=True)
class Episode:
    """How one episode went.

    Attributes:
        model: Who played, as the user named it.
        split: "train" or "test".
        task: Number of the task within its split.
        seed: Of the episode.
        category: The task's, where it has one; else "".
        reward: What it earned; None if the agent failed.
        success: Whether that was enough.
        turns: Model calls.
        tokens: Tokens that were sampled.
        metrics: What the agent and the Env counted, summed over the turns.
        error: Of the agent; "" if it had none.
        target: The task, in words.
        transcript: The agent's own account of it; "" if it gave none.
    """

    model: str
    split: str
    task: int
    seed: int
    category: str
    reward: float | None
    success: bool
    turns: int
    tokens: int
    metrics: dict[str, float]
    error: str = ""
    target: str = ""
    transcript: str = ""

    @property
    def key(self) -> Key:
        """What makes it this episode."""
        return self.model, self.split, self.task, self.seed


class EpisodeLog:
    """The episodes of an evaluation, on disk as soon as they are over."""

    def __init__(self, folder: Path) -> None:
        """Read what is there; a line that a crash cut off is set aside, and played again."""
        self._path = folder / EPISODES
        drop_broken_lines(self._path)
        self.episodes = [Episode(**record) for record in read_jsonl(self._path)]

    def add(self, episode: Episode) -> None:
        """Write one down."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(episode)) + "\n")
        self.episodes.append(episode)

    @property
    def keys(self) -> set[Key]:
        """What is on record."""
        return {episode.key for episode in self.episodes}


@dataclass(frozen=True)
class Planned:
    """An episode to play."""

    model: str
    split: str
    number: int
    task: Any
    seed: int

    @property
    def key(self) -> Key:
        """As an ``Episode``'s."""
        return self.model, self.split, self.number, self.seed

    @property
    def draws(self) -> int:
        """Seed of all that is drawn in it: tasks that begin alike are not played alike."""
        text = f"{self.split}/{self.number}/{self.seed}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) >> 1


def planned(
    model: str, tasks: Mapping[str, Sequence[Any]], settings: EvaluateSettings
) -> Iterator[Planned]:
    """All episodes of a model."""
    for split, listed in tasks.items():
        for number, task in enumerate(listed):
            for seed in range(settings.seed, settings.seed + settings.seeds):
                yield Planned(model, split, number, task, seed)


async def play(
    episodes: Sequence[Planned],
    seat: "Seat",
    settings: EvaluateSettings,
    *when_over: Callable[[Episode], None],
) -> None:
    """Play episodes side by side; ``when_over`` get each one when it is over.

    Raises:
        openai.OpenAIError: An endpoint cannot answer.
        EvertError: Something else than the agent failed.
    """
    places = asyncio.Semaphore(settings.parallel)

    async def one(episode: Planned) -> None:
        async with places:
            over = await _play_one(episode, seat, settings)
        for tell in when_over:
            tell(over)

    try:
        async with asyncio.TaskGroup() as group:
            for episode in episodes:
                group.create_task(one(episode))
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _play_one(episode: Planned, seat: "Seat", settings: EvaluateSettings) -> Episode:
    from tinker_cookbook.rl.rollouts import do_single_rollout

    env = ChatAgentEnv(seat.agent(episode.draws), episode.task, renderer=seat.renderer)
    try:
        trajectory = await do_single_rollout(seat.policy(env, episode.draws), env)
    except (AgentError, AgentTimeoutError, RewardError) as error:
        _raise_endpoint_error(error)
        return _failed(episode, f"{error}")
    finally:
        await env.close()
    return _episode(episode, trajectory, env.turns, settings.success)


def _raise_endpoint_error(error: BaseException) -> None:
    """An endpoint of the agent's own (its answerer's, say) that is down is no failure of the agent.

    Raises:
        openai.OpenAIError: It was one.
    """
    import openai

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, openai.OpenAIError) and not isinstance(cause, openai.BadRequestError):
            raise cause
        cause = cause.__cause__


def _failed(episode: Planned, error: str) -> Episode:
    return Episode(
        *episode.key, _category(episode.task), None, False, 0, 0, {}, error, str(episode.task)
    )


def _episode(episode: Planned, trajectory: "Trajectory", turns: int, success: float) -> Episode:
    transitions = trajectory.transitions
    reward = sum(transition.reward for transition in transitions)
    metrics: dict[str, float] = {}
    for transition in transitions:
        for name, value in transition.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + float(value)
    return Episode(
        *episode.key,
        category=_category(episode.task),
        reward=reward,
        success=reward >= success,
        turns=turns,
        tokens=sum(len(transition.ac.tokens) for transition in transitions),
        metrics=metrics,
        target=str(episode.task),
        transcript=str(transitions[-1].logs.get("transcript", "")),
    )


def _category(task: Any) -> str:
    return str(task.get("category", "")) if isinstance(task, Mapping) else ""
