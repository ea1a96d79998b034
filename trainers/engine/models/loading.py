"""Loads models for one engine: base models and checkpoints.

A model whose weights are all trained is loaded for each user; a base for adapters is shared.
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
    """Settings of an engine; ``embedded_engine`` documents the fields."""

    root: Path | None = None
    device: str = "auto"
    seed: int = 0
    full_parameter: bool | None = None
    dtype: torch.dtype | str | None = None
    gradient_checkpointing: bool | None = None


@dataclass(frozen=True)
class LoraOptions:
    """Size and seed of an adapter, and the layers that it adapts."""

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
        """Return whether all of a model's weights are trained, not an adapter."""
        if self.settings.full_parameter is not None:
            return self.settings.full_parameter
        return count_parameters(model) < SMALL_MODEL_PARAMETERS

    def dtype(self, *, full_parameter: bool) -> torch.dtype:
        """Return the type of the weights; by default bfloat16 on CUDA and float32 elsewhere.

        A model whose weights are all trained is float32 on CUDA too: bfloat16 loses small steps.
        """
        if self._dtype is not None:
            return self._dtype
        shared_on_gpu = self.device.type == "cuda" and not full_parameter
        return torch.bfloat16 if shared_on_gpu else torch.float32

    def base(self, name: str) -> Any:
        """Load a base model: its own copy if all weights are trained, else with shared weights."""
        if self.trains_whole(load_outline(name)):
            return self.full_model(name)
        return self._share(name)

    def full_model(self, name: str) -> Any:
        """Load a model whose weights may all be trained."""
        return load_model(name, self.device, self.dtype(full_parameter=True))

    def trainable(self, name: str, choice: LoraOptions) -> tuple[Any, int | None]:
        """Load a base model to train, and its adapter's rank: None if all weights are trained."""
        model = self.base(name)
        if self.trains_whole(model):
            return model, None
        seed = self.settings.seed if choice.seed is None else choice.seed
        return attach_lora(model, **asdict(replace(choice, seed=seed))), choice.rank

    def with_adapter(self, name: str, folder: Path) -> Any:
        """Load a base model with a saved adapter."""
        from peft import PeftModel

        # The checkpoint has only an adapter, even if all weights would be trained now.
        base = self._share(name)
        return PeftModel.from_pretrained(base, str(folder), is_trainable=True).eval()

    def _share(self, name: str) -> Any:
        dtype = self.dtype(full_parameter=False)
        return self._shared.tree(name, lambda: load_model(name, self.device, dtype))


def read_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Read a dtype or its name; None for None and "auto", which let the engine choose."""
    if dtype is None or dtype == "auto":
        return None
    torch_dtype = DTYPES.get(str(dtype).removeprefix("torch."))
    if torch_dtype is None:
        raise ModelNotFoundError(
            f"dtype is {dtype!r}; expected auto, {', '.join(DTYPES)}, or None to fit the device."
        )
    return torch_dtype


def device_kinds() -> list[str]:
    """List the kinds of devices that PyTorch finds here; "auto" means the first."""
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [*(kind for kind, is_here in gpus.items() if is_here), "cpu"]


def prepare_device(device: str) -> torch.device:
    """Read a device's name, and set PyTorch up for it; "auto" is CUDA, else MPS, else the CPU."""
    kinds = device_kinds()
    if device == "auto":
        device = kinds[0]
    kind = device.partition(":")[0]
    if kind in ("cuda", "mps") and kind not in kinds:
        raise ModelNotFoundError(
            f"Device {device!r} was requested, but PyTorch finds no {kind.upper()} here. Use 'cpu' "
            "or 'auto'."
        )
    if kind == "cuda":
        # cuDNN plans each new shape, in 45 to 130 ms, and passes over prompts or data have new
        # shapes each time.
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ModelNotFoundError(
            f"Device {device!r} was requested, but PyTorch does not know it; expected 'cpu', "
            "'cuda', 'mps' or 'auto' (a GPU if there is one)."
        ) from error
