"""Choose a run's engine: the embedded engine, or a Tinker service.

    no TINKER_API_KEY and no base_url               embedded
    API key, and a model name                       service
    API key, and a bundled base model or a folder   embedded, because no service has the model

``engine=`` overrides this. No connection is made before an engine has been chosen, because the
embedded engine must not use the network.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from evert.bridge.models.older_servers import complete_client
from evert.bridge.tokens.bases import BASES
from evert.bridge.tokens.pretrained import register_folder
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.train import TrainSettings

if TYPE_CHECKING:
    from evert.bridge.models.frozen import FrozenModel

KEY = "TINKER_API_KEY"
URL = "TINKER_BASE_URL"

TINY = 2**25
"""Models with at most this many bytes of weights run fastest on one thread."""


@dataclass(frozen=True)
class EngineChoice:
    """The chosen engine, and the reason for the choice."""

    kind: Literal["embedded", "service"]
    reason: str

    @property
    def embedded(self) -> bool:
        """Whether the engine runs in this process."""
        return self.kind == "embedded"


def choose_engine(settings: TrainSettings) -> EngineChoice:
    """Choose the engine from the settings and the environment variables."""
    local = settings.model_name in BASES or Path(settings.model_name).expanduser().is_dir()
    if settings.engine == "embedded":
        return EngineChoice("embedded", "engine=embedded")
    if settings.engine == "auto":
        if not os.environ.get(KEY) and not settings.base_url:
            return EngineChoice("embedded", f"{KEY} is not set")
        if local:
            name, reason = Path(settings.model_name).name, f"{KEY} is set"
            if settings.base_url:
                reason = f"base_url={settings.base_url} is set"
            return EngineChoice("embedded", f"{reason}, but {name} is not on any service")
    if not os.environ.get(KEY):
        raise RecipeError(
            f"The settings ask for a Tinker service (engine=service or base_url), but {KEY} is not "
            "set. Set it to your API key (for your own service, to any key it accepts), or pass "
            "engine=embedded to train on this machine."
        )
    if settings.model_name in BASES and not settings.base_url:
        raise RecipeError(
            f"engine=service does not work with model_name={settings.model_name}, which ships with "
            "evert and is not available on any service. Pass a model that the service can train, "
            "for example model_name=Qwen/Qwen3-8B."
        )
    return EngineChoice("service", f"{KEY} is set")


def check_engine(settings: TrainSettings, choice: EngineChoice) -> None:
    """Check that the device and the model are available to an embedded engine."""
    if not choice.embedded:
        return
    import torch

    from evert.trainers.engine.models.base_models import resolve_model

    kind, _, number = settings.device.partition(":")
    gpus = {"cuda": torch.cuda, "mps": torch.mps}
    if kind in gpus and int(number or 0) >= (count := gpus[kind].device_count()):
        raise RecipeError(
            f"device={settings.device} is not available: PyTorch found {count} devices of this "
            "type. Pass device=cpu or device=auto."
        )
    resolve_model(settings.model_name)


def threads_of(threads: int | None, model_name: str) -> int | None:
    """Return the number of PyTorch threads per pass. None leaves the choice to PyTorch.

    The default for tiny models is 1. Their operations are too small to split across threads, and
    a single thread always adds numbers in the same order, which makes runs reproducible. Instead,
    whole passes run in parallel (``parallel.py``).
    """
    return 1 if threads is None and (model_name in BASES or _is_tiny(model_name)) else threads


def _is_tiny(model_name: str) -> bool:
    """Return whether ``model_name`` is the folder of a model that is no larger than ``TINY``."""
    sizes = [file.stat().st_size for file in Path(model_name).expanduser().glob("*.safetensors")]
    return 0 < sum(sizes) <= TINY


@contextmanager
def running_engine(
    choice: EngineChoice,
    settings: TrainSettings,
    checkpoints: Path,
    models: "Mapping[str, FrozenModel]",
) -> Iterator[dict[str, Any]]:
    """Run the engine inside the block, and yield its description.

    The embedded engine may connect to the frozen models' hosts.
    """
    register_folder(settings.model_name)  # the user's own service may offer this model as well
    if choice.kind == "service":
        complete_client(settings.base_url)
        url = settings.base_url or os.environ.get(URL)
        yield {
            "engine": "service", "reason": choice.reason, "base_url": url,
            "model": settings.model_name, "trains": f"LoRA of rank {settings.lora_rank}",
        }  # fmt: skip
        return
    from evert.trainers.config.frozen_models import hosts_of
    from evert.trainers.engine.embedded import embedded_engine

    hosts = (*wandb_hosts(settings), *hosts_of(models))
    with embedded_engine(
        checkpoints,
        device=settings.device,
        seed=settings.seed,
        full_parameter=settings.full_parameter,
        dtype=settings.dtype,
        threads=threads_of(settings.threads, settings.model_name),
        allow_hosts=(*settings.allow_hosts, *hosts),
    ) as engine:
        engine.requested_models.add(settings.model_name)
        yield {"engine": "embedded", "reason": choice.reason, **_model_facts(settings, engine)}


def context_of(settings: TrainSettings) -> int | None:
    """Return the context length from the settings or the engine; None if it is unknown."""
    import tinker

    from evert.bridge.models.tinker_model import context_length_of

    if settings.context_length is not None:
        return settings.context_length
    return context_length_of(tinker.ServiceClient(base_url=settings.base_url), settings.model_name)


def _model_facts(settings: TrainSettings, engine: Any) -> dict[str, Any]:
    import torch

    from evert.trainers.engine.models.base_models import count_parameters, load_outline

    name = settings.model_name
    model = load_outline(name)
    trains_all = engine.models.trains_whole(model)
    return {
        "device": str(engine.device),
        "threads": torch.get_num_threads(),
        "model": name,
        "parameters": count_parameters(model),
        "trains": "all parameters" if trains_all else f"LoRA of rank {settings.lora_rank}",
    }


def say(facts: dict[str, Any]) -> str:
    """Format an engine's description as one line."""
    if facts["engine"] == "service":
        where = facts["base_url"] or "the hosted Tinker service"
        return f"engine: {where} ({facts['reason']}); {facts['model']}, {facts['trains']}"
    device = facts["device"]
    if device == "cpu":
        device = f"cpu, {facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    millions = facts["parameters"] / 1e6
    return (
        f"engine: embedded on {device} ({facts['reason']}); {facts['model']}, "
        f"{millions:.2f} M parameters, training {facts['trains']}"
    )


def wandb_hosts(settings: TrainSettings) -> tuple[str, ...]:
    """Return the hosts that W&B needs to connect to; () if W&B is offline or unused."""
    if not settings.wandb_project:
        return ()
    import wandb

    # This reads the environment and W&B's config files. From now on, W&B writes to the run's log.
    wandb_settings = wandb.setup(wandb.Settings(silent=True)).settings
    host = urlsplit(wandb_settings.base_url).hostname
    return (host,) if host and wandb_settings.mode in ("online", "run", "shared") else ()
