"""Evaluate on held-out tasks before and after training, with the same scores as ``evert evaluate``.

Every task is played greedily and at temperature 1, with at most ``parallel`` concurrent episodes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import tinker
from tinker_cookbook.rl.rollout_strategy import FailFast

from evert.bridge.env.endings import CUT
from evert.bridge.errors import EvertError
from evert.bridge.groups.dataset import AgentDataset
from evert.trainers.episodes.failures import Failures
from evert.trainers.episodes.playing import EpisodeResult, Player, failures, plan_episodes, play
from evert.trainers.episodes.policies import SeededPolicy
from evert.trainers.episodes.scores import Score, read_score, scores

if TYPE_CHECKING:
    from tinker_cookbook.rl.train import Config

TEMPERATURES = {"greedy": 0.0, "temperature_1": 1.0}
"""Sampling temperatures, keyed by the name used in reports."""


class HeldOutError(EvertError, ValueError):
    """Recorded held-out scores cannot be read."""


@dataclass(frozen=True)
class Evaluation:
    """Results of a checkpoint or the base model on the held-out tasks."""

    scores: dict[str, Score]
    samples: list[EpisodeResult]
    failures: Failures
    cut: float = 0.0
    """Fraction of replies that were truncated at the token limit."""


def read_evaluation(record: Mapping[str, Any]) -> Evaluation:
    """Read an evaluation from its record."""
    try:
        return Evaluation(
            {name: read_score(record["scores"][name]) for name in TEMPERATURES},
            [EpisodeResult.read(sample) for sample in record["samples"]],
            Failures.read(record["failures"]),
            float(record.get("cut", 0.0)),  # missing in older records
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HeldOutError(
            f"The recorded held-out scores cannot be read: {type(error).__name__}: {error}. Delete "
            "before.json to score the untrained weights again."
        ) from error


async def score_weights(
    config: "Config", dataset: AgentDataset | None, *, samples: int, parallel: int, **weights: Any
) -> Evaluation | None:
    """Evaluate weights (``base_model=`` or ``model_path=``). Return None if there are no tasks."""
    if dataset is None:
        return None
    service = tinker.ServiceClient(base_url=config.base_url)
    client = await service.create_sampling_client_async(**weights)
    group, places = dataset.group(0), asyncio.Semaphore(parallel)

    async def play_at(temperature: float) -> list[EpisodeResult]:
        count = dataset.group_size if temperature else 1  # greedy episodes are deterministic
        seeds = range(dataset.seed * count, (dataset.seed + 1) * count)
        player = Player(
            lambda seed: group.agent,
            lambda env, seed: SeededPolicy(client, config.max_tokens, temperature, seed),
            group.options,
            group.seats,
            strict=_fails_fast(config),
            dialogues=0 if temperature else samples,
            opponents=dataset.opponents,
        )
        todo = plan_episodes(config.model_name, "", {"test": dataset.tasks}, seeds)
        return await play(todo, player, places=places)

    results = await asyncio.gather(*map(play_at, TEMPERATURES.values()))
    ways = {way: scores(r, "split")[0] for way, r in zip(TEMPERATURES, results, strict=True)}
    episodes = [*results[0], *results[1]]
    cut = sum(episode.metrics.get(CUT, 0) for episode in episodes)
    share = cut / max(1, sum(episode.turns for episode in episodes))
    return Evaluation(ways, results[0][:samples], failures(episodes), share)


def _fails_fast(config: "Config") -> bool:
    strategy = config.effective_rollout_strategy()
    return isinstance(getattr(strategy, "inner", strategy), FailFast)


def samples_markdown(
    name: str, before: Sequence[EpisodeResult], after: Sequence[EpisodeResult]
) -> str:
    """Return Markdown that shows episodes of the same tasks before and after training."""
    parts = [
        f"# {name}: held-out samples\n",
        "Greedy episodes of the first held-out tasks, before and after training.\n",
    ]
    for old, new in zip(before, after, strict=False):
        parts.append(f"## Task {old.target}\n")
        parts += [_episode_markdown("Before", old), _episode_markdown("After", new)]
    return "\n".join(parts)


def _episode_markdown(title: str, episode: EpisodeResult) -> str:
    ending = f"failed, {episode.error}" if episode.reward is None else f"reward {episode.reward:g}"
    lines = [f"### {title}: {ending}\n", "```text"]
    for turn in episode.dialogue:
        # a code fence in the text would close ours
        lines += [f"{turn['told']}\n>>> {turn['said']}".replace("```", "'''")]
    return "\n".join([*lines, "```\n"])


def sample_records(
    before: Sequence[EpisodeResult], after: Sequence[EpisodeResult]
) -> list[dict[str, Any]]:
    """Return the same episodes as ``samples_markdown``, as one record per task."""
    return [
        {"task": old.target, "before": asdict(old), "after": asdict(new)}
        for old, new in zip(before, after, strict=False)
    ]
