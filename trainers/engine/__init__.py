"""The embedded engine serves Tinker's clients from this process.

From the outside in:

    embedded.py    ``embedded_engine``: replaces the SDK's clients with the engine's
    clients/       Tinker's clients
    store/         saves, lists and repairs checkpoints
    training/      forward, backward, optimizer step; the losses
    sampling/      many requests decoded in one running batch
    models/        base models and adapters: loading them, computing their logits
    planning.py    the memory that a model needs, before it is loaded
    common/        used by all of the above: errors, the network guard, threads
"""
