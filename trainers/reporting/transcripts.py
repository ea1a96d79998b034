"""Selects recorded episodes of a run to show, and cuts them to a length that fits the page.

``training_episodes`` are the first episodes of the first, the middle and the last step, whatever
their rewards; ``held_out_episodes`` are the same tasks before, during and after training. Models,
agents and tools wrote the text. It is cut, never interpreted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_cookbook.rl.types import STOP_METRIC_PREFIX

from evert.bridge.env.tool_counts import CALLER, DRIFT, LINEAGE
from evert.trainers.reporting.figures.formatting import shorten
from evert.trainers.reporting.run import Run
from evert.trainers.reporting.tokens import (
    HELD_OUT_ROLLOUTS,
    read_rollouts,
    rollout_files,
    spread,
)

EPISODES = 2
"""Episodes shown per step, and held-out tasks shown."""
STEPS = 3
MOST_TURNS = 12
"""Turns shown of an episode: the first ones and the last."""
MOST_CHARACTERS = 2_000
"""Maximum characters of a turn's notes and messages."""


@dataclass(frozen=True)
class Turn:
    """One model call of an episode."""

    heading: str
    texts: list[tuple[str, str]]
    """Notes and messages: name and text."""


@dataclass(frozen=True)
class Episode:
    """An episode, or some of its turns."""

    reward: float | None
    """None: no reward."""
    ending: str
    """Its length, and why it stopped."""
    turns: list[Turn]
    left_out: int
    """Number of turns omitted before the last one."""


def training_episodes(run: Run) -> dict[str, list[Episode]]:
    """Return episodes of the first, the middle and the last step with rollouts, by heading."""
    files = rollout_files(run.path)
    return {f"Step {step + 1}": _first_episodes(files[step]) for step in spread(files, STEPS)}


def held_out_episodes(run: Run) -> dict[str, list[Episode]]:
    """Return the same held-out tasks before, during and after training, by heading."""
    columns = {}
    files = rollout_files(run.path, HELD_OUT_ROLLOUTS)
    between = [step for step in files if 0 < step < len(run.rows)]
    for when in ("before", "after"):
        if samples := [sample[when] for sample in run.samples[:EPISODES] if sample.get(when)]:
            columns[f"{when.capitalize()} training"] = [_sample(sample) for sample in samples]
        if when == "before" and between:
            step = between[len(between) // 2]
            columns[f"After {step} steps, temperature 1"] = _first_episodes(files[step])
    return columns


def _first_episodes(file: Path) -> list[Episode]:
    firsts = [record for record in read_rollouts(file) if record.get("traj_idx") == 0]
    return [_rollout(record) for record in firsts[:EPISODES]]


def _rollout(record: Mapping[str, Any]) -> Episode:
    steps = record.get("steps") or []
    logs: list[dict[str, Any]] = [step.get("logs") or {} for step in steps]
    hidden = {name for name in (CALLER, LINEAGE) if len({str(log.get(name)) for log in logs}) < 2}
    turns = []
    for number, (step, notes) in enumerate(zip(steps, logs, strict=True), 1):
        heading = f"turn {number}: {step['ob_len']:,} tokens in, {step['ac_len']:,} out"
        if step["reward"] and len(steps) > 1:
            heading += f", reward {step['reward']:g}"
        turns.append(_turn(heading, {k: v for k, v in notes.items() if k not in hidden}))
    last = (steps[-1].get("metrics") or {}) if steps else {}
    stops = [name.removeprefix(STOP_METRIC_PREFIX) for name in last
             if name.startswith(STOP_METRIC_PREFIX)]  # fmt: skip
    drift = [f"drift {last[DRIFT]:.0f}"] if last.get(DRIFT) else []
    ending = ", ".join([_turn_count(turns), *stops, *drift])
    return _episode(float(record["total_reward"]), ending, turns)


def _sample(sample: Mapping[str, Any]) -> Episode:
    turns = [
        _turn(f"turn {number}", {part: turn.get(part, "") for part in ("told", "said")})
        for number, turn in enumerate(sample.get("dialogue") or (), 1)
    ]
    ending = f"task {shorten(str(sample.get('target', '')), 60)}, {_turn_count(turns)}"
    return _episode(sample.get("reward"), ending, turns)


def _turn_count(turns: Sequence[Turn]) -> str:
    return f"{len(turns)} turn{'s' * (len(turns) != 1)}"


def _episode(reward: float | None, ending: str, turns: Sequence[Turn]) -> Episode:
    page_turns = [*turns[: MOST_TURNS - 1], *turns[-1:]] if len(turns) > MOST_TURNS else [*turns]
    return Episode(reward, ending, page_turns, len(turns) - len(page_turns))


def _turn(heading: str, notes: Mapping[str, Any]) -> Turn:
    texts, remaining = list[tuple[str, str]](), MOST_CHARACTERS
    for number, (name, value) in enumerate(notes.items()):
        if remaining <= 0:
            texts.append(("…", f"{len(notes) - number} more notes are not shown"))
            break
        texts.append((shorten(str(name), 60), shorten(str(value), remaining)))
        remaining -= sum(map(len, texts[-1]))
    return Turn(heading, texts)
