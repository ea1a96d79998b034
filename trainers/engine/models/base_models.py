"""Loads base models and their tokenizers by name, and attaches LoRA adapters.

A name is looked up first as a bundled base model (``evert-tiny``), then as a folder in Hugging Face
format, and finally as a model on the Hugging Face Hub.
"""

import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evert.bridge.errors import InvalidModelError
from evert.bridge.tokens import pretrained
from evert.bridge.tokens.bases import BASES, base_path, base_tokenizer
from evert.trainers.engine.common.errors import ModelNotFoundError
from evert.trainers.engine.common.network import network_is_refused
from evert.trainers.engine.models.weights import (
    check_sizes,
    check_weights,
    tensor_sizes,
    weight_files,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SMALL_MODEL_PARAMETERS = 50_000_000  # in smaller models, all weights are trained by default
LORA_ALPHA = 32  # same as Tinker; the adapter's output is scaled by ``LORA_ALPHA / rank``

WITH_REPORT = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Options that make ``from_pretrained`` also return the report that ``check_weights`` needs."""

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")

_LAZY = (
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",  # also imports the code that all models share
)


def import_lazy_modules() -> None:
    """Import the modules that transformers imports lazily.

    Otherwise, if two threads first use such a module at the same time, one of them can see it
    half-imported.
    """
    for name in _LAZY:
        importlib.import_module(name)


def resolve_model(base_model: str) -> str:
    """Convert a model name to something ``from_pretrained`` accepts: a folder or a Hub name."""
    if base_model in BASES:
        return _checked_folder(base_model, base_path(base_model))
    folder = Path(base_model).expanduser()
    if folder.is_dir():
        return _checked_folder(base_model, folder)
    if not _HUB_NAME.fullmatch(base_model) or base_model.startswith("."):
        raise ModelNotFoundError(
            f"Folder {base_model!r} does not exist. Expected {' or '.join(BASES)}, a folder with a "
            "config.json and weights in Hugging Face format, or a Hub name such as "
            "'Qwen/Qwen3-0.6B'. Check the path."
        )
    return base_model


def load_model(
    base_model: str, device: torch.device, dtype: torch.dtype, *, pickled: bool = True
) -> "PreTrainedModel":
    """Load a base model for training or sampling.

    ``pickled`` sets whether weights may also be loaded from pickle files.

    Raises:
        ModelNotFoundError: The model doesn't exist, or one of its weights is missing, has the wrong
            shape, or is not finite in ``dtype``.
    """
    source = resolve_model(base_model)
    _check_files(base_model, source)
    with no_progress_bars():
        device_map = None if device.type == "cpu" else {"": device}  # load directly onto the device
        options: dict[str, Any] = {"dtype": dtype, "device_map": device_map, **WITH_REPORT}
        if not pickled:
            options["use_safetensors"] = True
        if device.type == "mps":  # see ``attention`` in ``lean_batch.py``
            options["attn_implementation"] = "eager"
        model, report = from_pretrained(_auto_class(base_model), base_model, source, **options)
    with _not_found():
        check_weights(base_model, model, report)
    return model.eval()  # type: ignore[no-any-return]


def _check_files(base_model: str, source: str) -> None:
    """Check that a folder's config matches its weight files, before allocating the weights."""
    with _not_found(), pretrained.loading(base_model, source):
        sizes = tensor_sizes(weight_files(base_model, Path(source)))
        if not sizes:
            return
        config = load_config(base_model)
        layers = getattr(config.get_text_config(), "num_hidden_layers", None)
        check_sizes(base_model, "layers", layers, len(sizes))
        if not hasattr(
            config, "quantization_config"
        ):  # quantized files pack several weights into one number
            check_sizes(
                base_model, "weights", count_parameters(load_outline(base_model)), sum(sizes)
            )


def load_outline(base_model: str) -> "PreTrainedModel":
    """Build a base model from its config on PyTorch's meta device, without loading weights."""
    config, auto_class = load_config(base_model), _auto_class(base_model)
    source, trusted = resolve_model(base_model), pretrained.code_is_trusted()
    with _not_found(), pretrained.loading(base_model, source), torch.device("meta"):
        return auto_class.from_config(config, trust_remote_code=trusted)  # type: ignore[no-any-return]


def load_config(base_model: str) -> Any:
    """Load a base model's config."""
    from transformers import AutoConfig

    return from_pretrained(AutoConfig, base_model, resolve_model(base_model))


def _auto_class(base_model: str) -> Any:
    """Return the auto class for a model, preferring the text-only one if it supports the model."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto import modeling_auto as known

    kind = load_config(base_model).model_type
    takes_images = kind in known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    is_text = kind in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForImageTextToText if takes_images and not is_text else AutoModelForCausalLM


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars, which appear even for small files."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def load_tokenizer(base_model: str) -> "PreTrainedTokenizerBase":
    """Load a base model's tokenizer."""
    if base_model in BASES:
        resolve_model(base_model)
        return base_tokenizer(base_model)  # type: ignore[no-any-return, unused-ignore]
    from transformers import AutoTokenizer

    source = resolve_model(base_model)
    return from_pretrained(AutoTokenizer, base_model, source)  # type: ignore[no-any-return]


def _checked_folder(base_model: str, folder: Path) -> str:
    if (folder / "adapter_config.json").exists():
        raise ModelNotFoundError(
            f"Model {base_model!r} points to the folder {folder}, which contains a LoRA adapter "
            "(adapter_config.json); expected a full model. Merge the adapter into its base model "
            "(peft's merge_and_unload), save the result and the tokenizer with save_pretrained, "
            "and use that folder. If the folder also contains full weights, you can instead remove "
            "adapter_config.json to use them."
        )
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"Model {base_model!r} points to the folder {folder}, which has no config.json. "
            "Expected a model in Hugging Face format (config.json, model.safetensors, "
            "tokenizer.json). Pass the folder that contains these files."
        )
    with _not_found():
        pretrained.check_folder(base_model, folder)
    return str(folder)


