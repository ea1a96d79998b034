"""Check that shared prompt prefixes are computed once, and measure the speedup.

    python benchmarks/prefixes.py [--quick] [--device cpu|cuda] [--threads N]
    python benchmarks/prefixes.py --parts     ablation of the three optimizations

Each case runs on two samplers with the same weights. One of them has no prefix cache and reuses
computation only between identical prompts. "distinct" is the number of tokens that must be computed
at least once: the nodes in the trie of all prompts. Times are medians over rounds, and ratios are
computed within a round. Exits with status 1 if more than 1.1 times the distinct tokens are
computed, if the greedy replies of the two samplers differ, or if sharing does not make sampling
from many prompts with one long prefix at least 8 times as fast.

``--parts`` runs the cases with all three optimizations, and then with each of them disabled in
turn. The optimizations are a cache between calls, computing the common prefixes of a call first,
and storing the common stem of a batch once.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import tinker
import torch
from rich.console import Console
from rich.table import Table
from tinker import types

from evert.bridge.tokens.bases import BASE_MODEL
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.sampling import batches, frozen, lean_batch

PROMPTS = 64
SAMPLES = 8
TURNS = 10
MOST_COMPUTED = 1.1
LEAST_FASTER = 8.0

Prompt = list[int]


@dataclass
class Run:
    """The result of running a case on one sampler."""

    computed: int
    """Prompt tokens computed by the model."""
    seconds: float
    result: Any
    """Tokens or log-probabilities, for comparison."""


@dataclass(frozen=True)
class Case:
    """A case to run on both samplers."""

    name: str
    play: Callable[[Any], Any]
    distinct: int
    """Tokens that must be computed at least once."""
    faster: float | None = None
    """Minimum speedup from sharing, or None for no minimum."""


def measure(client: Any, play: Callable[[Any], Any]) -> Run:
    """Run a case on one sampler."""
    stats = client.sampler.stats
    before, start = stats.prompt_tokens, time.perf_counter()
    result = play(client)
    return Run(stats.prompt_tokens - before, time.perf_counter() - start, result)


def sample(client: Any, prompts: Sequence[Prompt], samples: int) -> list[list[int]]:
    """Return greedy replies of four tokens. All requests are sent concurrently."""
    params = types.SamplingParams(max_tokens=4, temperature=0.0, stop=[])
    futures = [
        client.sample(types.ModelInput.from_ints(prompt), samples, params) for prompt in prompts
    ]
    return [sequence.tokens for future in futures for sequence in future.result().sequences]


def score(client: Any, prompts: Sequence[Prompt], last: int | None) -> list[list[float]]:
    """Return rounded log-probabilities of the prompt tokens after the first."""
    futures = [
        client.compute_logprobs(types.ModelInput.from_ints(prompt), prompt_logprobs_last_n=last)
        for prompt in prompts
    ]
    found = [future.result() for future in futures]
    return [[round(value, 2) for value in row if value is not None] for row in found]


def converse(client: Any, openings: Sequence[Prompt], tail: Prompt) -> list[list[int]]:
    """Continue several conversations in parallel for ten turns; return them."""
    conversations = [list(opening) for opening in openings]
    for _ in range(TURNS):
        for conversation, reply in zip(
            conversations, sample(client, conversations, 1), strict=True
        ):
            conversation += [*reply, *tail]
    return conversations


def distinct(prompts: Sequence[Prompt]) -> int:
    """Return the number of nodes in the trie of the prompts."""
    return len({tuple(prompt[: i + 1]) for prompt in prompts for i in range(len(prompt))})


def make_prompts(tokenizer: Any) -> list[Prompt]:
    """Return 64 prompts: a shared prefix of 1,145 tokens, then 40 tokens that differ."""
    rules = "<|im_start|>system\n" + "rule 17: be brief and exact. " * 60 + "<|im_end|>\n"
    start, prompts = tokenizer.encode(rules), []
    for number in range(1000, 1000 + PROMPTS):
        # Reverse the number, so that the prompts differ as soon as possible after the prefix.
        ask, tail = f"{str(number)[::-1]} is me. Repeat: I am {number}.", list[int]()
        while len(tail) < 40:
            text = f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n"
            tail, ask = tokenizer.encode(text), f"{ask}."
        prompts.append(start + tail)
    return prompts


def make_cases(tokenizer: Any) -> list[Case]:
    """Return the cases in order. Each case uses the cache that the earlier cases have filled."""
    prompts = make_prompts(tokenizer)
    tail = prompts[0][-40:]
    openings = [prompt[-40:] for prompt in prompts[:16]]
    # After the first turn, everything is cached except the reply's last token and the tail.
    talk = distinct(openings) + 16 * (TURNS - 1) * (1 + len(tail))
    return [
        Case(
            f"{PROMPTS} prompts with one prefix, {SAMPLES} samples each",
            lambda client: sample(client, prompts, SAMPLES),
            distinct(prompts),
            LEAST_FASTER,
        ),
        # The last token of each prompt is recomputed, because its logits are not cached.
        Case("the same again", lambda client: sample(client, prompts, SAMPLES), PROMPTS),
        Case(f"16 conversations of {TURNS} turns", lambda c: converse(c, openings, tail), talk),
        Case("scored whole", lambda client: score(client, prompts, None), distinct(prompts)),
        Case("scored, the last 5 of each", lambda client: score(client, prompts, 5), 5 * PROMPTS),
    ]


def compare(case: Case, rounds: Sequence[tuple[Run, Run]], table: Table) -> list[str]:
    """Add a row to the table and return a message for each missed target."""
    ours, theirs = rounds[0]
    ratios = [without.seconds / shared.seconds for shared, without in rounds]
    faster, computed = statistics.median(ratios), ours.computed / case.distinct
    spread = f" ({min(ratios):.1f} to {max(ratios):.1f})" if len(ratios) > 1 else ""
    seconds = [statistics.median(run.seconds for run in runs) for runs in zip(*rounds, strict=True)]
    table.add_row(
        case.name, f"{case.distinct:,}", f"{ours.computed:,} ({computed:.2f})",
        f"{theirs.computed:,}", *(f"{value:.2f}" for value in seconds), f"{faster:.1f}{spread}",
    )  # fmt: skip
    missed = []
    if any(shared.computed > MOST_COMPUTED * case.distinct for shared, _ in rounds):
        missed.append(f"{case.name}: {computed:.2f} times the distinct tokens were computed")
    if any(shared.result != without.result for shared, without in rounds):
        missed.append(f"{case.name}: the results differ")
    if case.faster is not None and faster < case.faster:
        missed.append(f"{case.name}: {faster:.1f} times as fast, expected {case.faster}")
    return missed


def new_client(training: Any, share: int) -> Any:
    """Return a sampler whose new prefix cache has 1/``share`` of the key-value cache's capacity."""
    usual, frozen._PREFIX_SHARE = frozen._PREFIX_SHARE, share
    try:
        client = training.save_weights_and_get_sampling_client().result()
        assert client.sampler
        return client
    finally:
        frozen._PREFIX_SHARE = usual


