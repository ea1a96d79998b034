"""Read a run folder for the page: ``overview`` for the list of runs, ``figures`` for a single run.

This must not import PyTorch, which would only waste memory.
"""

import shlex
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path
from typing import Any

from evert.trainers.episodes.scores import Score, mean_text, read_scores, share_text
from evert.trainers.reporting.figures.formatting import count, dollars, shorten
from evert.trainers.reporting.figures.metrics import Curve, thinned, time_spent
from evert.trainers.reporting.panels import BY_TIME, own_metrics, panels_of
from evert.trainers.reporting.run import Run, read_folder
from evert.trainers.rundir.metrics import HELD_OUT_REWARD, SKIPPED, TRAIN_REWARD
from evert.trainers.system import files
from evert.trainers.system.files import read_jsonl
from evert.trainers.viewing.lines import Row
from evert.trainers.viewing.tokens import Tokens, cost

MOST_POINTS = 400
"""Maximum number of points in a curve. Beyond that, neighbouring points are averaged."""
LONGEST, LONGEST_FACT = 160, 480
"""Maximum length of a setting, and of a fact or an error."""
WAYS = {"greedy": "greedy", "temperature_1": "temperature 1"}


@lru_cache(2)
def read(path: Path, stamps: object) -> Run:
    """Read a run's folder.

    The stamps are only used as a cache key: if they change, the files are read again.
    """
    return read_folder(path)


@lru_cache(1024)
def overview(path: Path, stamps: object) -> Row:
    """Return a run's entry in the list: type, settings, progress, and reward curves."""
    run = read(path, stamps)
    settings = run.settings
    planned = settings.get("steps", settings.get("max_steps"))
    held_out = {"before": run.before.get("temperature_1"), "after": run.after.get("temperature_1")}
    return {
        "name": path.name,
        "path": str(path),
        "what": run.kind,
        "trains": _text(run.facts.get("name") or settings.get("env") or ""),
        "model": _text(settings.get("model_name") or settings.get("models") or ""),
        "settings": {_text(key): _text(value) for key, value in settings.items()},
        "facts": _facts(run),
        "steps": len(run.rows),
        "planned": planned if isinstance(planned, int) else None,
        "finished": run.finished,
        "written": _written(path),
        "scores": {
            when: score and mean_text(score.reward, score.reward_error)
            for when, score in held_out.items()
        },
        "reward": points(run.curve(TRAIN_REWARD)),
        "held_out": points(run.curve(HELD_OUT_REWARD)),
    }


def _facts(run: Run) -> dict[str, str]:
    """Return facts from ``run.json`` as text: engine, machine, versions, git, start, command."""
    command = _as_list(run.facts.get("command"))
    texts = {name: _text(run.facts.get(name) or "") for name in ("started", "git")}
    texts |= {name: _pairs(run.facts.get(name)) for name in ("engine", "machine", "versions")}
    texts["command"] = shorten(shlex.join(map(_text, command)), LONGEST_FACT)
    return {name: text for name, text in texts.items() if text}


def _pairs(value: Any) -> str:
    pairs = value.items() if isinstance(value, dict) else ()
    return shorten(", ".join(f"{name} {_text(part)}" for name, part in pairs), LONGEST_FACT)


def figures(run: Run, stages: list[Row]) -> Row:
    """Return a run's plots of all available metrics, and its scores, time and failures.

    ``stages`` are the run's steps, which contain the confidence intervals of the rewards.
    """
    keys = {key for row in run.rows for key in row}
    panels = [
        {"section": section, "title": title, "unit": unit, "key": key}
        | points(run.curve(key), run.intervals(key, stages))
        for section, section_panels in panels_of(keys).items()
        for title, (_, unit, key) in section_panels.items()
        if key in keys and not title.endswith(BY_TIME)
    ]
    return {
        "panels": panels,
        "notes": [metric.about for metric in own_metrics(keys).values() if metric.about],
        "more": sorted(keys - {panel["key"] for panel in panels} - {"step"}),
        "time": time_spent(run.rows),
        "table": _scores(run),
        **_failures(run.path),
    }


