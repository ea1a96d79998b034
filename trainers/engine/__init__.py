"""The embedded engine: Tinker's clients served from this process.

From the outside in:

    embedded.py    ``embedded_engine``: puts its clients in the SDK's place
    clients/       Tinker's clients, and what is checked before anything is computed
    store/         checkpoints: saved, listed, copied
    training/      forward, backward, optimizer step; the losses
    sampling/      many requests, one running batch
    models/        base models and adapters, and what computes them
    planning.py    what a model takes, before it is loaded
    common/        what all of it uses: errors, the network guard, threads, swapped names
"""
