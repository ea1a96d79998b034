"""Checks that a model's files hold all of its weights, and that each weight is a finite number.

transformers initialises a missing weight at random and only logs its name. Before loading, file
headers are compared with the configuration, so that no memory is allocated for weights that no
file holds. After loading, each weight is checked.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evert.bridge.errors import InvalidModelError
from evert.bridge.tokens.pretrained import read_json

_SHOWN = 4  # names in a message
_SMALL = {"layers": 2**8, "weights": 2**24}  # allocated in a second, even if no file has them


def weight_files(name: str, folder: Path) -> list[Path]:
    """List the safetensors files of a folder's weights; empty if there are none or for a Hub name.

    Raises:
        InvalidModelError: The index names a file that is not in the folder.
    """
    single_file, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single_file.is_file() or not index.is_file():
        return [single_file] if single_file.is_file() else []
    shards = read_json(index).get("weight_map")
    names = {str(shard) for shard in shards.values()} if isinstance(shards, dict) else {"None"}
    absent = [shard for shard in sorted(names) if not _is_inside(folder, shard)]
    if absent:
        raise InvalidModelError(
            f"Model {name!r}: {index.name} names {listed(absent)}, missing from {folder}; expected "
            "each file of weights in the folder. Get the whole folder again."
        )
    return [folder / shard for shard in sorted(names)]


def tensor_sizes(files: Sequence[Path]) -> list[int]:
    """Read the number of weights in each tensor from the headers of safetensors files."""
    from safetensors import safe_open

    sizes: list[int] = []
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            sizes += [prod(tensors.get_slice(key).get_shape()) for key in tensors.keys()]  # noqa: SIM118
    return sizes


def check_sizes(name: str, what: str, needed: object, available: int) -> None:
    """Refuse a configuration that needs far more of ``what`` than the files hold.

    If only a few are missing, loading is harmless, and ``check_weights`` names them.
    """
    if isinstance(needed, int) and needed > 2 * available + _SMALL[what]:
        raise InvalidModelError(
            f"Model {name!r}: its configuration needs {needed:,} {what}, but its files hold "
            f"{available:,}. Get the whole model again."
        )


def check_weights(name: str, model: nn.Module, report: Mapping[str, Any]) -> None:
    """Refuse a model that was loaded with missing, misshapen or non-finite weights.

    ``report`` is the second result of ``from_pretrained(output_loading_info=True)``. A weight
    that is tied to a present one counts as present.
    """
    misshapen = [
        f"{key} ({list(shape)} in the file, {list(expected)} in the model)"
        for key, shape, expected in report["mismatched_keys"]
    ]
    weights = model.state_dict().items()
    for problem, names in (
        ("lacks", report["missing_keys"]),
        ("has weights of another shape:", misshapen),
        ("has NaN or infinity in", [key for key, weight in weights if not _is_finite(weight)]),
    ):
        if names:
            raise InvalidModelError(
                f"Model {name!r} {problem} {listed(sorted(names))}. Expected every weight of "
                f"{type(model).__name__}, finite. Get the whole model again."
            )


def listed(names: Sequence[str]) -> str:
    """List the first names, and say how many more there are."""
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
    low, high = torch.aminmax(weight)  # one pass; NaN if any weight is
    return bool(torch.isfinite(low) & torch.isfinite(high))
