"""The embedded engine's memory, compared with its bars.

    python benchmarks/memory.py [--quick]

Two questions, each answered by a separate process:

- How much memory do a base of 55 M parameters in float32, an adapter in training, and samplers of
  it add, relative to the bytes of the base? The process first does the same with the shipped base,
  so that imports do not count. Bar: 1.6 times with one trainer and two samplers.
- What is the process's peak in a training pass over one datum of 8,192 tokens, with Qwen3's
  vocabulary of 151,936, for an adapter and for all weights? Bar: 4 GB, imports included.

Models have random weights, which do not change the memory. Exits with 1 if a bar is missed.
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
    """Write a random Qwen3 of these sizes, with the shipped base's tokenizer."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    config: Any = Qwen3Config
    make: Any = Qwen3ForCausalLM
    make(config(**sizes, max_position_embeddings=16384, tie_word_embeddings=True)).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(base_path()).save_pretrained(folder)
    return str(folder)


def resident() -> int:
    """Return the resident bytes of this process, after it has returned free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def hold_base(folder: str) -> None:
    """Print the bytes that a trainer adds, and then those that each further sampler adds."""
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
    """Make one pass over one datum, and one optimizer step."""
    ids = torch.randint(0, 500, (tokens + 1,))
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1].tolist()),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": torch.ones(tokens)},  # type: ignore[dict-item]
    )
    training.forward_backward([datum], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=1e-4)).result()


def hold_pass(folder: str, tokens: int) -> None:
    """Print the process's peak in bytes after a training pass."""
    train(tinker.ServiceClient().create_lora_training_client(folder, rank=8).result(), tokens)
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def asked(*arguments: str) -> Any:
    """Run this script in another process; return what it prints."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(folder: Path, quick: bool) -> tuple[Table, bool]:
    """Measure; return the table, and whether every bar is met."""
    table = Table("what", "held", "bar", title="Memory")
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
    """Measure and print the table; with ``--hold``, measure one case in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="without the pass over all weights")
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
