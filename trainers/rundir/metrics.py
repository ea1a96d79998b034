"""A run's metrics by step: ``read_steps`` joins what the Cookbook and evert wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evert.trainers.system.files import BATCHES, BEFORE, read_json, read_jsonl

TRAIN_REWARD = "env/all/reward/total"
HELD_OUT_REWARD = "test/env/all/reward/total"
MIXED_GROUPS = "env/all/by_group/frac_mixed"
"""Share of a step's groups whose rewards differ; only such groups have nonzero advantages."""
FAILED, SKIPPED = "rollout/failed", "rollout/skipped_batches"
"""Share of failed episodes; 1 if a batch was skipped, with nothing to learn from, else 0."""
LOST = "rollout/lost_groups"
"""Groups of a step that were lost with a worker and played again; only in runs with workers."""


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of each training step in a ``metrics.jsonl``, in order.

    If a step was repeated, its last row counts. Where steps overlap, the Cookbook writes held-out
    scores in separate rows. We add them to the rows of their steps, whose times exclude scoring.
    We also add the metrics in ``batches.jsonl``. Rows that belong to no step are left out: since
    0.6 the Cookbook's last rows have the last weights' scores, and totals.
    """
    rows: dict[int, dict[str, Any]] = {}
    for row in read_jsonl(path):
        if isinstance(step := row.get("step"), int):
            row = with_before(row, path.parent)
            held_out, earlier = _held_out(row), rows.get(step, {})
            rows[step] = _held_out(earlier) | row if is_step(row) else earlier | held_out
    for batch in read_jsonl(path.with_name(BATCHES)):
        rows.get(batch.get("step", -1), {}).update(batch.get("metrics") or {})
    return [rows[step] for step in sorted(rows) if is_step(rows[step])]


def with_before(row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a row of metrics, at step 0 with the held-out reward of ``before.json``.

    The Cookbook scores the untrained weights again at step 0, in different episodes.
    """
    scores = (read_json(folder / BEFORE) or {}).get("scores") if row.get("step") == 0 else None
    at_temperature_1 = scores.get("temperature_1") if scores and HELD_OUT_REWARD in row else None
    reward = at_temperature_1.get("reward") if isinstance(at_temperature_1, dict) else None
    return {**row} if reward is None else {**row, HELD_OUT_REWARD: reward}


def _held_out(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith("test/")}


def is_step(row: Mapping[str, Any]) -> bool:
    """Return whether a training step wrote this metrics row; only such rows have progress."""
    return "progress/done_frac" in row or "progress" in row  # RL; supervised training
