"""Write the results, samples and plot of a finished run, and print its table."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table

from evert.trainers.config.train import TrainSettings
from evert.trainers.episodes.failures import Failures, read_batches, shortened
from evert.trainers.rundir import folder as run_folder
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import MIXED_GROUPS, TRAIN_REWARD
from evert.trainers.system import files
from evert.trainers.system.provenance import origin

if TYPE_CHECKING:
    from evert.trainers.training.held_out import Evaluation

LABELS = {"greedy": "greedy", "temperature_1": "at temperature 1"}


@dataclass
class RunSummary:
    """Results of a finished run."""

    settings: TrainSettings
    before: "Evaluation | None"
    after: "Evaluation | None"
    """``before`` and ``after`` are None if the run has no held-out tasks."""
    steps: int
    seconds: dict[str, float]
    """Seconds since the run was started or resumed: the ``total``, and the time in ``training``."""


def summarise(
    facts: Any, folder: RunFolder, report: RunSummary, console: Console
) -> dict[str, Any]:
    """Write the final files and print the table, and return the contents of ``result.json``."""
    _plot(folder, report)
    _samples(folder, report)
    failures, skipped = read_batches(folder.path)
    result = {
        "name": report.settings.name,
        "model": report.settings.model_name,
        "engine": facts,
        "steps": report.steps,
        "seed": report.settings.seed,
        "held_out": {
            "before": report.before and asdict(report.before)["scores"],
            "after": report.after and asdict(report.after)["scores"],
        },
        "failures": asdict(failures),
        "skipped_batches": skipped,
        "seconds": {name: round(seconds, 2) for name, seconds in report.seconds.items()},
        **origin(),
        "folder": str(folder.path),
    }
    folder.write_json(files.RESULT, result)
    _show(folder, report, _warnings(failures, skipped, folder, report.steps), console)
    return result


def _plot(folder: RunFolder, report: RunSummary) -> None:
    from evert.trainers.reporting.figures.curves import draw_run
    from evert.trainers.reporting.figures.metrics import curves
    from evert.trainers.reporting.figures.style import save

    after = report.after.scores["temperature_1"].reward if report.after is not None else None
    run = report.settings
    title = f"{run.name}: {run.model_name}, {report.steps} steps, seed {run.seed}"
    save(draw_run(title, *curves(folder.steps(), after)), folder.path / run_folder.PLOT)


def _samples(folder: RunFolder, report: RunSummary) -> None:
    from evert.trainers.training.held_out import sample_records, samples_markdown

    if report.before is None or report.after is None:
        return
    old, new = report.before.samples, report.after.samples
    folder.write(run_folder.SAMPLES_MD, samples_markdown(report.settings.name, old, new))
    lines = [json.dumps(record) + "\n" for record in sample_records(old, new)]
    folder.write(run_folder.SAMPLES_JSONL, "".join(lines))


def _show(folder: RunFolder, report: RunSummary, warnings: Sequence[str], console: Console) -> None:
    from evert.trainers.episodes.scores import mean_text

    if report.before is not None and report.after is not None:
        run = report.settings
        title = f"{run.name}: mean reward, {report.steps} steps, seed {run.seed}"
        console.print(title, soft_wrap=True, markup=False)  # Table would wrap the title
        tasks = f"{report.after.scores['greedy'].episodes} held-out tasks"
        table = Table(tasks, *(Column(when, justify="right") for when in ("before", "after")))
        for name, label in LABELS.items():
            rewards = (report.before.scores[name].reward, report.after.scores[name].reward)
            table.add_row(label, *(mean_text(reward) for reward in rewards))
        console.print(table)
    since, seconds = " since the run was resumed" if folder.resumed else "", report.seconds
    lines = [
        f"{seconds['total']:.0f} s{since}, including {seconds['training']:.0f} s of training",
        f"plot: {folder.path / run_folder.PLOT}",
    ]
    if report.after is not None:
        lines.append(f"samples: {folder.path / run_folder.SAMPLES_MD}")
    lines.append(f"view it with: evert view {shlex.quote(str(folder.path))}")
    lines += warnings
    console.print("\n".join(lines), soft_wrap=True, markup=False)


def _warnings(failures: Failures, skipped: int, folder: RunFolder, steps: int) -> list[str]:
    rows = [row for row in folder.steps() if TRAIN_REWARD in row]
    equal = sum(row.get(MIXED_GROUPS) == 0 for row in rows)
    lines = []
    if failures.found:
        failure, times = failures.found[0]
        lines.append(f"{failures.summary()}; most common, {times}x: {shortened(failure.error)}")
    if skipped:
        lines.append(f"{skipped} batches were skipped because there was nothing to learn from them")
    if len(rows) + skipped < steps:
        lines.append(
            f"only {len(rows)} of {steps} steps trained the model: some had too few groups left"
        )
    if 2 * equal > steps:
        lines.append(
            f"no gradient in {equal} of {steps} steps: all rewards within each group were equal"
        )
    return lines
