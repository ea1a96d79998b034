"""The embedded engine: Tinker's clients served from this process.

From the outside in:

    engine.py           ``embedded_engine``: installs it, and everything that is loaded
    clients.py          Tinker's service, training and REST clients
    sampling_client.py  its sampling client
    futures.py          the futures they return
    network.py          nothing leaves this machine
    checkpoints.py      ``tinker://`` paths and folders
    models.py           base models by name; LoRA
    training.py         forward, backward, optimizer step
    losses.py           the losses
    sampler.py          many requests, one running batch
    batches.py          rows decoded together over a cache
    drawing.py          drawing tokens, stops
    frozen.py           weights ready to sample from
    lean.py             a forward pass of our own for Llama-like models
    errors.py           the engine's errors
"""
