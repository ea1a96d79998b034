"""The embedded engine: runs Tinker's clients locally, in this process.

Modules, from the outside in:

    embedded.py    ``embedded_engine``: replaces the SDK's clients with the engine's
    clients/       implementations of Tinker's clients
    store/         saves, lists and repairs checkpoints
    training/      forward, backward, optimizer step; the losses
    sampling/      continuous batching: many requests decoded in one running batch
    models/        base models and adapters: loading them, computing their logits
    planning.py    estimates how much memory a model needs before it is loaded
    common/        shared by all of the above: errors, the network guard, threads
"""
