"""Read a run folder as a ``Run``, for pages and plots.

``read_folder`` reads all files that exist, and ``read_run`` raises an error if the folder is not a
run. The files are:

    run.json         settings and machine; the Cookbook's own runs have config.json instead
    evaluation.json  settings of an evaluation
    metrics.jsonl    one row of metrics per step
    before.json      held-out scores of the untrained weights
    result.json      held-out scores of the trained weights, once the run has finished

Two metrics are computed here: the sampled tokens per episode, and success, which agents report
under different names.
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
"""Names under which agents report success. We use the first one that exists in the run."""


class ReportError(EvertError, ValueError):
    """A report cannot be created: a path is not a run, an option is invalid, or writing fails."""


@dataclass(frozen=True)
class Run:
    """A run (finished or not), an evaluation, or a folder that only contains rollouts."""

    path: Path
    kind: Literal["run", "evaluation", "rollouts"]
    facts: dict[str, Any]
    """Content of ``run.json``: name, command, engine, versions, ... Unknown facts are omitted."""
    settings: dict[str, Any]
    rows: list[dict[str, float]]
    """Metrics of each step, in order. Only contains finite numbers."""
    before: dict[str, Score]
    after: dict[str, Score]
    """Held-out scores ("greedy" and "temperature_1"), or empty if there are none."""
    final: float | None
    """Mean held-out reward of the final weights at temperature 1, if known."""
    finished: bool

    @property
    def name(self) -> str:
        """The recorded name (usually the game) or, if there is none, the folder's name."""
        return str(self.facts.get("name") or self.path.resolve().name)

    def curve(self, key: str) -> Curve:
        """Return a metric by step. The curve has no points if the metric was not recorded."""
        if key == HELD_OUT_REWARD:
            return curves(self.rows, self.final)[1]
        return read_curve(self.rows, key, before_step=key.startswith("test/"))

    def intervals(self, key: str, stages: Iterable[Mapping[str, Any]]) -> dict[int, float]:
        """Return half the width of a mean reward's 95% interval by step, or {} for other metrics.

        ``stages`` are rows with a split, a step and half the width of the interval (``half``).
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
    """Read the folder of a run (finished or not) or an evaluation.

    Raises:
        ReportError: The path is not a run or an evaluation, or its ``run.json`` is broken.
    """
    run = read_folder(path)
    if not run.facts and (path / files.RUN).exists():
        raise ReportError(
            f"{path / files.RUN} is broken; expected the file that `evert train` wrote. Restore "
            "it, or remove it if the Cookbook's config.json and metrics.jsonl exist."
        )
    if not (run.facts or run.kind == "evaluation" or (run.settings and (path / METRICS).is_file())):
        raise ReportError(no_run(path))
    return run


def read_folder(path: Path) -> Run:
    """Read any folder. Files that are missing, broken or too large are ignored."""
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
    """Return the held-out reward that the Cookbook measured after the last step, if any."""
    after = rows[-1]["step"] + 1 if rows else 0
    last_rows = [row for row in read_jsonl(path / METRICS) if row.get("step") == after]
    scores = [row[HELD_OUT_REWARD] for row in last_rows if is_number(row.get(HELD_OUT_REWARD))]
    return scores[-1] if scores else None


def read_rows(folder: Path) -> list[dict[str, float]]:
    """Return a run's per-step metrics (finite numbers only), including derived metrics."""
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
    """Return scores by sampling method, or {} if they were written by another version of evert."""
    ways = value.items() if isinstance(value, dict) else ()
    with suppress(ValueError):
        return {way: read_score(score) for way, score in ways}
    return {}


def no_run(path: Path) -> str:
    """Return a message that explains why a path is not a run, and which path to use instead."""
    advice = "Pass the folder of an `evert train` run, which contains a run.json."
    if path.is_dir():
        inside = sorted(str(file.parent) for file in path.glob(f"*/{files.RUN}"))[:6]
        hint = f"It contains runs: {' '.join(inside)}" if inside else advice
        return f"{path} is not a run folder: it has no readable {files.RUN}. {hint}"
    if path.exists():
        return f"{path} is a file, not a run folder. {advice}"
    return f"There is no folder {path}. {near_path(path) or advice}"
