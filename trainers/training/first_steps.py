"""Warns about settings that are mistakes, or with which nothing can be learned.

``slips`` checks the settings and the tasks before a run starts. ``FirstSteps`` checks the metrics
of the held-out tasks and of the first two steps, and gives each warning once.
"""

from collections.abc import Callable, Mapping
from typing import Any

from evert.bridge.env.endings import CUT
from evert.trainers.config.early_checks import texts_as_tasks
from evert.trainers.config.train import TrainSettings, is_missing
from evert.trainers.rundir.metrics import MIXED_GROUPS, is_step

CREDIT = frozenset({"dataset_builder.advantages", "dataset_builder.gamma"})
"""Fields of the Cookbook's Config that can give a single episode nonzero advantages."""


def slips(settings: TrainSettings, tasks: Mapping[str, Any]) -> list[str]:
    """Return the warnings before a run starts; ``tasks`` are the loaded tasks, by setting."""
    texts = texts_as_tasks(tasks)
    if settings.group_size == 1 and not CREDIT & settings.cookbook.keys():
        texts.append(
            "group_size=1 teaches nothing: an episode's advantage is its reward minus its group's "
            "mean. Set group_size=4 or more."
        )
    count = len(tasks["train_tasks"])
    if settings.batch_size > count and is_missing(settings.sampler):
        texts.append(
            f"batch_size={settings.batch_size} is more than the number of tasks: every step plays "
            f"all {count}. Set batch_size={count}, or give more tasks."
        )
    if settings.max_tokens == 1:
        texts.append("max_tokens=1 cuts every reply: its end token counts, too. Raise max_tokens.")
    return texts


class FirstSteps:
    """Warns about problems in a run's first two steps, and in the scores before them."""

    def __init__(self, settings: TrainSettings, warn: Callable[[str], None]) -> None:
        self._warn, self._cap = warn, settings.max_tokens
        self._has_warned_of_cuts = self._cap == 1
        self._equal = 0 if settings.group_size > 1 else -2  # ``slips`` warned about it

    def see_replies(self, where: str, share: float) -> None:
        """Warn if all replies were cut; ``where`` says which, ``share`` how many were cut."""
        if share == 1 and not self._has_warned_of_cuts:
            self._has_warned_of_cuts = True
            self._warn(
                f"Every reply {where} was cut at its cap (max_tokens={self._cap}, or the agent's "
                "own). Raise it, unless the agent needs only the beginning."
            )

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Warn about a row of ``metrics.jsonl`` if there is reason to."""
        if not is_step(row) or row["step"] > 1:
            return
        self.see_replies(f"of step {row['step'] + 1}", row.get(f"env/all/{CUT}", 0.0))
        self._equal += row.get(MIXED_GROUPS) == 0
        if row["step"] == 1 and self._equal == 2:
            self._warn(
                "In the first two steps all rewards of each group were equal, so nothing was "
                "learned. Use easier or harder tasks, give partial credit, or raise group_size."
            )
