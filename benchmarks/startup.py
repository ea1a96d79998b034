"""How long the command takes to answer a mistyped name, beside Python's own start.

    python benchmarks/startup.py [--quick] [--repeats 5]

Each row is a process of its own, from its start to its end: the fastest of the repeats in seconds,
in seconds of the processor, and times as much of the processor as ``python -c pass`` takes. The
files are read once before, so that the disk does not count. The benchmark fails where an answer
takes more than 2 seconds of the processor, which is what it takes on an idle machine, or gives
another exit status than it should.
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
"""Seconds of the processor that an answer may take."""
NOTHING = "python -c pass"
LINES = {
    "--help": 0,
    "train agent=missing:x": 1,
    "train agent=missing:x train_tasks=missing:y": 1,
    "train env=identity limits.maxturns=3": 1,
    "train env=identity cookbook.temprature=1": 1,
    "train env=identity model_name=evert-tinny": 1,
    "evaluate env=identity models=runs/nothing": 1,
    "sweep env=identity limits.maxturns=3 seed=0,1": 1,
    "serve model=runs/nothing": 1,
    "report runs/nothing": 1,
    "rescore run=runs/nothing reward=missing:x": 1,
    "export run=runs/nothing": 1,
}
"""What follows ``evert`` -> the exit status."""


def measure(command: list[str], folder: str, repeats: int, status: int) -> tuple[float, float]:
    """The least time and processor time of a process in seconds, after one that does not count.

    Raises:
        RuntimeError: It ended with another status.
    """
    taken = list[tuple[float, float]]()
    for _ in range(repeats + 1):
        began, before = time.perf_counter(), processor()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        taken.append((time.perf_counter() - began, processor() - before))
        if done.returncode != status:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr}")
    return min(wall for wall, _ in taken[1:]), min(busy for _, busy in taken[1:])


def processor() -> float:
    """Seconds of the processor that this process's children took so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Measure every command line and show the table; 1 if one takes too long."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="once each")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    repeats = 1 if asked.quick else asked.repeats
    table, late = Table("evert ...", "seconds", "processor", f"times {NOTHING}"), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        wall, nothing = measure([sys.executable, "-c", "pass"], folder, repeats, 0)
        for line, status in LINES.items():
            command = [sys.executable, "-m", "evert.trainers.cli", *line.split()]
            took, busy = measure(command, folder, repeats, status)
            table.add_row(line, f"{took:.2f}", f"{busy:.2f}", f"{busy / nothing:.0f}")
            late += [line] if busy > MOST else []
    console = Console(width=100)
    console.print(table)
    console.print(f"{NOTHING}: {wall:.3f} s, {nothing:.3f} of the processor; bar: {MOST:g}")
    if late:
        console.print(f"too slow: {'; '.join(late)}")
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
