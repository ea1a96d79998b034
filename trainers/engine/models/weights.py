"""Checks that a model's files contain all of its weights, and that all weights are finite.

transformers initialises missing weights randomly and only logs their names. Before loading, we
compare the file headers with the config, so that we don't allocate memory for weights that are not
in the files. After loading, we check every weight.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evert.bridge.errors import InvalidModelError
from evert.bridge.tokens.pretrained import read_json

_SHOWN = 4  # maximum number of names in a message
_SMALL = {"layers": 2**8, "weights": 2**24}  # small enough to allocate within a second


def weight_files(name: str, folder: Path) -> list[Path]:
    """List the safetensors files that contain a folder's weights.

    The list is empty if the folder contains none, or if ``folder`` is a Hub name instead.

    Raises:
        InvalidModelError: The index refers to a file that is not in the folder.
    """
    single_file, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single_file.is_file() or not index.is_file():
        return [single_file] if single_file.is_file() else []
    shards = read_json(index).get("weight_map")
    names = {str(shard) for shard in shards.values()} if isinstance(shards, dict) else {"None"}
    absent = [shard for shard in sorted(names) if not _is_inside(folder, shard)]
    if absent:
        raise InvalidModelError(
            f"Model {name!r}: {index.name} refers to {listed(absent)}, missing from {folder}; "
            "expected all weight files in the folder. Download the whole folder again."
        )
    return [folder / shard for shard in sorted(names)]


def tensor_sizes(files: Sequence[Path]) -> list[int]:
    """Read each tensor's number of weights from the headers of safetensors files."""
    from safetensors import safe_open

    sizes: list[int] = []
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            sizes += [prod(tensors.get_slice(key).get_shape()) for key in tensors.keys()]  # noqa: SIM118
    return sizes


def check_sizes(name: str, what: str, needed: object, available: int) -> None:
    """Raise an error if the config requires far more of ``what`` than the files contain.

    If only a few are missing, the model can be loaded, and ``check_weights`` then lists them.
    """
    if isinstance(needed, int) and needed > 2 * available + _SMALL[what]:
        raise InvalidModelError(
            f"Model {name!r}: its config requires {needed:,} {what}, but its files contain "
            f"{available:,}. Download the whole model again."
        )


def check_weights(name: str, model: nn.Module, report: Mapping[str, Any]) -> None:
    """Raise an error if a loaded model has missing, misshapen or non-finite weights.

    ``report`` is the second result of ``from_pretrained(output_loading_info=True)``. A weight
    counts as present if it is tied to a weight that is present.
    """
    misshapen = [
        f"{key} ({list(shape)} in the file, {list(expected)} in the model)"
        for key, shape, expected in report["mismatched_keys"]
    ]
    weights = model.state_dict().items()
    for problem, names in (
        ("is missing", report["missing_keys"]),
        ("has weights with the wrong shape:", misshapen),
        ("has NaN or infinity in", [key for key, weight in weights if not _is_finite(weight)]),
    ):
        if names:
            raise InvalidModelError(
                f"Model {name!r} {problem} {listed(sorted(names))}. Expected all weights of "
                f"{type(model).__name__} with finite values. Download the whole model again."
            )


def listed(names: Sequence[str]) -> str:
    """Format the first few names, followed by the number of other names."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _is_inside(folder: Path, shard: str) -> bool:
    path = Path(shard)
    return not path.is_absolute() and ".." not in path.parts and (folder / path).is_file()


def _is_finite(weight: torch.Tensor) -> bool:
    if not weight.is_floating_point() or not weight.numel():
        return True
    if weight.element_size() == 1:
        weight = weight.to(torch.bfloat16)
    low, high = torch.aminmax(weight)  # takes one pass; returns NaN if any weight is NaN
    return bool(torch.isfinite(low) & torch.isfinite(high))
