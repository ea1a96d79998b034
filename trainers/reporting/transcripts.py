"""Episodes to read: what a run wrote of them, cut to a length that a page can hold.

``training_episodes`` are the first episodes of the first, the middle and the last step, not chosen
by how they went; the Cookbook writes lengths, rewards and the agent's notes (``client.log``) of
every turn. ``held_out_episodes`` are the samples from before and after the training, with text.

All text here is what models, agents and tools wrote. It is cut, never interpreted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tinker_cookbook.rl.types import STOP_METRIC_PREFIX

from evert.bridge.diagnosis import CALLER, DRIFT, LINEAGE
from evert.trainers.reporting.formatting import shorten
from evert.trainers.reporting.run import Run
from evert.trainers.reporting.tokens import read_rollouts, rollout_files, spread

EPISODES = 2
"""Episodes shown of a step, and held-out tasks shown."""
STEPS = 3
TURN_COST = 150
"""Characters of the page that a turn takes beside its texts, about."""


@dataclass(frozen=True)
class Turn:
    """One model call of an episode."""

    heading: str
    texts: tuple[tuple[str, str], ...]
    """What was noted or said: name and text."""

    @property
    def size(self) -> int:
        """Characters on the page, about."""
        return TURN_COST + sum(len(name) + len(text) for name, text in self.texts)


@dataclass(frozen=True)
class Episode:
    """An episode, or as much of it as fits."""

    reward: float
    ending: str
    """How long it was, and why it stopped."""
    turns: tuple[Turn, ...]
    left_out: int = 0
    """Turns left out before the last one."""


@dataclass(frozen=True)
class Column:
    """Episodes that stand under one heading."""

    heading: str
    episodes: list[Episode] = field(default_factory=list)


def training_episodes(run: Run, most: int) -> list[Column]:
    """Episodes of the first, the middle and the last step that rollouts were written of.

    Args:
        run: The run.
        most: Characters that an episode may take.
    """
    files = rollout_files(run.path)
    columns = []
    for step in spread(files, STEPS):
        firsts = (r for r in read_rollouts(files[step]) if r.get("traj_idx") == 0)
        episodes = [_fitted(_rollout(record), most) for record in islice(firsts, EPISODES)]
        columns.append(Column(f"Step {step}", episodes))
    return columns


def held_out_episodes(run: Run, most: int) -> list[Column]:
    """The same held-out tasks before and after the training, played greedily.

    Args:
        run: The run.
        most: Characters that an episode may take.
    """
    columns = []
    for when in ("before", "after"):
        samples = [sample[when] for sample in run.samples[:EPISODES] if sample.get(when)]
        if samples:
            episodes = [_fitted(_sample(sample), most) for sample in samples]
            columns.append(Column(f"{when.capitalize()} training", episodes))
    return columns


def _rollout(record: Mapping[str, Any]) -> Episode:
    """An episode of a rollout file."""
    steps = record.get("steps") or []
    hidden = {name for name in (CALLER, LINEAGE) if len(_values(steps, name)) < 2}
    turns = []
    for number, step in enumerate(steps, 1):
        heading = f"turn {number}: {step['ob_len']:,} tokens in, {step['ac_len']:,} out"
        if step["reward"] and len(steps) > 1:
            heading += f", reward {step['reward']:g}"
        notes = {k: v for k, v in (step.get("logs") or {}).items() if k not in hidden}
        turns.append(Turn(heading, tuple((str(k), str(v)) for k, v in notes.items())))
    last = (steps[-1].get("metrics") or {}) if steps else {}
    return Episode(float(record["total_reward"]), _ending(len(steps), last), tuple(turns))


def _values(steps: Sequence[Mapping[str, Any]], name: str) -> set[str]:
    return {str((step.get("logs") or {}).get(name)) for step in steps}


def _ending(turns: int, metrics: Mapping[str, float]) -> str:
    stops = [
        name.removeprefix(STOP_METRIC_PREFIX)
        for name in metrics
        if name.startswith(STOP_METRIC_PREFIX)
    ]
    drifts = int(metrics.get(DRIFT, 0))
    parts = [f"{turns} turn{'s' * (turns != 1)}", *stops]
    return ", ".join([*parts, f"drift {drifts}"] if drifts else parts)


def _sample(sample: Mapping[str, Any]) -> Episode:
    """A held-out episode of ``samples.jsonl``."""
    turns = tuple(
        Turn(f"turn {number}", (("told", str(turn["told"])), ("said", str(turn["said"]))))
        for number, turn in enumerate(sample["dialogue"], 1)
    )
    ending = f"task {shorten(str(sample['target']), 60)}, {_ending(len(turns), {})}"
    return Episode(float(sample["reward"]), ending, turns)


# -- cutting -------------------------------------------------------------------------------------


def _fitted(episode: Episode, most: int) -> Episode:
    """The first turns that fit, and the last one."""
    turns = [_cut(turn, most // 2) for turn in episode.turns]
    if not turns:
        return episode
    room = most - turns[-1].size
    kept = []
    for turn in turns[:-1]:
        room -= turn.size
        if room < 0:
            break
        kept.append(turn)
    left_out = len(turns) - 1 - len(kept)
    return Episode(episode.reward, episode.ending, (*kept, turns[-1]), left_out)


def _cut(turn: Turn, most: int) -> Turn:
    return Turn(turn.heading, tuple(_cut_texts(turn.texts, most)))


def _cut_texts(texts: Sequence[tuple[str, str]], most: int) -> Iterator[tuple[str, str]]:
    for number, (name, text) in enumerate(texts):
        if most <= 0:
            yield "…", f"{len(texts) - number} more notes are not shown"
            return
        name, text = shorten(name, 60), shorten(text, most)
        most -= len(name) + len(text)
        yield name, text
