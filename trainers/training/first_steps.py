"""Warn about likely mistakes in the settings, and about settings that prevent learning.

``slips`` checks the settings and the tasks before a run starts. ``FirstSteps`` checks the metrics
of the held-out tasks and of the first two steps. Each warning is only given once.
"""

from collections.abc import Callable, Mapping
from typing import Any

from evert.bridge.env.endings import CUT
from evert.trainers.config.early_checks import texts_as_tasks
from evert.trainers.config.train import TrainSettings, is_missing
from evert.trainers.rundir.metrics import MIXED_GROUPS, is_step

CREDIT = frozenset({"dataset_builder.advantages", "dataset_builder.gamma"})
"""Fields of the Cookbook's Config that can give a group of one episode nonzero advantages."""


def slips(settings: TrainSettings, tasks: Mapping[str, Any]) -> list[str]:
    """Return the warnings to show before a run starts; ``tasks`` maps setting names to tasks."""
    texts = texts_as_tasks(tasks)
    if settings.group_size == 1 and not CREDIT & settings.cookbook.keys():
        texts.append(
            "nothing can be learned with group_size=1, because an episode's advantage is its "
            "reward minus the mean of its group. Set group_size=4 or more."
        )
    count = len(tasks["train_tasks"])
    if settings.batch_size > count and is_missing(settings.sampler):
        texts.append(
            f"batch_size={settings.batch_size} is larger than the number of tasks, so every step "
            f"plays all {count} of them. Set batch_size={count}, or pass more tasks."
        )
    if settings.max_tokens == 1:
        texts.append(
            "max_tokens=1 truncates all replies, because the stop token counts towards the limit. "
            "Increase max_tokens."
        )
    return texts


class FirstSteps:
    """Warns about problems in the held-out scores before training and in the first two steps."""

    def __init__(self, settings: TrainSettings, warn: Callable[[str], None]) -> None:
        self._warn, self._cap = warn, settings.max_tokens
        self._has_warned_of_cuts = self._cap == 1
        self._equal = 0 if settings.group_size > 1 else -2  # ``slips`` has warned about groups of 1

    def see_replies(self, where: str, share: float) -> None:
        """Warn if all replies were truncated; ``share`` is the fraction of truncated replies."""
        if share == 1 and not self._has_warned_of_cuts:
            self._has_warned_of_cuts = True
            self._warn(
                f"All replies {where} were truncated at max_tokens={self._cap} or the agent's own "
                "limit. Increase the limit, unless the agent only needs the start of the replies."
            )

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Warn if this row of ``metrics.jsonl`` looks suspicious."""
        if not is_step(row) or row["step"] > 1:
            return
        self.see_replies(f"in step {row['step'] + 1}", row.get(f"env/all/{CUT}", 0.0))
        self._equal += row.get(MIXED_GROUPS) == 0
        if row["step"] == 1 and self._equal == 2:
            self._warn(
                "In the first two steps, all rewards within each group were equal, so nothing was "
                "learned. Use easier or harder tasks, give partial credit, or increase group_size."
            )
