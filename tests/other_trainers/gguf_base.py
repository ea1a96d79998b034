"""Writes a bundled base model as float32 GGUF: a Qwen3 model with llama.cpp's tensor names."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
PARTS = {
    **{f"self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"},
    **{f"self_attn.{letter}_norm": f"attn_{letter}_norm" for letter in "qk"},
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


FIELDS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads", "head_count_kv": "num_key_value_heads",
    "layer_norm_rms_eps": "rms_norm_eps", "key_length": "head_dim", "value_length": "head_dim",
}  # fmt: skip


def write_gguf(base: Path, out: Path) -> None:
    """Write the base model in a folder to a single file."""
    config = json.loads((base / "config.json").read_text())
    writer = gguf.GGUFWriter(str(out), "qwen3")
    writer.add_name(base.name)
    writer.add_license("mit")
    for field, name in FIELDS.items():
        getattr(writer, f"add_{field}")(config[name])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_file_type(0)
    _add_tokenizer(writer, config, json.loads((base / "tokenizer.json").read_text()))
    for name, weight in load_file(base / "model.safetensors").items():
        writer.add_tensor(_renamed(name), weight.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    words = {index: word for word, index in tokenizer["model"]["vocab"].items()}
    special = {added["id"]: added["content"] for added in tokenizer["added_tokens"]}
    ids = range(config["vocab_size"])
    kind = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([special.get(i) or words.get(i) or f"[PAD{i}]" for i in ids])
    writer.add_token_types(
        [kind.CONTROL if i in special else kind.NORMAL if i in words else kind.UNUSED for i in ids]
    )
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)


def _renamed(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{PARTS[part.removesuffix('.weight')]}.weight"
