"""Benchmark the engine on a GPU: correctness, speed and memory.

    python benchmarks/gpu.py [--quick] [--out gpu.json]

Requires PyTorch with CUDA and transformers 5, but no network. Only the row for a full training run
needs the Cookbook and the Tinker SDK, and it is skipped if they are not installed. Models have the
shapes of Qwen3-0.6B and 8B, with random weights. The same run also measures transformers' own
``generate`` and a plain training loop. Results are written to a JSON file, and to a Markdown file
next to it.

Without CUDA, everything runs with small shapes on the stand-in device from
``tests/trainers/engine/standin.py``, which computes on the CPU. This checks that the benchmark
works and that the numbers are correct, but says nothing about speed.

Exits with status 1 if a row failed. A row fails if there is an error, if a number is too far from
its reference, or if the host waits for the device too often.
"""

import argparse
import copy
import importlib
import importlib.util
import itertools
import json
import math
import platform
import subprocess
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent

SDKS = ("tinker", "tinker_cookbook")
"""Packages that the engine's modules import, but that only a full run actually uses."""

MISSING = [name for name in SDKS if importlib.util.find_spec(name) is None]
"""The SDKs that are not installed. Must be computed before ``_SomeSdk`` fakes them."""


def _make_importable() -> None:
    """Make the engine importable even if evert's dependencies are not installed."""
    sys.path.append(str(ROOT))  # for the stand-in
    if MISSING or importlib.util.find_spec("evert") is None:
        evert = types.ModuleType("evert")
        evert.__path__ = [str(ROOT / "src/evert")]
        sys.modules["evert"] = evert
        sys.meta_path.append(_SomeSdk())


class _SomeSdk(MetaPathFinder, Loader):
    """Replaces missing SDKs with fake modules whose classes accept any fields."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Return a spec for a module that belongs to a missing SDK."""
        is_sdk = fullname.partition(".")[0] in MISSING
        return ModuleSpec(fullname, self, is_package=True) if is_sdk else None

    def exec_module(self, module: types.ModuleType) -> None:
        """Turn every name in the module into a class."""
        init = {"__init__": lambda self, *args, **fields: self.__dict__.update(fields)}

        @cache
        def made(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (Exception,), init)

        module.__getattr__ = made  # type: ignore[method-assign]
        if module.__name__ == "tinker":
            module.types = importlib.import_module("tinker.types")  # type: ignore[attr-defined]


_make_importable()

from evert.trainers.engine.models.base_models import (  # noqa: E402
    count_parameters,
    import_lazy_modules,
)
from evert.trainers.engine.models.loading import prepare_device  # noqa: E402
from evert.trainers.engine.models.shared import SharedBases  # noqa: E402
from evert.trainers.engine.sampling import lean_batch  # noqa: E402
from evert.trainers.engine.sampling.frozen import FrozenLean  # noqa: E402
from evert.trainers.engine.sampling.sampler import ModelSampler  # noqa: E402
from evert.trainers.engine.sampling.scheduler import Scheduler  # noqa: E402
from evert.trainers.engine.training.families import cut  # noqa: E402
from evert.trainers.engine.training.losses import LOSSES, get_loss  # noqa: E402
from evert.trainers.engine.training.pass_budget import (  # noqa: E402
    activation_bytes,
    logits_bytes,
    pass_budget,
)
from evert.trainers.engine.training.passes import Passes  # noqa: E402

SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "vocab_size": 400,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    },
    "0.6B": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "vocab_size": 151_936, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    },
    "8B": {
        "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
        "vocab_size": 151_936, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    },
}  # fmt: skip
"""Qwen3 shapes, and a small one that is fast enough for float64 on a CPU."""

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Maximum error of log-probabilities, and of gradients relative to their norm."""

RANK = 32


@dataclass(frozen=True)
class Row:
    """A row of the results table."""

    what: str
    engine: str
    beside: str = ""  # the same measurement with transformers
    share: str = ""  # fraction of the device's peak, or the allowed error
    failed: bool = False


@dataclass
class Bench:
    """A device and its results.

    Attributes:
        standin: The stand-in for the device, or None on a real GPU.
        bandwidth: Memory bandwidth (reads plus writes) in bytes per second.
        peak: Peak FLOP/s of a bfloat16 matrix product.
    """

    device: torch.device
    standin: Any
    quick: bool
    rows: list[Row] = field(default_factory=list)
    bandwidth: float = math.nan
    peak: float = math.nan

    @property
    def large(self) -> list[str]:
        """Return the names of the shapes to time."""
        return ["small"] if self.standin else ["0.6B"] if self.quick else ["0.6B", "8B"]

    def add(self, *row: Any, **options: Any) -> None:
        """Add a row and print it."""
        self.rows.append(Row(*row, **options))
        print(" | ".join(str(value) for value in row), flush=True)

    def attempt(self, measure: Callable[..., None], *args: Any) -> None:
        """Call ``measure(self, *args)``. An error is recorded as a failed row."""
        try:
            measure(self, *args)
        except Exception as error:
            traceback.print_exc()
            self.add(measure.__name__, f"{type(error).__name__}: {error}", failed=True)

    def seconds(self, call: Callable[[], Any], warm_up: Callable[[], Any] | None = None) -> float:
        """Return how long a call takes, including the work on the device.

        On a GPU, ``warm_up`` runs first. Without ``warm_up``, the call itself runs three
        times, and the faster of the last two runs counts.
        """
        if not self.standin:
            (warm_up or call)()
        times = []
        for _ in range(1 if self.standin or warm_up else 2):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - start)
        return min(times)

    def speed(self, tokens: int, seconds: float) -> str:
        """Format tokens per second ("ran" on a stand-in, "" if ``seconds`` is NaN)."""
        if math.isnan(seconds):
            return ""
        return "ran" if self.standin else f"{tokens / seconds:,.0f} tokens/s"

    def share(self, of: float, what: str) -> str:
        """Format a fraction of the device's peak ("" on a stand-in)."""
        return "" if self.standin else f"{of:.0%} of the {what}"

    def wait(self) -> None:
        """Wait for the device to finish."""
        if not self.standin:
            torch.cuda.synchronize()

    @contextmanager
    def waits(self) -> Iterator[list[Any]]:
        """Yield a list that grows by one entry each time the host waits for the device."""
        if self.standin:
            found: list[Any] = []
            before = len(self.standin.waits)
            yield found
            found += self.standin.waits[before:]
            return
        event, events = torch.cuda.Event.synchronize, list[Any]()

        def synchronize(self: Any) -> None:
            events.append(self)
            event(self)

        with ExitStack() as stack:
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            stack.enter_context(patch.object(torch.cuda.Event, "synchronize", synchronize))
            torch.cuda.set_sync_debug_mode("warn")
            found = []
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode("default")
                found += [*caught, *events]


# -- models ----------------------------------------------------------------------------------------


