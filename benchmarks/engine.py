"""Compare the embedded engine with plain transformers, in tokens per second.

    python benchmarks/engine.py [--quick] [--device cpu|cuda] [--threads N] [--model NAME]
        [--dtype float32|bfloat16] [--sizes 1 16 64] [--rounds 5]

All methods use the same model, prompts and reply lengths. Sampling is timed with
``transformers.generate`` one prompt at a time, with a single ``generate`` call on the padded batch,
and with the engine's sampler, which gets one request per prompt, as in rollouts. ``generate`` has
to continue the padded batch until the longest reply is done, but only the requested tokens count.
Training is compared with a plain loop over padded batches. The loop uses the same loss, and a PEFT
adapter if the engine trains an adapter. Either groups of eight sequences share a prefix, or no
sequences do. Ratios are computed within a round; the table shows the median and range over rounds.
Exits with status 1 if a run fails or produces the wrong number of tokens.
"""

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tinker
import torch
from rich.console import Console
from rich.table import Table
from tinker import types

from evert.bridge.tokens.bases import BASE_MODEL
from evert.trainers.engine.common.parallel import release_threads
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models import products
from evert.trainers.engine.models.base_models import (
    SMALL_MODEL_PARAMETERS,
    attach_lora,
    context_length,
    load_model,
)

PROMPT = (16, 96)
REPLY_EQUAL = 32
RANK = 8
"""LoRA rank, if an adapter is trained."""
REPLY_MIXED = (8, 56)
GROUP, SHARED = 8, 64
"""Number of sequences sharing a prefix, and the prefix length in tokens."""


@dataclass(frozen=True)
class Work:
    """Prompts and reply lengths."""

    prompts: list[list[int]]
    replies: list[int]

    @property
    def tokens(self) -> int:
        """Return the total number of tokens to sample."""
        return sum(self.replies)


def make_work(size: int, vocabulary: int, *, mixed: bool) -> Work:
    """Return random prompts. A reply has 32 tokens, or 8 to 56 if ``mixed``."""
    generator = random.Random(size)
    return Work(
        [
            [generator.randrange(vocabulary) for _ in range(generator.randint(*PROMPT))]
            for _ in range(size)
        ],
        [generator.randint(*REPLY_MIXED) if mixed else REPLY_EQUAL for _ in range(size)],
    )


def seconds(call: Callable[[], int], expected: int) -> float:
    """Time a call that returns how many tokens it produced.

    Raises:
        SystemExit: If the number is not ``expected``.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    made = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    release_threads()
    if made != expected:
        raise SystemExit(f"produced {made} tokens, expected {expected}")
    return time.perf_counter() - start


def generate_one_by_one(model: Any, work: Work) -> int:
    """Call ``transformers.generate`` once per prompt."""
    pairs = zip(work.prompts, work.replies, strict=True)
    return sum(generate(model, [prompt], length) for prompt, length in pairs)


def generate(model: Any, prompts: list[list[int]], length: int) -> int:
    """Generate with one left-padded call; return the number of new tokens, including padding."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        tokens,
        attention_mask=mask.to(model.device),
        do_sample=True,
        max_new_tokens=length,
        min_new_tokens=length,
        pad_token_id=0,
        top_k=0,
    )
    return int((out.shape[1] - longest) * len(prompts))


def generate_padded(model: Any, work: Work) -> int:
    """Call ``transformers.generate`` once. Tokens beyond a row's reply length don't count."""
    generate(model, work.prompts, max(work.replies))
    return work.tokens


def sample(client: Any, work: Work) -> int:
    """Sample with the engine, sending one request per prompt, all concurrently."""
    futures = [
        client.sample(
            types.ModelInput.from_ints(prompt),
            1,
            types.SamplingParams(max_tokens=length, stop=[]),
        )
        for prompt, length in zip(work.prompts, work.replies, strict=True)
    ]
    return sum(len(future.result().sequences[0].tokens) for future in futures)


def make_data(work: Work, *, shared: bool) -> list[types.Datum]:
    """Return the prompts as next-token training data, with or without shared prefixes."""
    draw = random.Random(len(work.prompts))
    rows = [[draw.choice(prompt) for _ in range(SHARED)] + prompt for prompt in work.prompts]
    if shared:
        rows = [rows[n - n % GROUP][:SHARED] + row[SHARED:] for n, row in enumerate(rows)]
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(prompt[:-1]),
            loss_fn_inputs={
                "target_tokens": torch.tensor(prompt[1:]),  # type: ignore[dict-item]
                "weights": torch.ones(len(prompt) - 1),  # type: ignore[dict-item]
            },
        )
        for prompt in rows
    ]


def train_engine(client: Any, data: list[types.Datum]) -> int:
    """Run one forward-backward pass and one optimizer step with the engine."""
    client.forward_backward(data, "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=1e-5)).result()
    return sum(datum.model_input.length for datum in data)


def train_plain(model: Any, optimizer: torch.optim.Optimizer, data: list[types.Datum]) -> int:
    """Run one forward-backward pass over the padded batch, and one optimizer step."""
    rows = [datum.model_input.to_ints() for datum in data]
    longest = max(map(len, rows))
    device = model.device
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    targets = torch.full_like(tokens, -100)
    for place, datum in zip(targets, data, strict=True):
        values = datum.loss_fn_inputs["target_tokens"].to_torch()
        place[: len(values)] = values.to(device)
    logits = model(input_ids=tokens, attention_mask=(targets != -100).long()).logits
    torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), reduction="sum"
    ).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return sum(map(len, rows))


