"""Base models and adapters, and what computes them.

From a name to its logits:

    base_models.py  base models by name; LoRA
    loading.py      settings, and loading what they ask for
    shared.py       one base in memory, whoever uses it
    adapters.py     what adapters add to a base beside them
    lean.py         a forward pass of our own for Llama-like models
    products.py     products with the weights of layers
    logits.py       logits and log-probabilities, a stretch at a time
    encoding.py     tokenizers that threads share
    pictures.py     images among tokens
    importing.py    models from elsewhere, as a folder
    stand_ins.py    models that answer for names of others
"""
