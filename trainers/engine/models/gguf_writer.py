"""Exports a model as a GGUF file for llama.cpp, Ollama and LM Studio."""

from pathlib import Path
from typing import Any

from evert.bridge.errors import InvalidModelError
from evert.trainers.engine.models.base_models import attention_sizes
from evert.trainers.engine.models.gguf_tokenizer import REMEDY, add_tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3")

_FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
_FIELDS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
    "layer_norm_rms_eps": "rms_norm_eps", "vocab_size": "vocab_size",
}  # fmt: skip


def write_gguf(model: Any, tokenizer: Any, out: Path, dtype: str, stops: list[int]) -> None:
    """Write a model and its tokenizer. ``dtype`` is f32, f16, bf16 or q8_0.

    Vectors stay in float32, and so do matrices whose rows can't be divided into whole q8_0 blocks.

    Raises:
        InvalidModelError: The architecture is not in ``ARCHITECTURES``, the rotary embedding is
            scaled, or none of the llama.cpp pre-tokenizers we support matches the tokenizer.
    """
    import gguf

    config = model.config
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if config.model_type not in ARCHITECTURES or rotation != "default":
        raise InvalidModelError(
            f"GGUF export does not support {config.model_type} with rope_type {rotation}; expected "
            f"{', '.join(ARCHITECTURES)} with rope_type default. {REMEDY}"
        )
    heads, key_heads, width = attention_sizes(config)
    writer: Any = gguf.GGUFWriter(out, config.model_type)
    writer.add_name(out.stem)
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[dtype]])
    for field, name in _FIELDS.items():
        getattr(writer, f"add_{field}")(getattr(config, name))
    for field in ("key_length", "value_length", "rope_dimension_count"):
        getattr(writer, f"add_{field}")(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add_tokenizer(writer, tokenizer, config.vocab_size, stops)
    arch = gguf.MODEL_ARCH[config.model_type.upper()]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for key, weight in model.state_dict().items():
        if config.tie_word_embeddings and key == "lm_head.weight":
            continue
        if config.model_type == "llama" and key.split(".")[-2] in ("q_proj", "k_proj"):
            # RoPE rotates pairs of values. In transformers, a pair has one value from each half
            # of a head; in llama.cpp, the two values are adjacent.
            pairs = weight.unflatten(0, (heads if "q_proj" in key else key_heads, 2, width // 2))
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        array = weight.contiguous().numpy()
        kind = gguf.GGMLQuantizationType[dtype.upper()]
        if array.ndim == 1 or array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F32
        place = names.get_name(key, (".weight", ".bias"))
        writer.add_tensor(place, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
