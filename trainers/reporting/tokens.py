"""Tokens of a run, and what they cost: ``count_tokens``, ``Prices.cost``.

The Cookbook's metrics count the tokens that every model call was given (prefill) and the tokens it
sampled, in training and in the held-out scores on the way. Tokens trained on are in no metric: a
conversation is trained on once, however many calls it took. They are the lengths of the lineages
in the rollout files: exact where all those files are read, else a ratio from some of them, spread
over the run. What the command spends on held-out tasks before the first step and after the last is
in no metric either, and is not counted.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from evert.bridge.diagnosis import LINEAGE
from evert.trainers.reporting.metrics import HELD_OUT, TRAIN
from evert.trainers.reporting.run import Run

ROLLOUTS = "train_rollout_summaries.jsonl"
SCHEMA = 1
"""Version of the Cookbook's rollout records that is read here."""
MOST_FILES = 24
"""Most rollout files that are read whole to count tokens."""


@dataclass(frozen=True)
class Tokens:
    """Tokens of a whole run."""

    prefill: int
    sampled: int
    trained: int | None
    """None where the rollouts do not say."""
    is_estimate: bool
    """Whether ``trained`` is scaled up from some of the steps."""


@dataclass(frozen=True)
class Prices:
    """Dollars per million tokens; None: not to be counted."""

    prefill: float | None = None
    sample: float | None = None
    train: float | None = None

    @property
    def given(self) -> dict[str, float]:
        """The prices there are, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: price for name, price in named.items() if price is not None}

    def cost(self, tokens: Tokens) -> float | None:
        """Dollars for all that has a price; None where nothing has, or a count is not known."""
        counts = {"prefill": tokens.prefill, "sample": tokens.sampled, "train": tokens.trained}
        priced = [(counts[name], price) for name, price in self.given.items()]
        if not priced or any(count is None for count, _ in priced):
            return None
        return sum((count or 0) * price for count, price in priced) / 1e6


def count_tokens(run: Run) -> Tokens | None:
    """Count a run's tokens; None where its metrics do not tell."""
    if not any(f"{TRAIN}total_ac_tokens" in row for row in run.rows):
        return None
    prefill, sampled = (
        {prefix: run.total(f"{prefix}total_{kind}_tokens") for prefix in (TRAIN, HELD_OUT)}
        for kind in ("ob", "ac")
    )
    files = rollout_files(run.path)
    read = spread(files, MOST_FILES)
    share = _share_trained_on([files[step] for step in read])
    trained = None if share is None else round(share * (prefill[TRAIN] + sampled[TRAIN]))
    return Tokens(
        prefill=round(sum(prefill.values())),
        sampled=round(sum(sampled.values())),
        trained=trained,
        is_estimate=len(read) < len(run.rows),
    )


def rollout_files(folder: Path) -> dict[int, Path]:
    """The rollouts of each step that has some, in order."""
    found = {}
    for path in folder.glob(f"iteration_*/{ROLLOUTS}"):
        number = path.parent.name.removeprefix("iteration_")
        if number.isdigit():
            found[int(number)] = path
    return dict(sorted(found.items()))


def spread(items: Sequence[int] | Mapping[int, Any], most: int) -> list[int]:
    """At most that many of the items, evenly spread, the first and the last among them."""
    listed = list(items)
    if len(listed) <= most:
        return listed
    return [listed[round(i * (len(listed) - 1) / (most - 1))] for i in range(most)]


def read_rollouts(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a rollout file, one at a time; lines that are none are left out."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and record.get("schema_version") == SCHEMA:
                yield record


def _share_trained_on(files: Sequence[Path]) -> float | None:
    """Tokens trained on, of all that calls were given and sampled."""
    trained = handled = 0
    for path in files:
        for record in read_rollouts(path):
            ends: dict[object, int] = {}
            for step in record.get("steps") or ():
                length = step["ob_len"] + step["ac_len"]
                handled += length
                if (lineage := (step.get("logs") or {}).get(LINEAGE)) is None:
                    return None
                ends[lineage] = length
            trained += sum(ends.values())
    return trained / handled if handled else None
