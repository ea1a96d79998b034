"""Measure the memory of the embedded engine.

    python benchmarks/memory.py [--quick]

Each measurement runs in a separate process:

- How much memory do a float32 base model with 55M parameters, a trained adapter and its samplers
  take, relative to the base model's size? The process first does the same with ``evert-tiny``, so
  that imports don't count. Target: with one trainer and two samplers, at most 1.6 times the base
  model's size.
- What is the peak memory of a process during a training pass over one datum of 8,192 tokens with
  Qwen3's vocabulary of 151,936, for an adapter and for all weights? Target: at most 4 GB, including
  imports.

The models have random weights, which makes no difference here. Exits with status 1 if a result
misses its target.
"""

import argparse
import ctypes
import gc
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import tinker
import torch
from rich.console import Console
from rich.table import Table
from tinker import types

from evert.bridge.tokens.bases import BASE_MODEL, base_path
from evert.trainers.engine.embedded import embedded_engine

MOST_BASES = 1.6
MOST_BYTES = 4e9
TOKENS = 8192
SAMPLERS = 3

BASE = {
    "vocab_size": 512, "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 8,
    "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64,
}  # fmt: skip
WIDE = {
    "vocab_size": 151_936, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
}  # fmt: skip


def make_model(folder: Path, sizes: dict[str, int]) -> str:
    """Save a randomly initialized Qwen3 with the tokenizer of ``evert-tiny``."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    config: Any = Qwen3Config
    make: Any = Qwen3ForCausalLM
    make(config(**sizes, max_position_embeddings=16384, tie_word_embeddings=True)).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(base_path()).save_pretrained(folder)
    return str(folder)


def resident() -> int:
    """Return the resident memory of this process in bytes, after releasing free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def hold_base(folder: str) -> None:
    """Print the memory added by a trainer, and the total after each additional sampler."""
    service = tinker.ServiceClient()
    tokens = types.ModelInput.from_ints([1, 2, 3])
    params = types.SamplingParams(max_tokens=2, stop=[])
    kept: list[Any] = []
    for name in (BASE_MODEL, folder):
        before, found = resident(), []
        training = service.create_lora_training_client(name, rank=8).result()
        train(training, 64)
        found.append(resident() - before)
        for _ in range(SAMPLERS):
            sampler = training.save_weights_and_get_sampling_client().result()
            sampler.sample(tokens, 1, params).result()
            kept += [training, sampler]
            found.append(resident() - before)
    print(json.dumps(found))


def train(training: Any, tokens: int) -> None:
    """Run one pass over one datum, and one optimizer step."""
    ids = torch.randint(0, 500, (tokens + 1,))
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1].tolist()),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": torch.ones(tokens)},  # type: ignore[dict-item]
    )
    training.forward_backward([datum], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=1e-4)).result()


def hold_pass(folder: str, tokens: int) -> None:
    """Run a training pass and print the peak memory of the process in bytes."""
    train(tinker.ServiceClient().create_lora_training_client(folder, rank=8).result(), tokens)
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def asked(*arguments: str) -> Any:
    """Run this script in another process and return its JSON output."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(folder: Path, quick: bool) -> tuple[Table, bool]:
    """Return the results table, and whether every target is met."""
    table = Table("what", "held", "target", title="Memory")
    base = make_model(folder / "base", BASE)
    size = (folder / "base" / "model.safetensors").stat().st_size
    kept = True
    for samplers, held in enumerate(asked("--hold", "base", base)):
        kept &= samplers > 2 or held <= MOST_BASES * size
        bar = str(MOST_BASES) if samplers == 2 else ""
        what = f"55 M in float32, a trainer, samplers: {samplers}; times {size / 1e6:.0f} MB"
        table.add_row(what, f"{held / size:.2f}", bar)
    wide = make_model(folder / "wide", WIDE)
    for kind in ("adapter",) if quick else ("adapter", "whole"):
        peak = asked("--hold", kind, wide)
        kept &= peak <= MOST_BYTES
        what = f"a pass over {TOKENS} tokens, vocabulary {WIDE['vocab_size']}, {kind}; peak in GB"
        table.add_row(what, f"{peak / 1e9:.2f}", f"{MOST_BYTES / 1e9:.0f}")
    return table, kept


def main() -> int:
    """Run the benchmark. With ``--hold``, measure a single case in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="skip the pass over all weights")
    parser.add_argument("--hold", nargs=2, metavar=("WHAT", "MODEL"), help="internal")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.hold is None:
            table, kept = measure(Path(folder), args.quick)
            Console(width=110).print(table)
            return 0 if kept else 1
        what, model = args.hold
        whole = what == "whole"
        with embedded_engine(folder, device="cpu", threads=1, full_parameter=whole):
            hold_base(model) if what == "base" else hold_pass(model, TOKENS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
