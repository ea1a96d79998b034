"""``evert engine plan model=NAME``: estimate what it takes to train a model.

For local models, estimates the memory from the model's config, without loading the weights. For
models on the hosted service, estimates the cost in dollars.
"""

from typing import TYPE_CHECKING

import chz

from evert.bridge.tokens.bases import BASE_MODEL
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.config.command import Command
from evert.trainers.config.fields import Dtype, device, setting, size, trust
from evert.trainers.config.model_names import OR_RUN, check_weights, find_model
from evert.trainers.config.prices import DATE, PRICES, SOURCE, Cost, run_cost

if TYPE_CHECKING:
    from evert.trainers.engine.planning import MemoryPlan

USAGE = """\
Usage: evert engine plan model=NAME [key=value ...]

  evert engine plan model=evert-tiny
  evert engine plan model=path/to/Qwen3-4B dtype=bfloat16 lora_rank=16
  evert engine plan model=path/to/Qwen3-4B full_parameter=True device=cuda
  evert engine plan model=Qwen/Qwen3-8B steps=20 batch_size=32 group_size=8 tokens=1000 turns=3

The last example estimates the cost of a run on the hosted Tinker service, which offers that model.

Settings and their values:
"""


@chz.chz
class PlanSettings:
    """The model to plan for, and how it would be trained."""

    model: str = setting(BASE_MODEL, "base model, Hugging Face folder, cached Hub model, or run")
    trust_remote_code: bool = trust()
    device: str = device("cpu, cuda, mps or auto")
    dtype: Dtype = setting("auto", "weight dtype; auto uses bfloat16 for adapters on CUDA")
    full_parameter: bool | None = setting(
        None, "train all weights instead of an adapter (default: for models below 50M parameters)"
    )
    lora_rank: int = size(32, "LoRA rank, if an adapter is trained")
    samplers: int = size(2, "how many versions of the weights to keep in memory for sampling", 0)
    tokens: int = size(
        2048, "tokens per row (a prompt and its reply), or per episode on the service"
    )
    gradient_checkpointing: bool | None = setting(
        None, "recompute layers in the backward pass (default: only if memory is short)"
    )
    steps: int = size(20, "training steps (service only)")
    batch_size: int = size(32, "groups (tasks) per step (service only)")
    group_size: int = size(8, "episodes per group (service only)")
    turns: int = size(1, "model calls per episode (service only)")


def _run(settings: PlanSettings) -> int:
    if settings.model in PRICES:
        print(hosted_plan(settings))
        return 0
    plan = make_plan(settings)
    print(as_text(plan, settings.tokens))
    return 0 if plan.fits else 1


COMMAND = Command(PlanSettings, USAGE, _run, "model", "engine plan")
main = COMMAND.main


def make_plan(settings: PlanSettings) -> "MemoryPlan":
    """Estimate how much memory it takes to train the model."""
    model = find_model(settings.model, is_local=True)
    weights = check_weights(model, f"model={settings.model}", "planned", OR_RUN)

    from evert.trainers.engine.common.network import no_network
    from evert.trainers.engine.models.base_models import no_progress_bars
    from evert.trainers.engine.models.loading import EngineSettings
    from evert.trainers.engine.planning import plan

    engine = EngineSettings(
        device=settings.device,
        full_parameter=settings.full_parameter,
        dtype=settings.dtype,
        gradient_checkpointing=settings.gradient_checkpointing,
    )
    with trusting_code(settings.trust_remote_code), no_network(), no_progress_bars():
        return plan(
            weights.model or "", engine, rank=settings.lora_rank, samplers=settings.samplers
        )


def as_text(plan: "MemoryPlan", tokens: int) -> str:
    """Format the plan for rows of ``tokens`` tokens, with advice if there is too little memory."""
    trains = "all weights" if plan.rank is None else f"an adapter of rank {plan.rank}"
    suffix = ", layers recomputed in the backward pass" if plan.checkpointing else ""
    rows = [
        ("base weights", in_bytes(plan.base), str(plan.dtype).removeprefix("torch.")),
        ("adapter", in_bytes(plan.adapter), "float32") if plan.rank else None,
        ("gradients and Adam", in_bytes(plan.optimizer), ""),
        ("sampling weights", in_bytes(plan.samplers), "adapters" if plan.rank else "copies"),
        ("training pass", in_bytes(plan.training_pass), f"{plan.pass_tokens:,} tokens{suffix}"),
        ("KV cache", in_bytes(plan.cache), f"at most {plan.cache_tokens:,} tokens"),
        ("concurrent rows", f"{plan.rows(tokens):,}", f"of {tokens:,} tokens each"),
    ]
    lines = [
        f"{plan.model}: {plan.parameters:,} parameters; trains {trains} on {plan.device}",
        *(f"  {row[0]:<20}{row[1]:>10}  {row[2]}".rstrip() for row in rows if row is not None),
        f"always in use: {in_bytes(plan.held)}; free now: {in_bytes(plan.free)}",
        f"maximum length of a datum: about {plan.longest:,} tokens",
    ]
    return "\n".join([*lines, *([] if plan.fits else [_advice(plan)])])


def hosted_plan(settings: PlanSettings) -> str:
    """Format the cost estimate for a run on the service; the model must be in ``PRICES``."""
    episodes = settings.steps * settings.batch_size * settings.group_size
    tokens, turns = settings.tokens, settings.turns
    cost = run_cost(PRICES[settings.model], episodes, tokens, turns)
    step = Cost(cost.minimum / settings.steps, cost.maximum / settings.steps)
    shape = f"{settings.steps} steps of {settings.batch_size} tasks, {settings.group_size} each"
    rows = [
        ("episodes", f"{episodes:,}", shape),
        ("tokens", f"{episodes * tokens:,}", f"{tokens:,} per episode, in {turns} model calls"),
        ("one step", str(step), "depends on the number of reply tokens"),
        ("total", str(cost), ""),
    ]
    lines = [
        f"{settings.model} on the hosted service, at prices from {DATE}",
        *(f"  {name:<10}{value:>24}  {note}".rstrip() for name, value, note in rows),
        "Not included: evaluation, warm-up, KL penalty, and checkpoint storage ($0.10 per "
        "GB-month).",
        f"For current prices, see {SOURCE}",
    ]
    return "\n".join(lines)


def _advice(plan: "MemoryPlan") -> str:
    need = in_bytes(plan.held + plan.training_pass)
    ways = [
        "an adapter (full_parameter=False)" if plan.rank is None else "",
        "dtype=bfloat16" if plan.dtype.itemsize > 2 else "",
        "gradient_checkpointing=True" if not plan.checkpointing else "",
        "a smaller model, or a machine with more memory",
    ]
    return f"Not enough memory: training needs {need}. Try {', '.join(filter(None, ways))}."


def in_bytes(count: int) -> str:
    """Format a byte count, like ``3.4 MB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
