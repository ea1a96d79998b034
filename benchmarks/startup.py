"""Measure how quickly ``evert`` reports a mistyped name, compared with Python's startup time.

    python benchmarks/startup.py [--quick] [--repeats 5]

Each row is a complete process. The table shows the fastest repeat in wall-clock seconds, in CPU
seconds, and relative to the CPU time of ``python -c pass``. An extra unmeasured first run loads the
files into the disk cache. The benchmark fails if a process takes more than 2 CPU seconds (about the
same as wall-clock seconds on an idle machine), or exits with the wrong status.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time

from rich.console import Console
from rich.table import Table

MOST = 2.0
"""Maximum CPU seconds per process."""
NOTHING = "python -c pass"
LINES = {
    "--help": 0,
    "train agent=missing:x": 1,
    "train agent=missing:x train_tasks=missing:y": 1,
    "train env=identity limits.maxturns=3": 1,
    "train env=identity cookbook.temprature=1": 1,
    "train env=identity model_name=evert-tinny": 1,
    "evaluate env=identity models=runs/nothing": 1,
    "play env=identity model=runs/nothing": 1,
    "init . --agent nothing": 1,
    "sweep env=identity limits.maxturns=3 seed=0,1": 1,
    "serve model=runs/nothing": 1,
    "report runs/nothing": 1,
    "rescore run=runs/nothing reward=missing:x": 1,
    "export run=runs/nothing": 1,
}
"""Arguments of ``evert`` -> the expected exit status."""


def measure(command: list[str], folder: str, repeats: int, status: int) -> tuple[float, float]:
    """Return the minimum wall-clock and CPU time of a process in seconds, after a warm-up run.

    Raises:
        RuntimeError: If it exits with a different status.
    """
    taken = list[tuple[float, float]]()
    for _ in range(repeats + 1):
        began, before = time.perf_counter(), processor()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        taken.append((time.perf_counter() - began, processor() - before))
        if done.returncode != status:
            raise RuntimeError(f"{command} exited with {done.returncode}: {done.stderr}")
    return min(wall for wall, _ in taken[1:]), min(busy for _, busy in taken[1:])


def processor() -> float:
    """Return the CPU seconds used by child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Run the benchmark; return 1 if a command takes too long."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    repeats = 1 if asked.quick else asked.repeats
    table, late = Table("evert ...", "seconds", "CPU s", f"times {NOTHING}"), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        wall, nothing = measure([sys.executable, "-c", "pass"], folder, repeats, 0)
        for line, status in LINES.items():
            command = [sys.executable, "-m", "evert.trainers.cli", *line.split()]
            took, busy = measure(command, folder, repeats, status)
            table.add_row(line, f"{took:.2f}", f"{busy:.2f}", f"{busy / nothing:.0f}")
            late += [line] if busy > MOST else []
    console = Console(width=100)
    console.print(table)
    console.print(f"{NOTHING}: {wall:.3f} s, {nothing:.3f} CPU s; target: {MOST:g} CPU s")
    if late:
        console.print(f"too slow: {'; '.join(late)}")
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