class Adapter(nn.Module):
    """A LoRA adapter around a linear layer, with the same attribute names as peft."""

    active_adapters = ("default",)
    scaling = {"default": 1.0}  # noqa: RUF012

    def __init__(self, layer: nn.Linear, generator: torch.Generator) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = self._factor(layer.in_features, RANK, generator)
        self.lora_B = self._factor(RANK, layer.out_features, generator)
        self.to(layer.weight.device)

    def _factor(self, inner: int, outer: int, generator: torch.Generator) -> nn.ModuleDict:
        made = nn.Linear(inner, outer, bias=False)
        drawn = torch.randn(outer, inner, generator=generator) / math.sqrt(inner * RANK)
        made.weight = nn.Parameter(drawn)
        return nn.ModuleDict({"default": made})

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer and its adapter, like peft."""
        down, up = (factor["default"].weight for factor in (self.lora_A, self.lora_B))
        added = F.linear(F.linear(x.to(down.dtype), down), up)  # type: ignore[arg-type]
        result: Tensor = self.base_layer(x) + added
        return result.to(x.dtype)


def make_base(shape: str, dtype: torch.dtype, device: torch.device, *, far: bool = False) -> Any:
    """Return a model with random weights; ``far`` makes them large, so that errors show up."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {"tie_word_embeddings": False, "max_position_embeddings": 4096}
    config = AutoConfig.for_model("qwen3", **SHAPES[shape], **options)
    torch.manual_seed(0)
    with torch.device("cpu" if shape == "small" else device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    if far:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(device).eval()


def adapted(tree: Any, seed: int) -> Any:
    """Add an adapter to each linear layer of the model, and return the model."""
    generator = torch.Generator().manual_seed(seed)
    for layer in tree.model.layers:
        for owner in (layer.self_attn, layer.mlp):
            for name, module in [*owner.named_children()]:
                if isinstance(module, nn.Linear):
                    setattr(owner, name, Adapter(module, generator))
    return tree


def sampler(model: Any, scheduler: Scheduler | None = None) -> ModelSampler:
    """Return a sampler for the model's current weights."""
    return ModelSampler(
        FrozenLean(model), None, seed=0, context_length=4096, end_tokens=frozenset(),  # type: ignore[arg-type]
        scheduler=scheduler or Scheduler(),
    )  # fmt: skip


def how(tokens: int) -> Any:
    """Return sampling parameters for ``tokens`` tokens at temperature 1."""
    fields = {"max_tokens": tokens, "temperature": 1.0, "top_k": -1, "top_p": 1.0}
    return types.SimpleNamespace(**fields, seed=None, stop=[])


def random_rows(count: int, length: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Return rows of random token ids."""
    drawn = np.random.default_rng(seed).integers(0, vocabulary, (count, length))
    return [[int(token) for token in row] for row in drawn]


# -- correctness -----------------------------------------------------------------------------------


def check_small(bench: Bench, dtype: torch.dtype) -> None:
    """Compare log-probabilities, losses and gradients with float64 on the CPU."""
    exact = make_base("small", torch.float32, torch.device("cpu"), far=True).to(dtype)
    base = copy.deepcopy(exact).to(bench.device)
    bases = SharedBases()
    trees = [adapted(bases.tree("base", lambda: base), seed) for seed in (1, 2)]
    references = [adapted(copy.deepcopy(exact), seed).double() for seed in (1, 2)]
    beginning = random_rows(1, 60, 400)[0]
    rows = [[*beginning, *row] for row in random_rows(4, 9, 400, 1)] + random_rows(3, 30, 400, 2)
    scheduler = Scheduler()
    samplers = [sampler(tree, scheduler) for tree in trees]
    scored = [[one.score(row) for row in rows] for one in samplers]
    wrong = 0.0
    for futures, reference in zip(scored, references, strict=True):
        for row, future in zip(rows, futures, strict=True):
            wrong = max(wrong, far_from(future.result()[1:], reference, row))
    _judge(bench, f"scores of 7 rows with 2 adapters, {name_of(dtype)}", wrong, dtype)
    asked = [(row, number) for row in rows for number in (0, 1)]
    drawn = [samplers[number].sample(row, 2, how(12)) for row, number in asked]
    wrong = 0.0
    for (row, number), future in zip(asked, drawn, strict=True):
        for reply in future.result():
            whole = [*row, *np.asarray(reply.tokens_np).tolist()]
            found = np.asarray(reply.logprobs_np)
            wrong = max(wrong, far_from(found, references[number], whole))
    _judge(bench, f"sampled together with 2 adapters, {name_of(dtype)}", wrong, dtype)
    scheduler.close()
    for loss in ["cross_entropy", "gspo"] if bench.quick else LOSSES:
        wrong = _gradients_apart(trees[0], references[0], rows, loss)
        _judge(bench, f"gradient of {loss}, {name_of(dtype)}", wrong, dtype)


def logprobs_by(model: Any, row: Sequence[int]) -> np.ndarray:
    """Return transformers' log-probabilities for all tokens of a row but the first."""
    tokens = torch.tensor([row], device=next(model.parameters()).device)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=tokens).logits[0, :-1].double(), -1)
    found: np.ndarray = logprobs.gather(1, tokens[0, 1:, None])[:, 0].cpu().numpy()
    return found


def far_from(found: Sequence[float] | np.ndarray, reference: Any, row: Sequence[int]) -> float:
    """Return the largest error in ``found``, the log-probabilities of the row's last tokens."""
    return float(np.abs(np.asarray(found) - logprobs_by(reference, row)[-len(found) :]).max())


