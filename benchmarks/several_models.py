"""Train two models together: ``examples/compression.py`` over several seeds.

    python benchmarks/several_models.py [--quick] [--seeds 0 1 2] [--steps 40]

One model, the compressor, writes a code for a text. The other model, the reconstructor, learns to
decode it. The compressor's reward is the information that the code gives the reconstructor, in
nats, minus a cost per token. The script prints the compressor's reward and the reconstructor's gain
for the first and last steps, and fails unless both rise in every run. ``metrics.jsonl`` in the
run's folder contains all steps.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from runpy import run_path
from typing import Any

from tinker_cookbook.utils.ml_log import JsonLogger

import evert
from evert.trainers.system.files import read_jsonl

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "compression.py"
MEASURES = {
    "compressor/reward": "compressor's reward",
    "reconstructor/gain": "reconstructor's gain",
}
"""Information in a code, in nats. The reward subtracts the cost of the code; the gain doesn't."""
MOST_TOLD = 9.1
"""Information in a four-digit number, in nats (ln 9000). No code can carry more."""
FIRST, LAST = 2, 5
"""How many of the first and of the last steps are averaged."""


def play(seed: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Run the example; return the rows of its ``metrics.jsonl``, one per step."""
    main: Any = run_path(str(EXAMPLE))["main"]
    with (
        tempfile.TemporaryDirectory() as store,
        evert.embedded_engine(store, full_parameter=False, threads=1, seed=seed),
    ):
        asyncio.run(main(JsonLogger(folder), seed, steps))
    return read_jsonl(folder / "metrics.jsonl")


def ends(rows: Sequence[dict[str, Any]], measure: str) -> tuple[float, float]:
    """Return the means over the first and the last steps."""
    values = [row[measure] for row in rows]
    return statistics.fmean(values[:FIRST]), statistics.fmean(values[-LAST:])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 unless both values rise in every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="one seed, 8 steps")
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    parser.add_argument("--out", type=Path, default=Path(f"runs/compression-{stamp}"))
    options = parser.parse_args(argv)
    if options.quick:
        options.seeds, options.steps = options.seeds[:1], 8
    failures: list[str] = []
    for seed in options.seeds:
        began = time.monotonic()
        rows = play(seed, options.steps, options.out / f"seed{seed}")
        for measure, title in MEASURES.items():
            before, after = ends(rows, measure)
            seconds = time.monotonic() - began
            print(f"seed {seed}   {title:20}   {before:6.2f} to {after:5.2f}   {seconds:3.0f} s")
            if after <= before:
                failures.append(f"seed {seed}: the {title} did not rise")
    print(f"maximum information in a code: {MOST_TOLD} nats")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
