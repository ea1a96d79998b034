"""The embedded engine: Tinker's clients served from this process.

From the outside in:

    engine.py           ``embedded_engine``: installs it, and everything that is loaded
    installing.py       its clients in the SDK's place
    clients.py          Tinker's service client
    training_client.py  its training client
    rest_client.py      its REST client
    sampling_client.py  its sampling client
    door.py             what a training request holds is checked before the worker
    readings.py         what a request wants to know of its prompt
    provenance.py       which tokens were sampled, and recorded
    futures.py          the futures they return
    network.py          nothing leaves this machine
    checkpoints.py      ``tinker://`` paths and folders
    catalog.py          what a store holds, listed and copied
    encryption.py       weights saved for somebody's key
    checkpoint_log.py   the Cookbook's list of checkpoints, repaired
    models.py           base models by name; LoRA
    stand_ins.py        models that answer for names of others
    encoding.py         tokenizers that threads share
    loading.py          settings, and loading what they ask for
    shared.py           one base in memory, whoever uses it
    adapters.py         what adapters add to a base beside them
    training.py         forward, backward, optimizer step
    passes.py           forward passes of the model in training
    cores.py            passes side by side, on all cores
    examples.py         its data, read and cut into micro-batches
    machine.py          this machine's cores and free memory
    memory.py           how much memory there is, and what fits
    planning.py         what a model takes, before it is loaded
    logits.py           logits and log-probabilities, a stretch at a time
    losses.py           the losses
    sampler.py          many requests, one running batch
    running_batch.py    the rows of one batch, and drawing for them
    scoring.py          what is asked of given tokens
    batches.py          rows decoded together over a cache
    lean_batch.py       those of a model of our own
    stem.py             what its rows begin with, held once
    generic_batch.py    those of any other
    prefill.py          what rows share is computed once
    prefix_cache.py     keys and values, found by their tokens
    drawing.py          drawing tokens, stops
    frozen.py           weights ready to sample from
    lean.py             a forward pass of our own for Llama-like models
    errors.py           the engine's errors
"""