def _gradients_apart(tree: Any, reference: Any, rows: list[list[int]], name: str) -> float:
    """Return the difference between two models' gradients, relative to the reference's norm."""
    noise = np.random.default_rng(5)
    inputs = [
        {
            "logprobs": noise.normal(size=len(row) - 1) - 5,
            "advantages": noise.normal(size=len(row) - 1),
            "weights": np.ones(len(row) - 1),
            "sequence_ratio_mask": np.ones(len(row) - 1),
            "sampled": np.ones(len(row) - 1),
        }
        for row in rows
    ]
    found, expected = (_gradient(one, rows, inputs, name) for one in (tree, reference))
    return float((found - expected).norm() / expected.norm())


def _gradient(model: Any, rows: list[list[int]], inputs: list[Any], name: str) -> Tensor:
    device, is_exact = next(model.parameters()).device, next(model.parameters()).dtype.itemsize == 8
    given = [np.array(row[:-1]) for row in rows]
    targets = torch.tensor([token for row in rows for token in row[1:]], device=device)
    if is_exact:
        tokens = [torch.tensor(row[None]) for row in given]
        logits = torch.cat([model(input_ids=row).logits[0] for row in tokens])
        logprobs = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    else:
        logprobs = Passes(model).logprobs(given, targets)
    data = [
        {
            key: torch.tensor(value, dtype=logprobs.dtype, device=device)
            for key, value in one.items()
        }
        for one in inputs
    ]
    loss = get_loss(name)
    total = loss.total(logprobs, data, loss.settings)
    factors = [p for n, p in model.named_parameters() if "lora_" in n]
    slopes = torch.autograd.grad(total, factors)
    return torch.cat([slope.detach().cpu().double().flatten() for slope in slopes])


def _judge(bench: Bench, what: str, wrong: float, dtype: torch.dtype) -> None:
    allowed = TOLERANCES[dtype]
    bench.add(what, f"off by {wrong:.1e}", "", f"allowed {allowed:g}", failed=not wrong <= allowed)


# -- speed -----------------------------------------------------------------------------------------


def measure_device(bench: Bench) -> None:
    """Measure the device's peak bandwidth and FLOP/s with PyTorch copies and matrix products."""
    size, width = (2**20, 256) if bench.standin else (2**31, 8192)
    source = torch.zeros(size // 4, device=bench.device)
    bench.bandwidth = 2 * size / bench.seconds(source.clone)
    left = torch.randn(width, width, device=bench.device).to(torch.bfloat16)
    bench.peak = 2 * width**3 / bench.seconds(lambda: left @ left)
    figures = f"{bench.bandwidth / 1e12:.2f} TB/s, {bench.peak / 1e12:.0f} TFLOP/s"
    bench.add("memory copies, bfloat16 products", "ran" if bench.standin else figures)


def measure_sampling(bench: Bench, shape: str, base: Any) -> None:
    """Measure sampled tokens per second and compare them with ``generate``.

    Bandwidth utilization only covers decoding: the time of a one-token reply is subtracted.
    """
    one = sampler(base)
    length, reply = (24, 6) if bench.standin else (256, 128)
    config, vocabulary = base.config, base.config.vocab_size
    key_bytes = 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    read_weights = 2 * (count_parameters(base) - base.get_input_embeddings().weight.numel())
    for count in (1, 4) if bench.standin else (1, 16, 64, 256):
        # Use new prompts each time, because the sampler caches the prompts it has seen.
        seeds = range(9 * count, 9 * count + 9)  # different for each count, so that no row repeats
        prompts = [random_rows(count, length, vocabulary, seed) for seed in seeds]

        def draw(wanted: int, prompts: list[list[list[int]]] = prompts) -> None:
            futures = [one.sample(row, 1, how(wanted)) for row in prompts.pop()]
            for future in futures:
                if np.asarray(future.result()[0].tokens_np).size != wanted:
                    raise RuntimeError(f"A reply does not have the requested {wanted} tokens.")

        def generate(rows: list[list[int]] = prompts[0]) -> None:
            tokens = torch.tensor(rows, device=bench.device)
            base.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=True, top_k=0,
                max_new_tokens=reply, min_new_tokens=reply, pad_token_id=0,
            )  # fmt: skip

        rows = prompts[0]
        took, first = bench.seconds(lambda: draw(reply)), bench.seconds(lambda: draw(1))
        plain = math.nan if bench.standin else bench.seconds(generate)
        read = read_weights + count * (length + reply / 2) * key_bytes
        bench.add(
            f"{shape}: {count} prompts of {length}, {reply} sampled",
            bench.speed(count * reply, took),
            bench.speed(count * reply, plain),
            bench.share(read * (reply - 1) / (took - first) / bench.bandwidth, "bandwidth"),
        )
        with patch.object(lean_batch, "Graphs", lambda: None):
            took = bench.seconds(lambda: draw(reply))
        bench.add("the same, without CUDA graphs", bench.speed(count * reply, took))
    waits = []
    one.sample(rows[0], 4, how(1)).result()  # cache the prompt
    for tokens in (reply, 2 * reply):
        with bench.waits() as found:
            one.sample(rows[0], 4, how(tokens)).result()
        waits.append(len(found))
    often = (waits[1] - waits[0]) / reply
    times = f"{often:.1f} times per token"
    bench.add(f"{shape}: the host waits", times, "", "at most 1", failed=often > 1)
    scored = np.array(one.score(rows[0]).result()[1:])
    one.scheduler.close()
    theirs, exact = (logprobs_by(model, rows[0]) for model in (base, copy.deepcopy(base).float()))
    far, as_far = (float(np.sqrt(np.mean((found - exact) ** 2))) for found in (scored, theirs))
    bench.add(
        f"{shape}: scores of {length} tokens, mean distance from float32",
        f"{far:.1e}", f"{as_far:.1e}", "at most 1.5 times transformers'",
        failed=not far <= 1.5 * as_far,
    )  # fmt: skip


