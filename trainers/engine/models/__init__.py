"""Loads base models and adapters, and computes their logits.

From a name to its logits:

    base_models.py  loads base models by name; adds LoRA adapters
    loading.py      loads models as the engine's settings say
    shared.py       keeps one copy of a base in memory for all its users
    adapters.py     computes adapters beside a shared base
    lean.py         our own forward pass for Llama-like models
    products.py     matrix products with weights
    logits.py       computes logits and log-probabilities, in slices
    encoding.py     makes tokenizers thread-safe
    pictures.py     images among tokens
    weights.py      checks that every weight is present and finite
    importing.py    imports GGUF files, folders and packages
    exporting.py    writes trained weights for other programs
    gguf_writer.py  writes a GGUF file
    gguf_tokenizer.py  reads and writes the tokenizer in a GGUF file
    gguf_files.py   reads GGUF files, and joins split ones
    stand_ins.py    uses one model in place of another
"""
