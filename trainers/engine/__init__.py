"""The embedded engine: Tinker's clients served from this process.

From the outside in:

    embedded.py     ``embedded_engine``: installs the engine
    engine.py       everything that is loaded
    installing.py   its clients in the SDK's place
    stand_ins.py    models that answer for names of others
    network.py      nothing leaves this machine
    clients/        Tinker's clients, and what is checked before anything is computed
    store/          checkpoints: saved, listed, copied
    training/       forward, backward, optimizer step; the losses
    sampling/       many requests, one running batch
    models/         base models and adapters, and what computes them
    cores.py        passes side by side, on all cores
    machine.py      this machine's cores and free memory
    memory.py       how much memory there is, and what fits
    planning.py     what a model takes, before it is loaded
    errors.py       the engine's errors
"""