@contextmanager
def _not_found() -> Iterator[None]:
    try:
        yield
    except InvalidModelError as error:
        raise ModelNotFoundError(str(error)) from error


def from_pretrained(auto_class: Any, base_model: str, source: str, **options: Any) -> Any:
    """Load with one of transformers' auto classes (see ``bridge/tokens/pretrained.py``).

    ``base_model`` is the name that the user passed, and ``source`` is what ``resolve_model``
    returned for it.
    """
    load = partial(pretrained.from_pretrained, auto_class, base_model, source, **options)
    try:
        # Try the local cache first, so that cached models work offline.
        with _not_found():
            return load(local_files_only=True)
    except ModelNotFoundError:
        raise
    except (OSError, ValueError) as error:
        if network_is_refused("huggingface.co"):
            raise ModelNotFoundError(
                f"Model {base_model!r} could not be loaded. It is not in the local Hugging Face "
                "cache, and the embedded engine blocks network access. Download it first "
                f"(`hf download {source}`), pass a folder, or allow access to the Hub with "
                "allow_hosts=('huggingface.co', ...)."
            ) from error
    with _not_found():
        return load()


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, counting shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def attach_lora(
    model: "PreTrainedModel",
    rank: int,
    *,
    seed: int,
    train_mlp: bool = True,
    train_attn: bool = True,
    train_unembed: bool = True,
) -> Any:
    """Wrap a model in a new peft LoRA adapter, leaving only the adapter trainable.

    The output layer is not adapted if it is tied to the input embedding. The adapter's A matrices
    are initialized randomly from ``seed``, and its B matrices with zeros.
    """
    from peft import LoraConfig, get_peft_model

    targets = list(_lora_targets(model, train_mlp, train_attn, train_unembed))
    if not targets:
        raise ModelNotFoundError(
            f"{type(model).__name__} has no linear layers to adapt with train_mlp={train_mlp}, "
            f"train_attn={train_attn}, train_unembed={train_unembed}. Train all parameters "
            "(full_parameter=True), or enable other layer types. "
            "(Models like GPT-2 use Conv1D layers, which are not supported here.)"
        )
    config = LoraConfig(
        r=rank, lora_alpha=LORA_ALPHA, target_modules=targets, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config).eval()


def _lora_targets(
    model: "PreTrainedModel", train_mlp: bool, train_attn: bool, train_unembed: bool
) -> Iterable[str]:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    tied = head is not None and head.weight is model.get_input_embeddings().weight
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        if module is head:
            is_target = train_unembed and not tied
        else:
            is_target = train_mlp if re.search(r"mlp|ffn|feed_forward|fc", name) else train_attn
        if is_target:
            yield name


def base_of(model: Any) -> "PreTrainedModel":
    """Return the underlying Hugging Face model, unwrapped from its adapter if it has one."""
    return model.get_base_model() if hasattr(model, "peft_config") else model  # type: ignore[no-any-return]


def context_length(model: Any) -> int:
    """Return the maximum number of tokens in a prompt plus its reply."""
    return _configured_context(base_of(model).config)


def base_context_length(base_model: str) -> int:
    """Return a base model's context length, without loading the model."""
    return _configured_context(load_config(base_model))


def _configured_context(config: Any) -> int:
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or 2**20)


def attention_sizes(config: Any) -> tuple[int, int, int]:
    """Return the number of query heads, the number of key-value heads, and the head size."""
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    return heads, key_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def end_tokens(model: Any, tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Return the tokens that end a reply when a request doesn't set stop tokens."""
    configured = getattr(base_of(model).generation_config, "eos_token_id", None)
    tokens = configured if isinstance(configured, list) else [configured]
    return frozenset(t for t in [*tokens, tokenizer.eos_token_id] if isinstance(t, int))