PARTS = ("all parts", "the cache", "prefixes first", "the stem")


@contextmanager
def without(part: str) -> Iterator[int]:
    """Disable one optimization; yield the ``share`` that ``new_client`` needs for this."""
    switches: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "prefixes first": (batches, "shared_prefixes", lambda *_: []),
        "the stem": (lean_batch, "best_stem", lambda *_: None),
    }
    share = 2**62 if part == "the cache" else frozen._PREFIX_SHARE
    if part not in switches:
        yield share
        return
    module, name, replacement = switches[part]
    with patch.object(module, name, replacement):
        yield share


def measure_parts(training: Any, cases: Sequence[Case], rounds: int) -> Table:
    """Measure each case with all optimizations, and with each of them disabled in turn."""
    runs: dict[str, list[list[Run]]] = {part: [[] for _ in cases] for part in PARTS}
    for _ in range(rounds):
        for part in PARTS:
            with without(part) as share:
                client = new_client(training, share)
                for case, case_runs in zip(cases, runs[part], strict=True):
                    case_runs.append(measure(client, case.play))
    table = Table("tokens computed; seconds", *PARTS[:1], *(f"without {p}" for p in PARTS[1:]))
    for number, case in enumerate(cases):
        cells = []
        for part in PARTS:
            case_runs = runs[part][number]
            seconds = statistics.median(run.seconds for run in case_runs)
            cells.append(f"{case_runs[0].computed:,}; {seconds:.2f}")
        table.add_row(case.name, *cells)
    return table


def main() -> int:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, under a minute")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch CPU threads (default: 1)")
    parser.add_argument("--parts", action="store_true", help="ablation of the optimizations")
    args = parser.parse_args()
    console = Console(width=120)
    table = Table(
        "", "distinct", "computed", "without", "s", "s without", "x",
        title="Computed tokens and seconds with and without sharing",
    )  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded_engine(folder, device=args.device, threads=args.threads) as engine,
    ):
        training = tinker.ServiceClient().create_lora_training_client(BASE_MODEL).result()
        cases = make_cases(training.get_tokenizer())
        if args.parts:
            console.print(measure_parts(training, cases, 1 if args.quick else 5))
            return 0
        rounds: list[list[tuple[Run, Run]]] = [[] for _ in cases]
        for _ in range(1 if args.quick else 5):
            clients = [new_client(training, frozen._PREFIX_SHARE), new_client(training, 2**62)]
            for case, found in zip(cases, rounds, strict=True):
                ours, theirs = (measure(client, case.play) for client in clients)
                found.append((ours, theirs))
        console.print(
            f"{BASE_MODEL}, {engine.device}, {args.threads} of {os.cpu_count()} cores, "
            f"{platform.machine()}, torch {torch.__version__}; {len(rounds[0])} rounds"
        )
    pairs = zip(cases, rounds, strict=True)
    missed = [line for case, found in pairs for line in compare(case, found, table)]
    console.print(table)
    for line in missed:
        console.print(f"MISSED: {line}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
