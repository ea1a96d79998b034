"""Reads a run folder for the page: ``overview`` for the list of runs, ``figures`` for one run.

It does not import PyTorch, which takes memory and is not needed here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from evert.trainers.reporting.figures.formatting import shorten
from evert.trainers.reporting.figures.metrics import Curve, is_number, thinned, time_spent
from evert.trainers.reporting.panels import BY_TIME, GAMES_OWN, PANELS, own_metrics, own_panels
from evert.trainers.reporting.run import CONFIG, curve_of, read_rows
from evert.trainers.rundir.metrics import HELD_OUT_REWARD, TRAIN_REWARD
from evert.trainers.system import files
from evert.trainers.system.files import read_json, read_jsonl

Row = dict[str, Any]
Rows = Sequence[Mapping[str, float]]

MOST_POINTS = 400
"""Maximum points of a curve; more are averaged, as they would fall on the same pixels."""
LONGEST = 160
"""Maximum characters of a setting."""


@lru_cache(1024)
def overview(run: Path, stamps: object) -> Row:
    """Return a run's row in the list: what it is, its progress, its two rewards by step.

    The stamps change with the run's files, which are then read again; so for ``rows_of``.
    """
    rows = rows_of(run, stamps)
    facts, evaluation = read_json(run / files.RUN) or {}, read_json(run / files.EVALUATION)
    settings = facts.get("settings") or (evaluation or {}).get("settings")
    settings = settings or read_json(run / CONFIG) or {}
    result = read_json(run / files.RESULT) or {}
    before = (read_json(run / files.BEFORE) or {}).get("scores")
    held_out = {"before": before, **(result.get("held_out") or {})}
    planned = settings.get("steps", settings.get("max_steps"))
    return {
        "name": run.name,
        "path": str(run),
        "what": "evaluation" if evaluation is not None else "run" if facts or rows else "rollouts",
        "trains": _text(facts.get("name") or settings.get("env") or ""),
        "model": _text(settings.get("model_name") or settings.get("models") or ""),
        "settings": {_text(key): _text(value) for key, value in settings.items()},
        "steps": len(rows),
        "planned": planned if isinstance(planned, int) else None,
        "finished": bool(result),
        "written": _written(run),
        "scores": {when: _score(held_out, when) for when in ("before", "after")},
        "reward": _points(curve_of(rows, TRAIN_REWARD, None)),
        "held_out": _points(curve_of(rows, HELD_OUT_REWARD, _score(held_out, "after"))),
    }


def figures(run: Path, rows: Rows) -> Row:
    """Return the figures that the run has metrics for, its time by part, and its failures.

    ``table`` has the scores of an evaluation, by model and split.
    """
    keys = {key for row in rows for key in row}
    result = read_json(run / files.RESULT) or {}
    final = _score(result.get("held_out"), "after")
    panels = {**PANELS, GAMES_OWN: own_panels(own_metrics(keys))}
    panel_rows = [
        {"section": section, "title": title, "unit": unit, "key": key}
        | _points(curve_of(rows, key, final))
        for section, section_panels in panels.items()
        for title, (_, unit, key) in section_panels.items()
        if key in keys and not title.endswith(BY_TIME)
    ]
    panel_keys = {panel["key"] for panel in panel_rows}
    return {
        "panels": panel_rows,
        "more": sorted(keys - panel_keys - {"step"}),
        "time": time_spent(rows),
        "failures": _failures(run),
        "table": [row for row in files.read_csv(run / files.SCORES) if not row.get("category")],
    }


@lru_cache(2)
def rows_of(run: Path, stamps: object) -> Rows:
    """Return a run's metrics by step; none if the files are too large to be read."""
    return read_rows(run) if _fits(run / files.METRICS) and _fits(run / files.BATCHES) else []


def metric(rows: Rows, key: str) -> Row:
    """Return one metric by step, by its name."""
    return _points(curve_of(rows, key, None))


def _failures(run: Path) -> list[Row]:
    """The kinds of failures, the most frequent first, each with its last error."""
    counts, errors = Counter[str](), dict[str, str]()
    for batch in read_jsonl(run / files.BATCHES) if _fits(run / files.BATCHES) else ():
        numbers = (batch.get("kinds") or {}).items()
        counts.update({kind: n for kind, n in numbers if isinstance(n, int)})
        for pair in _as_list(batch.get("found")):
            for failure in _as_list(pair):
                if isinstance(failure, dict):
                    errors[str(failure.get("kind"))] = str(failure.get("error", ""))
    return [
        {"kind": kind, "count": count, "error": errors.get(kind, "")}
        for kind, count in counts.most_common()
    ]


def _fits(file: Path) -> bool:
    try:
        return file.stat().st_size <= files.LARGEST
    except OSError:
        return True


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _score(held_out: Any, when: str) -> float | None:
    score = held_out
    for name in (when, "temperature_1", "reward"):
        score = score.get(name) if isinstance(score, dict) else None
    return score if is_number(score) else None


def _points(curve: Curve) -> Row:
    size = max(1, -(-len(curve.steps) // MOST_POINTS))
    ends = [curve.steps[min(start + size, len(curve.steps)) - 1]
            for start in range(0, len(curve.steps), size)]  # fmt: skip
    means = {"seconds": curve.seconds, "values": curve.scores}
    return {"steps": ends} | {
        name: [round(value, 6) for value in thinned(values, MOST_POINTS)]
        for name, values in means.items()
    }


def _text(value: Any) -> str:
    try:
        return shorten(value if isinstance(value, str) else repr(value), LONGEST)
    except RecursionError:
        return "…"


def _written(run: Path) -> float:
    """Time of the last write, in seconds since 1970; 0.0: the run no longer exists."""
    times = [0.0]
    for name in ("", files.RUN, files.METRICS, files.BATCHES, files.RESULT):
        with suppress(OSError):
            times.append((run / name).stat().st_mtime)
    return max(times)
