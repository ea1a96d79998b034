"""Check everything that has not been tested on a GPU yet, in at most twelve minutes.

    python benchmarks/gpu_checks.py [--only multiply] [--out gpu-checks] [--device cpu]

    tests     the engine's device tests, on the GPU instead of the stand-in
    multiply  the 0.5B model learns to multiply with a tool; held-out scores before and after
    engine    gpu.py: correctness, bandwidth utilization at 64 prompts, multiple adapters
    recipe    an unchanged Cookbook recipe trains an adapter for the 0.5B model

The parts run in this order, each with a time limit. A part that exceeds its limit is stopped and
counts as failed; its files are kept. The output of each part goes to a file in the results folder.
Exits with status 1 if a part failed. ``--device cpu`` is a dry run without a GPU: it uses the
stand-in and trains for two steps only. ``benchmarks/README.md`` explains how to get
``.models/qwen-coder``.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.experiments

from benchmarks.experiments import EXPERIMENTS, ROOT

MODEL = ROOT / ".models/qwen-coder"
RECIPE = """
import runpy, sys
from evert import embedded_engine
with embedded_engine(sys.argv.pop(1), device=sys.argv.pop(1)):
    runpy.run_module("tinker_cookbook.recipes.math_rl.train", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Part:
    """A command and its time limit in seconds."""

    command: Sequence[str]
    seconds: int
    folder: Path = ROOT


def parts(out: Path, device: str) -> dict[str, Part]:
    """Return the parts by name. On a CPU, these are the dry runs."""
    is_dry = device == "cpu"
    python, times = sys.executable, 10 if is_dry else 1
    multiply = EXPERIMENTS["multiply"].game + " eval_every=0 learning_rate=1e-4 max_tokens=48 "
    recipe = "env=arithmetic renderer_name=qwen3_instruct learning_rate=3e-4 max_tokens=8 "
    if is_dry:
        multiply += "steps=2 batch_size=1 group_size=2 samples=1"
        recipe += "max_steps=2 groups_per_batch=2 group_size=2"
    else:
        multiply += "steps=20 batch_size=16 group_size=8 samples=4"
        recipe += "max_steps=8 groups_per_batch=64"
    tests = ("test_standin_device.py", "sampling/test_graphs.py")
    paths = [f"tests/trainers/engine/{test}" for test in tests]
    commands = {
        "tests": ["-m", "pytest", "-q", "-n0", *paths],
        "multiply": ["-m", "evert", "train", *multiply.split(), f"device={device}"],
        "engine": ["benchmarks/gpu.py", "--out", str(out / "gpu.json")],
        "recipe": ["-c", RECIPE, str(out / "checkpoints"), device, *recipe.split()],
    }
    for name in ("multiply", "recipe"):
        commands[name] += [f"model_name={MODEL}", f"log_path={out / name}"]
    seconds = {"tests": 90, "multiply": 330, "engine": 210, "recipe": 90}
    folders = {"multiply": ROOT / "examples"}
    return {
        name: Part([python, *command], seconds[name] * times, folders.get(name, ROOT))
        for name, command in commands.items()
    }


def run(name: str, part: Part, out: Path) -> bool:
    """Run a part with its output in a file and print the tail; return whether it succeeded."""
    log, began = out / f"{name}.log", time.monotonic()
    code: int | str
    with log.open("w") as file:
        try:
            code = subprocess.run(
                part.command, cwd=part.folder, timeout=part.seconds, check=False,
                stdout=file, stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = f"stopped after {part.seconds} s"
    print(f"== {name}: {time.monotonic() - began:.0f} s, exit {code}", flush=True)
    print(*log.read_text(errors="replace").splitlines()[-25:], sep="\n", flush=True)
    return code == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; return 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*parts(Path(), "cpu")], help="default: all")
    parser.add_argument("--out", type=Path, default=Path("gpu-checks"), help="results folder")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args(argv)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    failed = [
        name
        for name, part in parts(out, options.device).items()
        if not (options.only and name not in options.only) and not run(name, part, out)
    ]
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
