"""Counts a run's tokens and their cost, and reads its rollout files.

Prompt tokens and sampled tokens are metrics of the Cookbook. Tokens trained on are not, since a
conversation is trained on once, however many calls it took. They are the lengths of the lineages in
the rollout files: exact if all files are read, otherwise scaled up from some. Held-out tasks before
the first step and after the last are not counted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from evert.bridge.env.tool_counts import LINEAGE
from evert.trainers.episodes.scores import half_of
from evert.trainers.reporting.figures.metrics import HELD_OUT, TRAIN, is_number
from evert.trainers.reporting.run import Run
from evert.trainers.system.files import read_jsonl

ROLLOUTS = "train_rollout_summaries.jsonl"
HELD_OUT_ROLLOUTS = "eval_*_rollout_summaries.jsonl"
SCHEMA = 1
"""Version of the Cookbook's rollout records that is read here."""
MOST_FILES = 24
"""Maximum rollout files that are read to count tokens."""


@final
@dataclass(frozen=True)
class Tokens:
    """Tokens of a whole run."""

    prefill: int
    sample: int
    train: int | None
    """None: the rollouts do not record it."""
    is_estimate: bool
    """Whether ``train`` is scaled up from some of the steps."""


def cost(tokens: Tokens, prices: Mapping[str, float]) -> float | None:
    """Return dollars for all tokens with a price; None without prices, or if a count is unknown."""
    counts = [(asdict(tokens)[name], price) for name, price in prices.items()]
    if not counts or any(count is None for count, _ in counts):
        return None
    return float(sum(count * price for count, price in counts) / 1e6)


def count_tokens(run: Run) -> Tokens | None:
    """Count a run's tokens; None if its metrics do not have them."""
    if not any(f"{TRAIN}total_ac_tokens" in row for row in run.rows):
        return None
    prompt_tokens, sampled_tokens = (
        [run.total(f"{prefix}total_{kind}_tokens") for prefix in (TRAIN, HELD_OUT)]
        for kind in ("ob", "ac")
    )
    files = rollout_files(run.path)
    steps = spread(files, MOST_FILES)
    share = _share_trained_on(files[step] for step in steps)
    trained = None if share is None else round(share * (prompt_tokens[0] + sampled_tokens[0]))
    return Tokens(
        round(sum(prompt_tokens)), round(sum(sampled_tokens)), trained, len(steps) < len(run.rows)
    )


def rollout_files(folder: Path, name: str = ROLLOUTS) -> dict[int, Path]:
    """Return step -> its rollout file, in order; ``name`` may be a pattern."""
    paths = folder.glob(f"iteration_*/{name}")
    steps = {path.parent.name.removeprefix("iteration_"): path for path in paths}
    return dict(sorted((int(step), path) for step, path in steps.items() if step.isdigit()))


def spread(items: Iterable[int], limit: int) -> Sequence[int]:
    """Return at most ``limit`` items, evenly spread, with the first and the last."""
    listed = list(items)
    if len(listed) <= limit:
        return listed
    return [listed[round(i * (len(listed) - 1) / (limit - 1))] for i in range(limit)]


def read_rollouts(path: Path) -> list[dict[str, Any]]:
    """Return the records of a rollout file, without broken and incomplete lines."""
    return [
        record
        for record in read_jsonl(path)
        if record.get("schema_version") == SCHEMA
        and is_number(record.get("total_reward"))
        and isinstance(steps := record.get("steps") or [], list)
        and all(map(_is_whole, steps))
    ]


def _is_whole(step: Any) -> bool:
    needed = "ob_len", "ac_len", "reward"
    return isinstance(step, dict) and all(is_number(step.get(name)) for name in needed)


def rewards_error(path: Path) -> float | None:
    """Return half the 95 % interval of a rollout file's mean reward; None: not known."""
    by_task: dict[object, list[float]] = defaultdict(list)
    for record in read_rollouts(path):
        by_task[record.get("group_idx")].append(float(record["total_reward"]))
    return half_of([*by_task.values()])


def _share_trained_on(files: Iterable[Path]) -> float | None:
    """Tokens trained on, as a share of prompt and sampled tokens; None: not known."""
    trained = total = 0
    for record in (record for path in files for record in read_rollouts(path)):
        ends: dict[object, int] = {}
        for step in record.get("steps") or ():
            length = step["ob_len"] + step["ac_len"]
            total += length
            if (lineage := (step.get("logs") or {}).get(LINEAGE)) is None:
                return None
            ends[lineage] = length
        trained += sum(ends.values())
    return trained / total if total else None
