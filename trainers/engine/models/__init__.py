"""Loads base models and adapters, and computes their logits.

Modules:

    base_models.py  loads base models by name and adds LoRA adapters
    loading.py      loads models according to the engine's settings
    shared.py       keeps a single copy of a base model in memory for all its users
    adapters.py     applies LoRA adapters on top of a shared base model
    lean.py         our own forward pass for Llama-like models
    products.py     matrix products with weights
    logits.py       computes logits and log-probabilities, in slices
    encoding.py     makes tokenizers thread-safe
    pictures.py     images in prompts
    weights.py      checks that all weights are present and finite
    importing.py    imports GGUF files, folders and packages
    exporting.py    exports trained weights for other programs
    gguf_writer.py  writes a GGUF file
    gguf_tokenizer.py  reads and writes the tokenizer in a GGUF file
    gguf_files.py   reads GGUF files and joins split ones
    stand_ins.py    substitutes one model for another
"""
