"""Shared prefixes of prompts are computed once: computed tokens and time, with sharing and without.

    python benchmarks/prefixes.py [--quick] [--device cpu|cuda] [--threads N]
    python benchmarks/prefixes.py --parts     what each of the three parts of sharing contributes

Each case runs on two samplers of the same weights. One of them caches nothing and shares only equal
prompts. "distinct" are the tokens that must be computed at least once: the nodes of the trie of all
prompts. Times are medians over rounds; each ratio is taken within one round. Exits with 1 if more
than 1.1 times the distinct tokens are computed, if the two samplers' greedy replies differ, or if
many prompts with one long prefix are not answered 8 times faster.

``--parts`` plays the same cases once with all parts and once without each: the cache between calls,
common prefixes that one call computes first, and the stem that a batch stores once.
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
    """The result of a case on one sampler."""

    computed: int
    """Prompt tokens that went through the model."""
    seconds: float
    result: Any
    """Tokens or log-probabilities, to compare."""


@dataclass(frozen=True)
class Case:
    """A case for both samplers."""

    name: str
    play: Callable[[Any], Any]
    distinct: int
    """Tokens that must be computed once."""
    faster: float | None = None
    """How many times as fast it must be with sharing; None: no bar."""


def measure(client: Any, play: Callable[[Any], Any]) -> Run:
    """Run a case on one sampler."""
    stats = client.sampler.stats
    before, start = stats.prompt_tokens, time.perf_counter()
    result = play(client)
    return Run(stats.prompt_tokens - before, time.perf_counter() - start, result)


def sample(client: Any, prompts: Sequence[Prompt], samples: int) -> list[list[int]]:
    """Return greedy replies of four tokens; all requests are made at once."""
    params = types.SamplingParams(max_tokens=4, temperature=0.0, stop=[])
    futures = [
        client.sample(types.ModelInput.from_ints(prompt), samples, params) for prompt in prompts
    ]
    return [sequence.tokens for future in futures for sequence in future.result().sequences]


def score(client: Any, prompts: Sequence[Prompt], last: int | None) -> list[list[float]]:
    """Return rounded log-probabilities of prompt tokens; the first token has none."""
    futures = [
        client.compute_logprobs(types.ModelInput.from_ints(prompt), prompt_logprobs_last_n=last)
        for prompt in prompts
    ]
    found = [future.result() for future in futures]
    return [[round(value, 2) for value in row if value is not None] for row in found]


def converse(client: Any, openings: Sequence[Prompt], tail: Prompt) -> list[list[int]]:
    """Make ten turns of several conversations at once; return the conversations."""
    conversations = [list(opening) for opening in openings]
    for _ in range(TURNS):
        for conversation, reply in zip(
            conversations, sample(client, conversations, 1), strict=True
        ):
            conversation += [*reply, *tail]
    return conversations


def distinct(prompts: Sequence[Prompt]) -> int:
    """Return the number of tokens in the trie of some prompts."""
    return len({tuple(prompt[: i + 1]) for prompt in prompts for i in range(len(prompt))})


def make_prompts(tokenizer: Any) -> list[Prompt]:
    """Return 64 different prompts of 40 tokens after a shared prefix of 1,145."""
    rules = "<|im_start|>system\n" + "rule 17: be brief and exact. " * 60 + "<|im_end|>\n"
    start, prompts = tokenizer.encode(rules), []
    for number in range(1000, 1000 + PROMPTS):
        # The digits that differ come first, so that little more than the prefix is shared.
        ask, tail = f"{str(number)[::-1]} is me. Repeat: I am {number}.", list[int]()
        while len(tail) < 40:
            text = f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n"
            tail, ask = tokenizer.encode(text), f"{ask}."
        prompts.append(start + tail)
    return prompts


def make_cases(tokenizer: Any) -> list[Case]:
    """Return the cases, in order: each uses the cache that earlier cases have filled."""
    prompts = make_prompts(tokenizer)
    tail = prompts[0][-40:]
    openings = [prompt[-40:] for prompt in prompts[:16]]
    # A later turn adds a reply and a tail; of the reply, only the last token is not computed yet.
    talk = distinct(openings) + 16 * (TURNS - 1) * (1 + len(tail))
    return [
        Case(
            f"{PROMPTS} prompts with one prefix, {SAMPLES} samples each",
            lambda client: sample(client, prompts, SAMPLES),
            distinct(prompts),
            LEAST_FASTER,
        ),
        # The last token of each prompt is computed again, since its logits are not kept.
        Case("the same again", lambda client: sample(client, prompts, SAMPLES), PROMPTS),
        Case(f"16 conversations of {TURNS} turns", lambda c: converse(c, openings, tail), talk),
        Case("scored whole", lambda client: score(client, prompts, None), distinct(prompts)),
        Case("scored, the last 5 of each", lambda client: score(client, prompts, 5), 5 * PROMPTS),
    ]


def compare(case: Case, rounds: Sequence[tuple[Run, Run]], table: Table) -> list[str]:
    """Add a row to the table; return the missed bars."""
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
        missed.append(f"{case.name}: {faster:.1f} times faster, expected {case.faster}")
    return missed


def new_client(training: Any, share: int) -> Any:
    """Return a sampler with a new prefix cache: one part in ``share`` of the cache's tokens."""
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
    """Switch a part of sharing off; yield the ``share`` for ``new_client``."""
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
    """Measure each case with all parts, and without each of them."""
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
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round: under a minute")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (the default)")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's CPU threads (default 1)")
    parser.add_argument("--parts", action="store_true", help="what each part of sharing is worth")
    args = parser.parse_args()
    console = Console(width=120)
    table = Table(
        "", "distinct", "computed", "without", "s", "s without", "x",
        title="Tokens computed, and seconds, with sharing and without",
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
