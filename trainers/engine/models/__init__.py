"""Base models and adapters: loading them, and computing their logits.

From a name to its logits:

    base_models.py  base models by name; LoRA
    loading.py      the engine's settings; loads models by them
    shared.py       keeps a base in memory once, for all its users
    adapters.py     computes adapters beside a shared base
    lean.py         our own forward pass for Llama-like models
    products.py     matrix products with weights
    logits.py       logits and log-probabilities, in slices
    encoding.py     makes tokenizers thread-safe
    pictures.py     images among tokens
    weights.py      checks that every weight is present and finite
    importing.py    writes models from elsewhere into a folder
    exporting.py    writes trained weights for other programs
    gguf_writer.py  writes a GGUF file
    gguf_tokenizer.py  reads and writes a GGUF's tokenizer
    gguf_files.py   reads GGUF files, and joins split ones
    stand_ins.py    uses one model in place of another
"""
