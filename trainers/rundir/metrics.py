"""Read a run's per-step metrics, combining the files written by the Cookbook and by evert."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evert.trainers.system.files import BATCHES, BEFORE, read_json, read_jsonl

TRAIN_REWARD = "env/all/reward/total"
HELD_OUT_REWARD = "test/env/all/reward/total"
MIXED_GROUPS = "env/all/by_group/frac_mixed"
"""Fraction of a step's groups whose rewards differ. Only such groups have nonzero advantages."""
FAILED, SKIPPED = "rollout/failed", "rollout/skipped_batches"
"""``FAILED``: fraction of failed episodes. ``SKIPPED``: 1 if a batch had nothing to learn from."""
LOST = "rollout/lost_groups"
"""How many groups were lost to a dead worker and played again. Only in runs with workers."""


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of all training steps in a ``metrics.jsonl``, in order.

    If a step was repeated, we use its last row. In asynchronous runs, the Cookbook scores held-out
    tasks during training, and writes the scores to separate rows. We merge these scores into the
    rows of their steps. (The time of a step does not include this scoring.) We also add the metrics
    from ``batches.jsonl``. Rows that don't belong to a step are dropped: since version 0.6, the
    Cookbook also logs rows for final scores and totals.
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
    """Return a row of metrics, with the held-out reward from ``before.json`` at step 0.

    The Cookbook scores the untrained weights again at step 0, in different episodes, so its score
    would differ from the one in ``before.json``.
    """
    scores = (read_json(folder / BEFORE) or {}).get("scores") if row.get("step") == 0 else None
    at_temperature_1 = scores.get("temperature_1") if scores and HELD_OUT_REWARD in row else None
    reward = at_temperature_1.get("reward") if isinstance(at_temperature_1, dict) else None
    return {**row} if reward is None else {**row, HELD_OUT_REWARD: reward}


def _held_out(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith("test/")}


def is_step(row: Mapping[str, Any]) -> bool:
    """Return whether a row is from a training step. Only such rows have progress metrics."""
    return "progress/done_frac" in row or "progress" in row  # RL or supervised training
