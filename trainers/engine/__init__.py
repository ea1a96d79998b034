"""The embedded engine: Tinker's clients served from this process.

From the outside in:

    embedded.py    ``embedded_engine``: replaces the SDK's clients with the engine's
    clients/       Tinker's clients
    store/         checkpoints: saving, listing, repair
    training/      forward, backward, optimizer step; the losses
    sampling/      many requests decoded in one running batch
    models/        base models and adapters: loading them, computing their logits
    planning.py    the memory that a model needs, before it is loaded
    common/        parts that all of it uses: errors, the network guard, threads
"""
