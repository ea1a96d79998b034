"""Loads base models and checkpoints for an engine.

With full-parameter training, each user gets its own copy of the model. With adapters, the base
model is shared.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from evert.trainers.engine.common.errors import ModelNotFoundError
from evert.trainers.engine.models.base_models import (
    SMALL_MODEL_PARAMETERS,
    attach_lora,
    count_parameters,
    load_model,
    load_outline,
)
from evert.trainers.engine.models.shared import SharedBases

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class EngineSettings:
    """The engine's settings; see ``embedded_engine`` for what they mean."""

    root: Path | None = None
    device: str = "auto"
    seed: int = 0
    full_parameter: bool | None = None
    dtype: torch.dtype | str | None = None
    gradient_checkpointing: bool | None = None


@dataclass(frozen=True)
class LoraOptions:
    """Rank, seed and target layers of a LoRA adapter."""

    rank: int
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True


class Loader:
    """Loads the models that one engine trains and samples from."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._dtype = read_dtype(settings.dtype)
        self.device = prepare_device(settings.device)
        self._shared = SharedBases()

    def trains_whole(self, model: Any) -> bool:
        """Return whether all of a model's weights are trained, rather than just an adapter."""
        if self.settings.full_parameter is not None:
            return self.settings.full_parameter
        return count_parameters(model) < SMALL_MODEL_PARAMETERS

    def dtype(self, *, full_parameter: bool) -> torch.dtype:
        """Return the data type of the weights: by default bfloat16 on CUDA, float32 elsewhere.

        Full-parameter training uses float32 on CUDA as well, because small updates would be
        rounded away in bfloat16.
        """
        if self._dtype is not None:
            return self._dtype
        shared_on_gpu = self.device.type == "cuda" and not full_parameter
        return torch.bfloat16 if shared_on_gpu else torch.float32

    def base(self, name: str) -> Any:
        """Load a base model: a separate copy for full-parameter training, else a shared one."""
        if self.trains_whole(load_outline(name)):
            return self.full_model(name)
        return self._share(name)

    def full_model(self, name: str) -> Any:
        """Load a model for full-parameter training."""
        return load_model(name, self.device, self.dtype(full_parameter=True))

    def trainable(self, name: str, choice: LoraOptions) -> tuple[Any, int | None]:
        """Load a model to train. Return it with its LoRA rank (None if all weights are trained)."""
        model = self.base(name)
        if self.trains_whole(model):
            return model, None
        seed = self.settings.seed if choice.seed is None else choice.seed
        return attach_lora(model, **asdict(replace(choice, seed=seed))), choice.rank

    def with_adapter(self, name: str, folder: Path) -> Any:
        """Load a base model with a saved adapter."""
        from peft import PeftModel

        # Share the base model even if the settings ask for full-parameter training, because the
        # checkpoint contains only an adapter.
        base = self._share(name)
        return PeftModel.from_pretrained(base, str(folder), is_trainable=True).eval()

    def _share(self, name: str) -> Any:
        dtype = self.dtype(full_parameter=False)
        return self._shared.tree(name, lambda: load_model(name, self.device, dtype))


def read_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Parse a dtype or its name. Return None for None and "auto", which let the engine choose."""
    if dtype is None or dtype == "auto":
        return None
    torch_dtype = DTYPES.get(str(dtype).removeprefix("torch."))
    if torch_dtype is None:
        raise ModelNotFoundError(
            f"dtype is {dtype!r}; expected one of auto, {', '.join(DTYPES)}, or None to choose "
            "one based on the device."
        )
    return torch_dtype


def device_kinds() -> list[str]:
    """List the device types that are available here. The first one is what "auto" selects."""
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [*(kind for kind, is_here in gpus.items() if is_here), "cpu"]


def prepare_device(device: str) -> torch.device:
    """Parse a device name and configure PyTorch for it. "auto" prefers CUDA, then MPS."""
    kinds = device_kinds()
    if device == "auto":
        device = kinds[0]
    kind = device.partition(":")[0]
    if kind in ("cuda", "mps") and kind not in kinds:
        raise ModelNotFoundError(
            f"Device {device!r} was requested, but PyTorch can't find a {kind.upper()} device "
            "here. Use 'cpu' or 'auto'."
        )
    if kind == "cuda":
        # cuDNN's attention would be slow: it takes 45 to 130 ms to plan for every new shape, and
        # nearly every pass over prompts or training data has a new shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ModelNotFoundError(
            f"Device {device!r} was requested, but PyTorch does not recognize it; expected 'cpu', "
            "'cuda', 'mps' or 'auto' (a GPU if available)."
        ) from error
