"""Exports trained weights for other programs, as a full model, a LoRA adapter or a GGUF file."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evert.bridge.tokens.bases import variables_of
from evert.trainers.engine.models.base_models import (
    from_pretrained,
    load_model,
    no_progress_bars,
    resolve_model,
)
from evert.trainers.engine.models.gguf_writer import write_gguf
from evert.trainers.engine.models.importing import convert

ADAPTER = "adapter_config.json"


def merged_model(base: str, folder: Path | None) -> Any:
    """Load a model in float32 from a folder that contains full weights or an adapter.

    An adapter is merged into the base model. If ``folder`` is None, load the base model itself.
    """
    is_adapter = folder is not None and (folder / ADAPTER).exists()
    source = base if is_adapter or folder is None else str(folder)
    model = load_model(source, torch.device("cpu"), torch.float32)
    if not is_adapter:
        return model
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()


def load_export(folder: Path, work: Path) -> Any:
    """Load an exported model. A GGUF file is first converted into a folder inside ``work``."""
    if (folder / ADAPTER).exists():
        config = json.loads((folder / ADAPTER).read_text())
        return merged_model(config["base_model_name_or_path"], folder)
    for file in folder.glob("*.gguf"):
        convert(file, folder := work / "again")
    return merged_model(str(folder), None)


def token_logprobs(model: Any, ids: list[int]) -> Tensor:
    """Return the log-probabilities of all tokens except the first, as float32 [T - 1]."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        logprobs = model(tokens).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(-1, tokens[0, 1:, None])[:, 0]  # type: ignore[no-any-return]


def export_tokenizer(base: str, renderer: str) -> Any:
    """Load the base model's tokenizer, with a chat template that sets the renderer's variables."""
    from transformers import AutoTokenizer

    tokenizer = from_pretrained(AutoTokenizer, base, resolve_model(base))
    if tokenizer.chat_template:
        values = variables_of(renderer).items()
        sets = "".join(f"{{% set {name} = {value!r} %}}" for name, value in values)
        tokenizer.chat_template = sets + tokenizer.chat_template
    return tokenizer


def write_adapter(base: str, folder: Path, tokenizer: Any, out: Path) -> None:
    """Copy an adapter to ``out`` in PEFT's format. ``base`` is a Hub name or a path."""
    tokenizer.save_pretrained(out)
    shutil.copy(folder / "adapter_model.safetensors", out)
    config = json.loads((folder / ADAPTER).read_text())
    (out / ADAPTER).write_text(json.dumps(config | {"base_model_name_or_path": base}, indent=2))


def write_model(
    model: Any, tokenizer: Any, out: Path, dtype: str, stops: list[int], temperature: float
) -> None:
    """Write a full model: in Hugging Face format, or as ``model.gguf`` for a GGUF ``dtype``."""
    if not hasattr(torch, dtype):
        write_gguf(model, tokenizer, out / "model.gguf", dtype, stops)
        modelfile = f"FROM ./model.gguf\nPARAMETER temperature {temperature:g}\n"
        (out / "Modelfile").write_text(modelfile)  # for Ollama
        return
    from transformers import GenerationConfig

    config: Any = GenerationConfig
    original = model.generation_config
    model.generation_config = config(
        bos_token_id=original.bos_token_id, pad_token_id=original.pad_token_id, eos_token_id=stops,
        do_sample=True, temperature=temperature, top_k=0, top_p=1.0,
    )  # fmt: skip
    tokenizer.save_pretrained(out)
    with no_progress_bars():
        model.to(getattr(torch, dtype)).save_pretrained(out)
    for saved in out.glob("*.safetensors"):  # safetensors ignores the umask and uses mode 600
        shutil.copymode(out / "config.json", saved)