def product_seconds(model: Any, rows: int, *, head: bool) -> float:
    """Return how long the model's matrix products for ``rows`` tokens take (best of three)."""
    last = model.get_output_embeddings()
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not last]
    given = {m.in_features: torch.ones(rows, m.in_features).to(m.weight) for m in linears}
    times = []
    with torch.inference_mode():
        for _ in range(3):
            start = time.perf_counter()
            for linear in [*linears, *([last] if head else [])]:
                products.linear(given[linear.in_features], linear.weight)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    release_threads()
    return min(times)


def least_seconds(model: Any, work: Work) -> float:
    """Return how long the matrix products alone take. All replies must have the same length."""
    prompts = sum(map(len, work.prompts)) / 1024 * product_seconds(model, 1024, head=False)
    return prompts + work.replies[0] * product_seconds(model, len(work.prompts), head=True)


def measure_sampling(model: Any, new_client: Any, args: argparse.Namespace) -> Table:
    """Measure sampling speed in tokens per second for each batch size."""
    table = Table(
        "batch", "replies", "one by one", "padded batch", "engine", "x one by one", "x padded",
        "of the limit",
        title="Sampled tokens per second",
    )  # fmt: skip
    for size in args.sizes:
        for mixed in (False, True):
            work = make_work(size, args.vocabulary, mixed=mixed)
            least = 0.0 if mixed else least_seconds(model, work)
            rounds = []
            for _ in range(args.rounds):
                # Sampling one by one takes minutes, so use only a few prompts.
                few = Work(work.prompts[: args.few], work.replies[: args.few])
                one = seconds(lambda few=few: generate_one_by_one(model, few), few.tokens)  # type: ignore[misc]
                padded = seconds(lambda work=work: generate_padded(model, work), work.tokens)  # type: ignore[misc]
                client = new_client()
                ours = seconds(lambda work=work, c=client: sample(c, work), work.tokens)  # type: ignore[misc]
                rounds.append((few.tokens / one, work.tokens / padded, work.tokens / ours))
            usual = statistics.median(ours for _, _, ours in rounds) / work.tokens
            limit = "" if mixed else f"{least * usual:.0%}"
            add_row(table, size, "8 to 56" if mixed else "32", rounds, limit)
    return table


def measure_training(model: Any, client: Any, args: argparse.Namespace) -> Table:
    """Measure training speed in tokens per second for each batch size."""
    columns = ("batch", "prefixes", "plain loop", "engine", "x plain")
    table = Table(*columns, title="Trained tokens per second")
    if model.num_parameters() >= SMALL_MODEL_PARAMETERS:
        model = attach_lora(model, RANK, seed=0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    for size in args.sizes:
        for shared in (False, True):
            data = make_data(make_work(size, args.vocabulary, mixed=False), shared=shared)
            tokens = sum(datum.model_input.length for datum in data)
            rounds = []
            for _ in range(args.rounds):
                plain = seconds(lambda d=data: train_plain(model, optimizer, d), tokens)  # type: ignore[misc]
                ours = seconds(lambda d=data: train_engine(client, d), tokens)  # type: ignore[misc]
                rounds.append((tokens / plain, tokens / ours))
            add_row(table, size, "shared" if shared else "distinct", rounds)
    return table


def add_row(
    table: Table, size: int, label: str, rounds: Sequence[tuple[float, ...]], *more: str
) -> None:
    """Add a row: median rates, the engine's speedup over each other method, and ``more`` cells."""
    rates = [f"{statistics.median(column):,.0f}" for column in zip(*rounds, strict=True)]
    ratios = []
    for other in range(len(rounds[0]) - 1):
        values = [round_[-1] / round_[other] for round_ in rounds]
        spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
        ratios.append(f"{statistics.median(values):.1f}{spread}")
    table.add_row(str(size), label, *rates, *ratios, *more)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="few sizes, one round; under a minute")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch CPU threads (default: 1)")
    parser.add_argument(
        "--model", default=BASE_MODEL, help="folder or cached Hub name (default: evert-tiny)"
    )
    parser.add_argument("--dtype", default="float32", help="weight dtype (default: float32)")
    parser.add_argument("--sizes", type=int, nargs="+", help="batch sizes")
    parser.add_argument("--rounds", type=int, help="default: 5, or 1 with --quick")
    args = parser.parse_args()
    args.sizes = args.sizes or ([1, 64] if args.quick else [1, 4, 16, 64, 256])
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.few = 2 if args.quick else 8
    return args


def main() -> int:
    """Run the benchmark and print the tables."""
    args = parse_arguments()
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as folder:
        options = {"device": args.device, "threads": args.threads, "dtype": args.dtype}
        with embedded_engine(folder, **options) as engine:
            model = load_model(args.model, engine.device, getattr(torch, args.dtype))
            args.vocabulary = model.config.vocab_size
            service = tinker.ServiceClient()
            training = service.create_lora_training_client(args.model, rank=RANK).result()

            def new_client() -> Any:
                # A new client per round, so that nothing is cached from the previous round.
                return training.save_weights_and_get_sampling_client().result()

            console.print(
                f"{args.model}, {sum(p.numel() for p in model.parameters()):,} parameters, context "
                f"{context_length(model)}; {args.dtype} on {engine.device}, {args.threads} of "
                f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}; "
                f"{args.rounds} rounds"
            )
            console.print(measure_sampling(model, new_client, args))
            console.print(measure_training(model, training, args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
