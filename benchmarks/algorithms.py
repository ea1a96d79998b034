"""Train SmolLM2 on sums with fifteen algorithm settings: losses, advantages, substeps, KL, async.

    python benchmarks/algorithms.py [--only ppo] [--seeds 0 1 2] [--plot docs/algorithms.png]

All rows train on reasoning-gym's one-digit sums, with the same warm-up, tasks, step count and
learning rate. The score of a run is its mean training reward over the last five steps. If the score
is less than half of the run's best five-step mean, the run is reported as collapsed. Runs already
in the results folder are not repeated. Exits with status 1 if a run in the first row, which uses
the recipe's default settings, has not learned. ``--quick`` runs only one step of each run and
prints no table.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.experiments

from benchmarks.experiments import COMMON, QUICK, SMOLLM2, parse, shown, train

from evert import Group
from evert.trainers.reporting.figures.colours import COLOURS
from evert.trainers.reporting.figures.style import INK, head, new_figure
from evert.trainers.reporting.figures.style import save as save_figure

SUMS = (
    "tasks=reasoning_gym:chain_sum tasks.max_terms=2 tasks.max_digits=1 test_tasks='' "
    f"max_tokens=12 {SMOLLM2} warm_up_steps=4 warm_up_batch=32 steps=15 batch_size=12 group_size=8 "
    "learning_rate=2e-4"
)
DIVIDED = "cookbook.dataset_builder.advantages=benchmarks.algorithms:divided"
ASYNC = "cookbook.async_config.groups_per_batch=12 cookbook.async_config.max_steps_off_policy"
LAST, LEARNED = 5, 0.3
SAME = "on-policy, so the ratio is 1: same as importance_sampling"
FASTER = "faster: more updates per sample; clipping keeps it stable"
ROWS = {
    "importance_sampling": ("", "baseline (REINFORCE minus the group mean)"),
    "ppo": ("loss_fn=ppo", SAME),
    "cispo": ("loss_fn=cispo", SAME),
    "gspo": ("loss_fn=gspo", "the same, but sequences are weighted equally"),
    "dro": ("loss_fn=dro", "slower because of its quadratic penalty"),
    "importance_sampling, divided": (DIVIDED, "GRPO: larger steps if few rewards differ"),
    "ppo, divided": (f"loss_fn=ppo {DIVIDED}", "GRPO as published: same as the row above"),
    "cispo, divided": (f"loss_fn=cispo {DIVIDED}", "same as the row above"),
    "gspo, divided": (f"loss_fn=gspo {DIVIDED}", "GSPO as published"),
    "dro, divided": (f"loss_fn=dro {DIVIDED}", "slower, as without division"),
    "importance_sampling, 4 substeps": ("num_substeps=4", "faster, but the ratio is not clipped"),
    "ppo, 4 substeps": ("loss_fn=ppo num_substeps=4", FASTER),
    "cispo, 4 substeps": ("loss_fn=cispo num_substeps=4", FASTER),
    "importance_sampling, kl_penalty=0.1": ("kl_penalty=0.1", "lower reward, closer to the base"),
    "importance_sampling, async": (f"{ASYNC}=8", "same progress per step: ratio corrects lag"),
}
"""Row name -> (settings, the result that the papers suggest)."""


def divided(group: Group) -> np.ndarray[Any, Any]:
    """Return the group's rewards minus their mean, divided by their standard deviation."""
    centred = group.rewards - group.rewards.mean()
    quotients: np.ndarray[Any, Any] = centred / (group.rewards.std() + 1e-6)
    return quotients


def last(rewards: Sequence[float]) -> float:
    """Return the mean reward over the last steps."""
    return fmean(rewards[-LAST:])


def collapsed(rewards: Sequence[float]) -> bool:
    """Return whether the final reward is less than half of the best reward during the run."""
    return last(rewards) < max(last(rewards[:end]) for end in range(1, len(rewards) + 1)) / 2


def table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Return the results table, one row per setting."""
    grid = Table(title=f"mean training reward over the last {LAST} steps (95 % over seeds)")
    for column in ("settings", "seeds", "last steps", "all steps", "end", "CPU s", "expected"):
        grid.add_column(column, no_wrap=True)
    for name, runs in results.items():
        rewards = [run["rewards"] for run in runs]
        count = sum(map(collapsed, rewards))
        ending = f"{count} of {len(runs)} collapsed" if count else ""
        figures = (shown([*map(last, rewards)]), f"{fmean(map(fmean, rewards)):.2f}", ending)
        seconds = f"{fmean(run['cpu_seconds'] for run in runs):.0f}"
        grid.add_row(name, str(len(runs)), *figures, seconds, ROWS[name][1])
    return grid


def plot(results: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Plot the final reward of each run as a point, and the mean of each setting as a line."""
    figure, (axes,) = new_figure(7.2, 1.2 + 0.25 * len(results))
    for place, runs in enumerate(results.values()):
        points = [last(run["rewards"]) for run in runs]
        axes.plot(points, [place] * len(points), "o", color=COLOURS[0], alpha=0.5)
        axes.plot(fmean(points), place, "|", color=INK, markersize=14, markeredgewidth=2)
    axes.set_yticks(range(len(results)), list(results))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    head(axes, "Sums by SmolLM2", f"mean training reward, last {LAST} steps: seeds and mean")
    save_figure(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if the first row did not learn."""
    options = parse(__doc__, [*ROWS], argv)
    console = Console(highlight=False, width=200)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in options.seeds:
        for number, (name, (settings, _)) in enumerate(ROWS.items()):
            if name in options.only:
                command = f"{SUMS} {COMMON} {settings} {QUICK if options.quick else ''} seed={seed}"
                results.setdefault(name, []).append(train(command, out / f"sums-{number}-{seed}"))
    if options.quick:
        return 0
    console.print(table(results))
    if options.plot:
        plot(results, Path(options.plot))
    base = [last(run["rewards"]) for run in results.get("importance_sampling", [])]
    if any(figure < LEARNED for figure in base):
        print(f"FAILED importance_sampling: {base}, below {LEARNED}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