def _scores(run: Run) -> list[Row]:
    """Return the scores before and after training, or an evaluation's scores by model and split."""
    scores = [
        (f"{when} training, {name}", held_out[way])
        for when, held_out in (("before", run.before), ("after", run.after))
        for way, name in WAYS.items()
        if way in held_out
    ]
    scores += [
        (", ".join(filter(None, (score.model, score.split))), score)
        for score in read_scores(run.path / files.SCORES)
        if not score.category
    ]
    return [_score(name, score) for name, score in scores]


def _score(name: str, score: Score) -> Row:
    return {
        "name": name,
        "episodes": score.episodes,
        "success": share_text(score.success, score.low, score.high),
        "reward": mean_text(score.reward, score.reward_error),
        "pass_at": [
            {"k": k, "value": estimate.value, "text": share_text(*astuple(estimate))}
            for k, estimate in score.pass_at.items()
        ],
    }


def token_texts(tokens: Tokens | None, prices: Mapping[str, float]) -> dict[str, str]:
    """Return a run's token counts and their cost as text, or {} if they are unknown."""
    if tokens is None:
        return {}
    trained = count(tokens.train)
    if tokens.is_estimate and tokens.train is not None:
        trained = f"about {count(float(f'{tokens.train:.3g}'))}"
    texts = {
        "prompts (prefill)": count(tokens.prefill),
        "sampled": count(tokens.sample),
        "trained on": trained,
    }
    if prices:
        texts["cost"] = dollars(cost(tokens, prices))
        texts["dollars per million"] = ", ".join(f"{k} {price:g}" for k, price in prices.items())
    return texts


def _failures(run: Path) -> Row:
    """Count skipped batches, and failures by type (most frequent first, with the last error)."""
    counts, errors, skipped = Counter[str](), dict[str, str](), 0
    for batch in read_jsonl(run / files.BATCHES) if files.fits(run / files.BATCHES) else ():
        skipped += bool((batch.get("metrics") or {}).get(SKIPPED))
        numbers = (batch.get("kinds") or {}).items()
        counts.update({kind: n for kind, n in numbers if isinstance(n, int)})
        for pair in _as_list(batch.get("found")):
            for failure in _as_list(pair):
                if isinstance(failure, dict):
                    errors[str(failure.get("kind"))] = str(failure.get("error", ""))
    failures = [
        {"kind": kind, "count": count, "error": shorten(errors.get(kind, ""), LONGEST_FACT)}
        for kind, count in counts.most_common()
    ]
    return {"failures": failures, "skipped": skipped}


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def points(curve: Curve, halves: Mapping[int, float] | None = None) -> Row:
    """Return a curve for the page, with confidence intervals if they are all known."""
    size = max(1, -(-len(curve.steps) // MOST_POINTS))
    ends = [curve.steps[min(start + size, len(curve.steps)) - 1]
            for start in range(0, len(curve.steps), size)]  # fmt: skip
    row: Row = {"steps": ends, "halves": None}
    if halves and all(step in halves for step in ends):
        row["halves"] = [round(halves[step], 6) for step in ends]
    return row | {"values": [round(value, 6) for value in thinned(curve.scores, MOST_POINTS)]}


def _text(value: Any) -> str:
    try:
        return shorten(value if isinstance(value, str) else repr(value), LONGEST)
    except RecursionError:
        return "…"


def _written(run: Path) -> float:
    """Return the Unix time of the last write, or 0.0 if the run no longer exists."""
    times = [0.0]
    for name in ("", files.RUN, files.METRICS, files.BATCHES, files.RESULT):
        with suppress(OSError):
            times.append((run / name).stat().st_mtime)
    return max(times)
