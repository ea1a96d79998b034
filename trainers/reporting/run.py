"""Reads a run folder as a ``Run``, for pages and figures.

``read_folder`` reads all files that exist; ``read_run`` refuses a folder that is not a run. The
files are:

    run.json         settings and machine; a run made with the Cookbook alone has config.json
    evaluation.json  settings of an evaluation
    metrics.jsonl    a row of numbers per step, from the first step on
    before.json      held-out scores of the untrained weights
    result.json      held-out scores of a finished run's trained weights

Two metrics are derived: sampled tokens per episode, and success, which agents record under several
names.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evert.bridge.errors import EvertError
from evert.bridge.records.row_files import near_path
from evert.trainers.episodes.scores import Score, read_score
from evert.trainers.reporting.figures.metrics import (
    HELD_OUT,
    TRAIN,
    Curve,
    curves,
    is_number,
    read_curve,
)
from evert.trainers.rundir.metrics import HELD_OUT_REWARD, TRAIN_REWARD, read_steps
from evert.trainers.system import files
from evert.trainers.system.files import METRICS, read_json, read_jsonl

CONFIG = "config.json"
EPISODE_TOKENS = "report/ac_tokens_per_episode"
SUCCESS, HELD_OUT_SUCCESS = "report/success", "test/report/success"
SUCCESS_NAMES = ("success", "correct", "found", "solved", "won", "accuracy")
"""Metrics with which agents record success; the first that a run has is used."""


class ReportError(EvertError, ValueError):
    """A report cannot be created: a path is not a run, an option is wrong, or writing fails."""


@dataclass(frozen=True)
class Run:
    """A run, finished or not; or an evaluation, or a folder that has only rollouts."""

    path: Path
    kind: Literal["run", "evaluation", "rollouts"]
    facts: dict[str, Any]
    """``run.json``: name, command, engine, versions, ...; unknown facts are missing."""
    settings: dict[str, Any]
    rows: list[dict[str, float]]
    """Metrics of each step, in order; only finite numbers."""
    before: dict[str, Score]
    after: dict[str, Score]
    """Held-out scores: "greedy" and "temperature_1"; empty if the weights were not scored."""
    final: float | None
    """Held-out mean reward of the last weights, at temperature 1; None if unknown."""
    finished: bool

    @property
    def name(self) -> str:
        """The recorded name, usually the game's, or else the folder's name."""
        return str(self.facts.get("name") or self.path.resolve().name)

    def curve(self, key: str) -> Curve:
        """Return a metric by step; without points if the run did not record it."""
        if key == HELD_OUT_REWARD:
            return curves(self.rows, self.final)[1]
        return read_curve(self.rows, key, before_step=key.startswith("test/"))

    def intervals(self, key: str, stages: Iterable[Mapping[str, Any]]) -> dict[int, float]:
        """Return half the 95 % interval of a mean reward by step; {} for other metrics.

        ``stages`` are steps; ``half`` of a step is half the interval of its episodes' mean reward.
        """
        if key not in (TRAIN_REWARD, HELD_OUT_REWARD):
            return {}
        if key == TRAIN_REWARD:
            halves = {s["step"] + 1: s["half"] for s in stages if s["split"] == "train"}
        else:
            halves = {s["step"]: s["half"] for s in stages if s["split"] == "test"}
            scored = {0: self.before, len(self.rows): self.after}
            halves |= {n: s["temperature_1"].reward_error for n, s in scored.items() if s}
        return {step: half for step, half in halves.items() if half is not None}

    def total(self, key: str) -> float:
        """Return the sum of a metric over all steps."""
        return sum(row.get(key, 0.0) for row in self.rows)


def read_run(path: Path) -> Run:
    """Read the folder of a run, finished or not, or of an evaluation.

    Raises:
        ReportError: The path is not such a folder, or its ``run.json`` is broken.
    """
    run = read_folder(path)
    if not run.facts and (path / files.RUN).exists():
        raise ReportError(
            f"{path / files.RUN} is broken; expected the file that `evert train` wrote. Restore "
            "it. Without it, a report needs the Cookbook's config.json and metrics.jsonl."
        )
    if not (run.facts or run.kind == "evaluation" or (run.settings and (path / METRICS).is_file())):
        raise ReportError(no_run(path))
    return run


def read_folder(path: Path) -> Run:
    """Read a folder of any kind; files that are missing, broken or too large are left out."""
    facts, evaluation = read_json(path / files.RUN) or {}, read_json(path / files.EVALUATION)
    settings = (facts or evaluation or {}).get("settings") or read_json(path / CONFIG) or {}
    result = read_json(path / files.RESULT) or {}
    held_out = result.get("held_out") or {}
    before = held_out.get("before") or (read_json(path / files.BEFORE) or {}).get("scores")
    rows, after = read_rows(path), _scores(held_out.get("after"))
    trained = after.get("temperature_1")
    return Run(
        path=path,
        kind="evaluation" if evaluation is not None else "run" if facts or rows else "rollouts",
        facts=facts,
        settings=settings,
        rows=rows,
        before=_scores(before),
        after=after,
        final=trained.reward if trained else _last_score(path, rows),
        finished=bool(result),
    )


def _last_score(path: Path, rows: Sequence[Mapping[str, float]]) -> float | None:
    """Return the held-out reward that the Cookbook measured after the last step, or None."""
    after = rows[-1]["step"] + 1 if rows else 0
    last_rows = [row for row in read_jsonl(path / METRICS) if row.get("step") == after]
    scores = [row[HELD_OUT_REWARD] for row in last_rows if is_number(row.get(HELD_OUT_REWARD))]
    return scores[-1] if scores else None


def read_rows(folder: Path) -> list[dict[str, float]]:
    """Return a run's metrics by step (only finite numbers), with the derived metrics."""
    if not (files.fits(folder / METRICS) and files.fits(folder / files.BATCHES)):
        return []
    steps = read_steps(folder / METRICS)
    rows = [
        {k: v for k, v in row.items() if is_number(v)} for row in steps if is_number(row["step"])
    ]
    recorded = {key.removeprefix("test/").removeprefix(TRAIN) for row in rows for key in row}
    success = next((name for name in SUCCESS_NAMES if name in recorded), None)
    for row in rows:
        if row.get(f"{TRAIN}total_episodes"):
            sampled = row.get(f"{TRAIN}total_ac_tokens", 0.0)
            row[EPISODE_TOKENS] = sampled / row[f"{TRAIN}total_episodes"]
        for prefix, key in ((TRAIN, SUCCESS), (HELD_OUT, HELD_OUT_SUCCESS)):
            if success and f"{prefix}{success}" in row:
                row[key] = row[f"{prefix}{success}"]
    return rows


def _scores(value: object) -> dict[str, Score]:
    """Return scores by way of sampling; none if another version of evert wrote them."""
    ways = value.items() if isinstance(value, dict) else ()
    with suppress(ValueError):
        return {way: read_score(score) for way, score in ways}
    return {}


def no_run(path: Path) -> str:
    """Return a message: why a path is not a run, and which path to use instead."""
    advice = "Name the folder of a run of `evert train`, which has a run.json."
    if path.is_dir():
        inside = sorted(str(file.parent) for file in path.glob(f"*/{files.RUN}"))[:6]
        hint = f"It contains runs: {' '.join(inside)}" if inside else advice
        return f"{path} is not a run's folder: it has no readable {files.RUN}. {hint}"
    if path.exists():
        return f"{path} is a file, not a run's folder. {advice}"
    return f"There is no folder {path}. {near_path(path) or advice}"