def measure_adapters(bench: Bench, shape: str, base: Any) -> None:
    """Measure a decoding step with one adapter, and with two (without CUDA graphs)."""
    count, length, reply = (4, 24, 6) if bench.standin else (64, 256, 128)
    bases, scheduler, seeds = SharedBases(), Scheduler(), itertools.count()
    trees = [adapted(bases.tree("base", lambda: base), seed) for seed in (1, 2)]
    samplers = [sampler(tree, scheduler) for tree in trees]

    def draw(wanted: int, adapters: int) -> None:
        rows = random_rows(count, length, base.config.vocab_size, next(seeds))
        pairs = zip(rows, itertools.cycle(samplers[:adapters]))
        for future in [one.sample(row, 1, how(wanted)) for row, one in pairs]:
            future.result()

    for adapters in (1, 2):
        took = bench.seconds(partial(draw, reply, adapters))
        took -= bench.seconds(partial(draw, 1, adapters))
        figure = "ran" if bench.standin else f"{1000 * took / (reply - 1):.1f} ms"
        bench.add(f"{shape}: a step of {count} rows, adapters: {adapters}", figure)
    scheduler.close()


def measure_training(bench: Bench, shape: str, base: Any) -> None:
    """Measure a training step of an adapter on distinct rows, and compare with transformers."""
    count, length = (4, 24) if bench.standin else (64, 1024)
    tree = adapted(SharedBases().tree("base", lambda: base), 1)
    rows = [np.array(row) for row in random_rows(count, length, base.config.vocab_size)]
    factors = [p for n, p in tree.named_parameters() if "lora_" in n]
    budget = pass_budget(
        [length] * count, base.config, torch.bfloat16, bench.device, checkpointing=None
    )
    passes = Passes(tree)
    passes.set_checkpointing(budget.checkpointing)

    few = rows[: max(1, budget.tokens // length)]

    def step(logprobs_of: Callable[[Any, Tensor], Tensor], rows: list[np.ndarray]) -> None:
        for group in cut(rows, budget.tokens):
            given = [rows[i][:-1] for i in group]
            wanted = np.concatenate([rows[i][1:] for i in group])
            loss = -logprobs_of(given, torch.from_numpy(wanted).to(bench.device)).sum()
            torch.autograd.grad(loss, factors)

    def plain(given: list[np.ndarray], wanted: Tensor) -> Tensor:
        tokens = torch.from_numpy(np.stack(given)).to(bench.device)
        logits = tree(input_ids=tokens, use_cache=False).logits.flatten(0, 1)
        return -F.cross_entropy(logits.float(), wanted, reduction="none")

    weights = 0
    if not bench.standin:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(bench.device)  # ignore the peak from sampling
        weights = torch.cuda.memory_allocated(bench.device)
    took = bench.seconds(lambda: step(passes.logprobs, rows), lambda: step(passes.logprobs, few))
    slow = math.nan
    if not bench.standin:
        held = torch.cuda.max_memory_allocated(bench.device) - weights
        each = activation_bytes(base.config, torch.bfloat16, checkpointing=budget.checkpointing)
        plan = budget.tokens * each + logits_bytes(base.config, bench.device)
        figures = f"{held / 1e9:.1f} GB", "", f"planned {plan / 1e9:.1f} GB"
        bench.add(f"{shape}: memory of a pass over at most {budget.tokens:,} tokens", *figures)
        tree.gradient_checkpointing_enable({"use_reentrant": False})
        tree.train()
        slow = bench.seconds(lambda: step(plain, rows), lambda: step(plain, few))
    multiplied = count_parameters(base) - base.get_input_embeddings().weight.numel()
    work = 4 * multiplied * count * length  # recomputed layers count once
    bench.add(
        f"{shape}: a step over {count} rows of {length} tokens",
        bench.speed(count * length, took),
        bench.speed(count * length, slow),
        bench.share(work / took / bench.peak, "peak"),
    )


def measure_shape(bench: Bench, shape: str) -> None:
    """Measure sampling, adapters and training for a model of the given shape."""
    base = make_base(shape, torch.bfloat16, bench.device)
    base.requires_grad_(False)
    bench.attempt(measure_sampling, shape, base)
    bench.attempt(measure_adapters, shape, base)
    bench.attempt(measure_training, shape, base)


def run_identity(bench: Bench, folder: Path) -> None:
    """Train on the identity game with ``evert train``."""
    if bench.standin or MISSING:
        why = f"{' and '.join(MISSING)} not installed" if MISSING else "no GPU"
        bench.add("a run of the identity game", f"skipped: {why}")
        return
    command = [sys.executable, "-m", "evert.trainers.cli", "train", "env=identity", "device=cuda"]
    start = time.perf_counter()
    done = subprocess.run([*command, f"log_path={folder}/identity"], check=False)
    took = f"{time.perf_counter() - start:.0f} s"
    bench.add("a run of the identity game", took, failed=done.returncode != 0)


def name_of(dtype: torch.dtype) -> str:
    """Return the dtype's name without the "torch." prefix."""
    return str(dtype).removeprefix("torch.")


# -- the page --------------------------------------------------------------------------------------


def page(bench: Bench, machine: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [f"`python benchmarks/gpu.py`: {machine['device']}, PyTorch {machine['torch']}.", ""]
    lines += ["| what | engine | transformers | |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.engine} | {row.beside} | {row.share} |" for row in bench.rows]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a row failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only bfloat16, skip the 8B shape")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    options = parser.parse_args(arguments)
    import_lazy_modules()  # before the stand-in is active, because they look for a GPU
    with ExitStack() as stack:
        name = "no CUDA: a stand-in on the CPU, timings are meaningless"
        standin = None
        if torch.cuda.is_available():
            name = torch.cuda.get_device_name()
        else:
            from tests.trainers.engine.standin import stand_in

            torch.set_num_threads(1)  # the shapes are small
            standin = stack.enter_context(stand_in())
        machine = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
        print(machine)
        bench = Bench(prepare_device("cuda:0"), standin, options.quick)
        for dtype in [torch.bfloat16] if options.quick else TOLERANCES:
            bench.attempt(check_small, dtype)
        bench.attempt(measure_device)
        for shape in bench.large:
            bench.attempt(measure_shape, shape)
        bench.attempt(run_identity, options.out.resolve().parent)
    whole = {"machine": machine, "rows": [asdict(row) for row in bench.rows]}
    options.out.write_text(json.dumps(whole, indent=2))
    options.out.with_suffix(".md").write_text(page(bench, machine))
    failed = [row.what for row in bench.rows if row.failed]
    for what in failed:
        print(f"WRONG: {what}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
