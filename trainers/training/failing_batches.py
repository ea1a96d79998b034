"""Count how the episodes of each batch ended, and stop the run if nearly all of them fail.

``Tally`` counts every group. It writes one line per batch to ``batches.jsonl``, prints new types of
failures, and stops the run if nearly all episodes fail for several consecutive steps. A batch is
one batch of the dataset. With ``async_config``, batch N does not contain the same groups as the
Cookbook's step N.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tinker_cookbook.rl.types import Trajectory

from evert.bridge.errors import EvertError
from evert.bridge.groups.group import BatchPosition, can_be_learned_from
from evert.bridge.redaction import redacted
from evert.trainers.episodes.failures import OVERFLOW, Failure, Failures, failure_in, merge
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import FAILED, LOST, SKIPPED
from evert.trainers.system.files import BATCHES

MOST = 0.5
"""Report a step if more than this fraction of its episodes failed."""
TOOLS = ("tools/offered", "tools/calls", "tools/markup_in_text")
"""Metrics that tell us whether the renderer parsed the tool calls in the first step."""

NEARLY_ALL = 0.95
"""If at least this fraction of its episodes failed, a step counts towards stopping the run."""


UNREAD_CALLS = (
    "warning: no tool calls were parsed in the first step, although tools were offered and "
    "{markup} replies in {episodes} episodes contain tool-call markup. The model may be using a "
    "format that its renderer cannot parse. Run `evert model check MODEL` to see the expected "
    "format, and look at the replies in the rollouts."
)


class EpisodesFailedError(EvertError, RuntimeError):
    """Nearly all episodes of a run failed, for several steps in a row."""


class NothingToLearnError(EvertError, RuntimeError):
    """A batch contained nothing to learn from, and the installed Cookbook cannot skip it."""


@dataclass
class BatchSummary:
    """Results of a group or batch.

    An overflowed episode that can still be trained on counts as an overflow, not as a failure.
    """

    groups: int = 0
    episodes: int = 0
    failures: list[Failure] = field(default_factory=list)
    overflows: list[Failure] = field(default_factory=list)
    teaches: bool = False
    tools: Counter[str] = field(default_factory=Counter)  # sums of the episodes' tools/... metrics

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], failures: Sequence[Failure]) -> "BatchSummary":
        """Summarize a group."""
        account = cls(1, len(trajectories) + len(failures), [*failures])
        for trajectory in trajectories:
            failure, teaches = failure_in(trajectory), can_be_learned_from(trajectory)
            if failure is not None:
                fine = failure.kind == OVERFLOW and teaches
                (account.overflows if fine else account.failures).append(failure)
            account.teaches |= teaches
            last = trajectory.transitions[-1].metrics if trajectory.transitions else {}
            account.tools.update({key: int(last.get(key, 0)) for key in TOOLS})
        return account

    def add(self, account: "BatchSummary") -> None:
        """Add another summary to this one."""
        self.groups += account.groups
        self.episodes += account.episodes
        self.failures += account.failures
        self.overflows += account.overflows
        self.teaches |= account.teaches
        self.tools += account.tools


class Tally:
    """Counts batches, and stops the run after ``failed_steps`` consecutive failed steps.

    With ``failed_steps=0``, it never stops the run.
    """

    def __init__(
        self,
        folder: RunFolder,
        say: Callable[[str], None],
        start: int,
        steps: int,
        failed_steps: int,
    ) -> None:
        self._file, self._say = folder.path / BATCHES, say
        self._next = start
        self._first = start
        self._patience = min(failed_steps, max(1, steps - start))
        self._open: dict[int, BatchSummary] = {}
        self._lost: int | None = None
        self._in_a_row: list[Failures] = []
        self._explained: set[Any] = set()
        self._rows: dict[int, dict[str, float]] = {}
        self.error: Exception | None = None
        self._over = asyncio.Event()
        self.has_skipped = False

    def row(self, step: int) -> dict[str, float]:
        """Return a step's metrics: failure rates, lost groups, and whether it was skipped."""
        return self._rows.get(step, {})

    def count(self, batch: BatchPosition, account: BatchSummary) -> None:
        """Count a group, and stop the run if there were too many failed steps."""
        if self.error is not None:
            return
        total = self._open.setdefault(batch.index, BatchSummary())
        total.add(account)
        if total.groups == batch.groups:
            self._complete(self._open.pop(batch.index))

    def count_lost(self, why: str | None) -> None:
        """Count a group whose worker died, and print ``why``.

        If ``why`` is None, nothing is counted, but from now on the count is logged.
        """
        if why is not None and LOST not in self._explained:
            self._explained.add(LOST)
            self._say(
                f"step {self._next + 1}: a worker died ({why}); its groups "
                f"will be rerun (see the metric {LOST})"
            )
        self._lost = (self._lost or 0) + (why is not None)

    def end(self, error: Exception) -> None:
        """Stop the run with an error. Later errors are ignored."""
        if self.error is None:
            self.error = error
            self._over.set()

    async def watch(self, training: Coroutine[Any, Any, None]) -> None:
        """Await the training, and cancel it if ``end`` is called.

        This is needed because the Cookbook does not await every rollout. When it streams
        minibatches, it would wait forever for a rollout that raised an error.
        """
        tasks = asyncio.create_task(training), asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # consume their errors
        if self.error is not None:
            raise self.error
        tasks[0].result()

    def report(self, subject: str, failures: Failures, *, skipped: bool = False) -> None:
        """Report that most episodes failed or that nothing can be learned, once for each reason."""
        alike = failures.commonest.alike if failures.share > MOST and failures.commonest else None
        if (alike is None and not skipped) or (alike, skipped) in self._explained:
            return
        is_repeated = (alike, not skipped) in self._explained
        self._explained.add((alike, skipped))
        reason = "there is nothing to learn from its replies"
        if alike is not None:
            reason = failures.summary() + " as before" if is_repeated else failures.describe()
        self._say(f"{subject}{' is skipped' * skipped}: {reason}")

    def _complete(self, batch: BatchSummary) -> None:
        step, self._next = self._next, self._next + 1
        failures = Failures.of(batch.episodes, ((failure, 1) for failure in batch.failures))
        all_failures = Failures.of(
            batch.episodes, ((failure, 1) for failure in batch.failures + batch.overflows)
        )
        self.has_skipped = not batch.teaches
        row = {FAILED: failures.share, SKIPPED: float(self.has_skipped)}
        row |= {f"{FAILED}/{kind}": n / batch.episodes for kind, n in all_failures.kinds.items()}
        if self._lost is not None:
            row[LOST], self._lost = float(self._lost), 0
        self._rows[step] = row
        line = json.dumps({"step": step, "metrics": row, **asdict(all_failures)})
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(redacted(line) + "\n")
        except OSError as error:  # don't raise: nothing may be awaiting this group
            return self.end(error)
        self.report(f"step {step + 1}", all_failures, skipped=self.has_skipped)
        offered, calls, markup = (batch.tools[key] for key in TOOLS)
        if step == self._first and offered and markup and not calls:
            self._say(UNREAD_CALLS.format(markup=markup, episodes=batch.episodes))
        if failures.share < NEARLY_ALL:
            return self._in_a_row.clear()
        self._in_a_row.append(failures)
        if self._patience and len(self._in_a_row) >= self._patience:
            self.end(EpisodesFailedError(_end_message(self._in_a_row)))


def _end_message(failures: Sequence[Failures]) -> str:
    total = merge(failures)
    commonest, _ = total.found[0]
    steps = f"In {len(failures)} consecutive steps" if len(failures) > 1 else "In one step"
    return (
        f"{steps}, nearly all episodes failed: {total.summary()}. The most common failure: "
        f"{commonest.error}\n{commonest.remedy} To continue anyway, set failed_steps=0."
    )
