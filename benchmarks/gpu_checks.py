"""Checks what evert has not yet shown on a GPU, in one script of at most twelve minutes.

    python benchmarks/gpu_checks.py [--only multiply] [--out gpu-checks] [--device cpu]

    tests     the engine's tests for devices, on the GPU in place of the stand-in
    multiply  the 0.5 B learns to multiply with a tool: held-out scores before and after, a curve
    engine    gpu.py: correct numbers, share of the bandwidth at 64 prompts, several adapters
    recipe    a recipe of the Cookbook, unchanged, trains an adapter of the 0.5 B

The parts run in this order, each with a time limit; a part that takes longer is stopped, keeps its
files, and counts as failed. Each part's output is a file in the folder. Exits with 1 if a part
failed. ``--device cpu`` is the dry run without a GPU: the stand-in, and two steps of each training.
``benchmarks/README.md`` says where the weights of ``.models/qwen-coder`` came from.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the file beside this one

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
    """A command, and its limit in seconds."""

    command: Sequence[str]
    seconds: int
    folder: Path = ROOT


def parts(out: Path, device: str) -> dict[str, Part]:
    """Return the parts by name; on a CPU, their dry runs."""
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
    """Run a part, with its output in a file; print its end, and return whether it succeeded."""
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
    parser.add_argument("--only", nargs="+", choices=[*parts(Path(), "cpu")], help="parts (all)")
    parser.add_argument("--out", type=Path, default=Path("gpu-checks"), help="folder of results")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args(argv)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    failed = [
        name
        for name, part in parts(out, options.device).items()
        if not (options.only and name not in options.only) and not run(name, part, out)
    ]
    print(f"failed: {', '.join(failed)}" if failed else "all parts ended well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
