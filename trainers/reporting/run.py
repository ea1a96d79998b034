"""Reads a run folder for its report: ``read_run`` returns a ``Run``.

The files that it reads, if they exist:

    run.json       settings and machine; a run of the Cookbook alone has config.json instead
    metrics.jsonl  a row of numbers per step, from the first step on
    before.json    held-out scores of the untrained weights
    result.json    held-out scores of the trained weights, of a finished run
    batches.jsonl  failed episodes in training, and batches that taught nothing
    samples.jsonl  held-out episodes before and after training

Two metrics are derived for the report: sampled tokens per episode, and success, which agents
record under several names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evert.bridge.errors import EvertError
from evert.bridge.records.row_files import near_path
from evert.trainers.reporting.figures.metrics import (
    HELD_OUT,
    TRAIN,
    Curve,
    clock,
    curves,
    is_number,
    read_curve,
)
from evert.trainers.rundir import folder as run_folder
from evert.trainers.rundir.metrics import HELD_OUT_REWARD, read_steps
from evert.trainers.system import files
from evert.trainers.system.files import METRICS, read_json, read_jsonl

if TYPE_CHECKING:  # these import torch, which would delay the error of a mistyped name
    from evert.trainers.episodes.failures import Failures
    from evert.trainers.episodes.scores import Score

CONFIG = "config.json"
EPISODE_TOKENS = "report/ac_tokens_per_episode"
SUCCESS, HELD_OUT_SUCCESS = "report/success", "test/report/success"
SUCCESS_NAMES = ("success", "correct", "found", "solved", "won", "accuracy")
"""Names under which agents record success; the first one that a run has is used."""


class ReportError(EvertError, ValueError):
    """A report cannot be made: a path is not a run, an option is wrong, or writing fails."""


@dataclass(frozen=True)
class Run:
    """A run, finished or not."""

    path: Path
    facts: dict[str, Any]
    """``run.json``: name, command, engine, versions, ...; unknown facts are missing."""
    settings: dict[str, Any]
    rows: list[dict[str, float]]
    """Metrics of each step, in order, finite numbers only."""
    before: "dict[str, Score]"
    after: "dict[str, Score]"
    """Held-out scores: "greedy" and "temperature_1"; empty if the weights were not scored."""
    final: float | None
    """Held-out mean reward of the last weights, at temperature 1; None if unknown."""
    failures: "Failures"
    """Failures of the episodes in training; empty for a run of the Cookbook alone."""
    skipped: int
    """Batches that nothing could be learned from."""
    samples: list[dict[str, Any]]
    """Held-out episodes: a record per task, with ``task``, ``before`` and ``after``."""
    finished: bool

    @property
    def name(self) -> str:
        """What was trained."""
        return str(self.facts.get("name") or self.path.resolve().name)

    @property
    def progress(self) -> str:
        """Finished steps, and their planned number if known and not exceeded by a resumed run."""
        planned = self.settings.get("steps", self.settings.get("max_steps"))
        is_planned = isinstance(planned, int) and planned >= len(self.rows)
        steps = f"{len(self.rows)} of {planned}" if is_planned else f"{len(self.rows)}"
        return steps if self.finished else f"{steps}, not finished"

    @property
    def seconds(self) -> float:
        """Duration of all steps."""
        return clock(self.rows)[-1]

    def curve(self, key: str) -> Curve:
        """Return a metric by step; without points if the run did not record it."""
        return curve_of(self.rows, key, self.final)

    def total(self, key: str) -> float:
        """The sum of a metric over all steps."""
        return sum(row.get(key, 0.0) for row in self.rows)


def read_run(path: Path) -> Run:
    """Read a run folder, finished or not.

    Raises:
        ReportError: The path is not a run, or its ``run.json`` is broken.
    """
    facts = read_json(path / files.RUN)
    config = read_json(path / CONFIG) or {}
    if facts is None and (path / files.RUN).exists():
        raise ReportError(
            f"{path / files.RUN} is broken: expected the file that `evert train` wrote. Put it "
            "back. Without it, a report needs the Cookbook's config.json and metrics.jsonl."
        )
    if not facts and not (config and (path / METRICS).is_file()):
        raise ReportError(no_run(path))
    facts = facts or {}
    from evert.trainers.episodes.failures import read_batches

    before = read_json(path / files.BEFORE) or {}
    result = read_json(path / files.RESULT) or {}
    held_out = result.get("held_out") or {}
    rows, after = read_rows(path), _scores(held_out.get("after"))
    trained = after.get("temperature_1")
    failures, skipped = read_batches(path)
    return Run(
        path=path,
        facts=facts,
        settings=facts.get("settings") or config,
        rows=rows,
        before=_scores(held_out.get("before") or before.get("scores")),
        after=after,
        final=trained.reward if trained else _last_score(path, rows),
        failures=failures,
        skipped=skipped,
        samples=_samples(path, before),
        finished=bool(result),
    )


def _last_score(path: Path, rows: Sequence[Mapping[str, float]]) -> float | None:
    """The held-out reward that the Cookbook measured after the last step; None: it did not."""
    after = rows[-1]["step"] + 1 if rows else 0
    last_rows = [row for row in read_jsonl(path / METRICS) if row.get("step") == after]
    scores = [row[HELD_OUT_REWARD] for row in last_rows if is_number(row.get(HELD_OUT_REWARD))]
    return scores[-1] if scores else None


def curve_of(rows: Sequence[Mapping[str, Any]], key: str, final: float | None) -> Curve:
    """Return a metric by step; ``final`` is the last held-out reward, None if unknown."""
    if key == HELD_OUT_REWARD:
        return curves(rows, final)[1]
    return read_curve(rows, key, before_step=key.startswith("test/"))


def read_rows(folder: Path) -> list[dict[str, float]]:
    """Return a run's metrics by step, finite numbers only, with the derived metrics."""
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


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _scores(value: object) -> "dict[str, Score]":
    """Scores by way of playing; none if another version of evert wrote them."""
    from evert.trainers.episodes.scores import Score

    try:
        return {how: Score(**_mapping(score)) for how, score in _mapping(value).items()}
    except TypeError:
        return {}


def _samples(path: Path, before: Mapping[str, Any]) -> list[dict[str, Any]]:
    records = [
        record
        for record in read_jsonl(path / run_folder.SAMPLES_JSONL)
        if all(isinstance(record.get(when) or {}, dict) for when in ("before", "after"))
    ]
    if records:
        return records
    samples = [_mapping(sample) for sample in before.get("samples") or ()]
    return [{"task": sample.get("target"), "before": sample} for sample in samples]


def no_run(path: Path) -> str:
    """Say why a path is not a run, and what to name instead."""
    advice = "Name the folder of a run of `evert train`: it holds a run.json."
    if path.is_dir():
        inside = sorted(str(file.parent) for file in path.glob(f"*/{files.RUN}"))[:6]
        hint = f"Runs are in it: {' '.join(inside)}" if inside else advice
        return f"{path} is not a run's folder: it has no readable {files.RUN}. {hint}"
    if path.exists():
        return f"{path} is a file, not a run's folder. {advice}"
    return f"There is no folder {path}. {near_path(path) or advice}"
